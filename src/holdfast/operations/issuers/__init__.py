"""To add, change and remove issuers and their accounts."""
