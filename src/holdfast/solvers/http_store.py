"""http-01 from our own store: one row for each proof, served by any replica at /.well-known/acme-challenge/{token}."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.issuers.base import Proof

WELL_KNOWN: Final = ".well-known/acme-challenge"  # RFC 8555 §8.3

Put = Callable[[Proof], Awaitable[None]]
Delete = Callable[[Proof], Awaitable[None]]


class HttpStore:
    """Once the row is committed, every replica has it."""

    type = "http-01"
    side_by_side = True

    def __init__(self, put: Put, delete: Delete) -> None:
        self._put = put
        self._delete = delete

    async def publish(self, proof: Proof) -> None:
        await self._put(proof)

    async def visible(self, proof: Proof) -> bool:
        """Yes. Whether the world's port 80 leads to us is for the CA to find out: from here it may look different."""
        return True

    async def clean(self, proof: Proof) -> None:
        await self._delete(proof)
