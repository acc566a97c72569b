"""Places that we install certificates in: base.py is the contract, then a file each."""
