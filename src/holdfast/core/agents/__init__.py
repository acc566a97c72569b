"""Agents: who they are, what they may ask for, and what both sides of their protocol must agree on."""
