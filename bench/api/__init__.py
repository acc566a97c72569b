"""How quickly the API answers when there is much to answer about."""
