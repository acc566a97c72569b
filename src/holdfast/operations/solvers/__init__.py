"""Solvers that operators add by command."""
