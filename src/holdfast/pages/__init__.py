"""The pages: what people see in a browser, made on the server from the declared operations."""
