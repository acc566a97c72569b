"""Who remembers which nonces were used (RFC 8555 §6.5): this process, or all replicas together."""

from __future__ import annotations

import struct
from datetime import datetime, timedelta
from typing import Final, Protocol

from holdfast.acme import nonces
from holdfast.acme.nonces import Minted, NonceKey, Redeemed
from holdfast.operations import acme_nonces
from holdfast.operations.desk import Desk
from holdfast.ports import Clock, Random

LIFE: Final = timedelta(hours=1)
KEPT_FOR: Final = 2 * LIFE  # a replica whose clock is late takes nonces for longer than they live
LOOK_AGAIN_AFTER: Final = 0.2  # seconds; garbage must not make us ask the store each time
_HEAD: Final = struct.Struct(">BII")  # how every nonce begins: version, key, seconds since 1970


class Nonces(Protocol):
    async def mint(self, note: str = "") -> str:
        """A new nonce, for one answer."""

    async def redeem(self, text: str) -> Minted | None:
        """What a client sent back, if it is ours, not too old, and used for the first time."""

    async def sweep(self) -> int:
        """Forget what nobody can use any more."""


def nonces_for(desk: Desk, clock: Clock, *, shared: bool) -> Nonces:
    return SharedNonces(desk, clock) if shared else OwnNonces(clock, desk.random)


class OwnNonces:
    """All in memory, with a new key at each start: whatever was redeemed before cannot be opened any more."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock, self._random = clock, random
        self._key = NonceKey(int.from_bytes(random.token(4), "big"), random.token(32))
        self._keys = {self._key.id: self._key}
        self._redeemed = Redeemed(LIFE)
        self._started_at, self._started = clock.now(), clock.monotonic()

    async def mint(self, note: str = "") -> str:
        return nonces.mint(self._key, self._now(), self._random, note)

    async def redeem(self, text: str) -> Minted | None:
        now = self._now()
        minted = nonces.open(text, self._keys, now, LIFE)
        return minted if minted is not None and self._redeemed.redeem(minted.raw, now) else None

    async def sweep(self) -> int:
        return 0  # it forgets while it redeems

    def _now(self) -> datetime:
        """Only grows: a clock that is set must not void every nonce, nor bring old ones back."""
        return self._started_at + timedelta(seconds=self._clock.monotonic() - self._started)


class SharedNonces:
    """Each replica takes the nonces of every other, once among all of them."""

    def __init__(self, desk: Desk, clock: Clock) -> None:
        self._db, self._random, self._clock = desk.db, desk.random, clock
        self._keys: dict[int, NonceKey] = {}
        self._looked = float("-inf")

    async def mint(self, note: str = "") -> str:
        if not self._keys:
            await self._look()
        key = next(iter(self._keys.values()))
        return nonces.mint(key, self._clock.now(), self._random, note)

    async def redeem(self, text: str) -> Minted | None:
        minted = self._open(text)
        if minted is None and self._clock.monotonic() - self._looked > LOOK_AGAIN_AFTER:
            await self._look()  # another replica may have made a key since
            minted = self._open(text)
        if minted is None:
            return None
        key: int = _HEAD.unpack_from(minted.raw)[1]
        outcome = await acme_nonces.redeem(self._db, key, minted.raw)
        if outcome == "key lost":
            await self._look()
        return minted if outcome == "first" else None

    async def sweep(self) -> int:
        old = int((self._clock.now() - KEPT_FOR).timestamp())
        gone = 0
        for key in list(self._keys):
            first, last = _HEAD.pack(nonces.VERSION, key, 0), _HEAD.pack(nonces.VERSION, key, old)
            gone += await acme_nonces.forget(self._db, first, last)
        return gone

    def _open(self, text: str) -> Minted | None:
        return nonces.open(text, self._keys, self._clock.now(), LIFE)

    async def _look(self) -> None:
        self._looked = self._clock.monotonic()
        found = await acme_nonces.keys(self._db, self._random)
        self._keys = {key: NonceKey(key, secret) for key, secret in found.items()}
