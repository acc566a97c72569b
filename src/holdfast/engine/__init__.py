"""Time: what happens without being asked."""
