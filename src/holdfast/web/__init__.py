"""The face for browsers and probes."""
