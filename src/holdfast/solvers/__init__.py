"""Solvers publish challenge responses for CAs to find: base.py is the contract, then a file for each way."""
