"""What the tests stand on: real servers that we start ourselves, and ways to hurt them."""
