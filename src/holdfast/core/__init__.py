"""Rules: pure functions over frozen values; no await, no clock, no SQL, no logging, no randomness."""
