"""The rules of notifications: their states, and the texts of alerts."""
