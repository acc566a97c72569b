"""Sites and the HTTP server for clients, browsers and probes."""
