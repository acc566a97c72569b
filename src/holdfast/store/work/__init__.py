"""The tables of jobs, leases, budgets, turns and replicas."""
