"""To add, change and delete issuers and their accounts."""
