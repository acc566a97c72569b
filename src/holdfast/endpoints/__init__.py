"""Looking at what endpoints serve."""
