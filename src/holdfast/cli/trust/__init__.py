"""Trust in the root of a private CA on this machine."""
