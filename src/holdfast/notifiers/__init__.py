"""People who are told: one file for each kind of channel."""
