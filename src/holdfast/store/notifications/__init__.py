"""The tables of notifications, deliveries and channels."""
