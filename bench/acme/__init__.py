"""Certificates per second: our ACME server beside Caddy's and pebble, under the same load in the same run."""
