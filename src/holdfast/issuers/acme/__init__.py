"""Issuers that speak ACME (RFC 8555)."""
