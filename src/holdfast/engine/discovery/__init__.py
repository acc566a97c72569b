"""The jobs and duties that look for certificates."""
