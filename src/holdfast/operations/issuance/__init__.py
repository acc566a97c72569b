"""What one issuance needs: its issuer, its budgets, its approvals, its challenge responses."""
