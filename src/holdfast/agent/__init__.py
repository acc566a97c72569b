"""PROGRAM: `holdfast agent`, on a host that carries out deployments by itself. It loads nothing of the server."""
