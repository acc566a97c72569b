"""The commands about our own CAs."""
