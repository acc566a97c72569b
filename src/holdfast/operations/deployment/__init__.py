"""Targets, and deployments of certificates to them."""
