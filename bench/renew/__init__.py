"""How fast due certificates are renewed, beside certbot, and what it costs to find them among a million."""
