"""The commands about the installation: servers, tokens, keys, jobs, audit log."""
