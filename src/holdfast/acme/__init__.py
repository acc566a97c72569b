"""The face for ACME clients: RFC 8555 over HTTP."""
