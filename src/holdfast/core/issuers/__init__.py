"""The rules of issuers: their accounts, limits, budgets and breakers."""
