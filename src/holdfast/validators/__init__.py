"""Validators of our own CAs: whether a client controls the name it orders (RFC 8555 §8), and whether CAA allows us."""
