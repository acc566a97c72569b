"""The tables of agents: their tokens, identities, and the work that they are given."""
