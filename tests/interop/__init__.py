"""Other people's ACME clients against our server: `make interop`."""
