"""Our own CAs: to create and renew them, to sign, to revoke, and to publish CRLs."""
