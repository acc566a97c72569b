"""Agents: tokens that let them in, their identities, and what people decide about them."""
