"""The rules of our own CAs and of the ACME objects of their clients."""
