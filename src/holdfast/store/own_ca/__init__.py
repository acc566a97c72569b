"""The tables of our own CAs."""
