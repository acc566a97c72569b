"""Discovery: finds, who manages them, and where they are looked for."""
