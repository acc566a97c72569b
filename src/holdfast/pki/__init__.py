"""X.509 mechanics: keys, requests, certificates, chains, CRLs. No SQL and no clock: `now` is an argument."""
