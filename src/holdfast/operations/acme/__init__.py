"""What ACME clients ask of our own CAs: accounts, orders, authorizations, certificates."""
