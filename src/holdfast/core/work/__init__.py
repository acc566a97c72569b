"""The rules of jobs, leases, replicas and turns."""
