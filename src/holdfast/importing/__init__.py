"""READERS of what other ACME clients keep: certificates, keys and accounts, taken as they are, changing nothing."""
