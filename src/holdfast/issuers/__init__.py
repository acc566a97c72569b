"""CAs that we get certificates from: base.py is the contract, then a file each."""
