"""Logs of Certificate Transparency: static-CT tiles and RFC 6962, read and checked."""
