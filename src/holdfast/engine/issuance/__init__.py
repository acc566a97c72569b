"""The jobs and duties that issue, renew and revoke certificates."""
