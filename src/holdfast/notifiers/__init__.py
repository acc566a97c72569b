"""Kinds of channels, one module each."""
