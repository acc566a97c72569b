"""Commercial CAs as their vendors document them: real HTTPS servers that keep their own truth, and fail on request."""
