"""The tables of our ACME server."""
