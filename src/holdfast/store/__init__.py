"""Memory: every SQL statement of the product, one module per family of tables."""
