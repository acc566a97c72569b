"""The jobs and duties of our own CAs."""
