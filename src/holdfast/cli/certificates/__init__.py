"""The commands about certificates."""
