"""The tables of targets and deployments."""
