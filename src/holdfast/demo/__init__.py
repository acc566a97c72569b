"""A demo: 300 made-up certificates with a year of history, the same for everybody, in an empty database."""
