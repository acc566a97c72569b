"""Challenge responses that the listeners of any replica show to CAs."""

from __future__ import annotations

from holdfast.store import issuances
from holdfast.store.database import Store


async def http01(db: Store, token: str) -> str | None:
    """The body of /.well-known/acme-challenge/{token}; None if nothing of ours waits under it."""
    return await db.read(lambda tx: issuances.response_by_token(tx, "http-01", token))


async def tls_alpn01(db: Store, name: str) -> str | None:
    """The key authorization to show for a name or an address."""
    return await db.read(lambda tx: issuances.response_by_name(tx, "tls-alpn-01", name))
