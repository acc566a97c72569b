"""Nonces that replicas share: their keys and the redeemed ones, in the store but off the durable path."""

from __future__ import annotations

from holdfast.ports import Random
from holdfast.store import nonces
from holdfast.store.database import Store
from holdfast.store.marks import apart, relaxed
from holdfast.store.nonces import Redemption
from holdfast.store.tx import Tx

SECRET = 32  # octets


async def keys(db: Store, random: Random) -> dict[int, bytes]:
    """The keys that nonces are made with, the one to use first; made now if there is none."""
    found = await db.read(nonces.keys)
    if found:
        return found
    key, secret = int.from_bytes(random.token(4), "big"), random.token(SECRET)

    def write(tx: Tx) -> dict[int, bytes]:
        nonces.add_key(tx, key, secret)
        return nonces.keys(tx)

    return await db.write(relaxed(write))


async def redeem(db: Store, key: int, raw: bytes) -> Redemption:
    return await db.write(apart(lambda tx: nonces.redeem(tx, key, raw)))


async def forget(db: Store, first: bytes, last: bytes) -> int:
    """Drop redeemed nonces between these two, in lots."""
    gone = 0
    while lot := await db.write(relaxed(lambda tx: nonces.forget(tx, first, last))):
        gone += lot
    return gone
