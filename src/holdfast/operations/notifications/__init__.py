"""Notifications and the channels that deliver them."""
