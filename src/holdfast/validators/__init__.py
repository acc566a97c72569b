"""Proofs that we check as a CA: that a client controls the name it asks for (RFC 8555 §8), and that CAA lets us."""
