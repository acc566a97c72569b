"""Deployments: one job drains a reload domain."""
