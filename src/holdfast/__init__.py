"""Holdfast keeps every TLS certificate a team owns issued, renewed, deployed and watched."""

__version__ = "0.1.0"
