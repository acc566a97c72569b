"""Looking for certificates on one host: what listens there, what daemons are configured with, and folders."""
