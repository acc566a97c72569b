"""People who log in: sessions, local accounts, and OpenID providers."""
