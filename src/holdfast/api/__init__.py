"""JSON for programs: /api/v1."""
