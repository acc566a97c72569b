"""Replay-Nonce (RFC 8555 §6.5): nonces that prove themselves, so that only the redeemed ones need be remembered.

A nonce says which key made it and when, and may carry a note; a MAC over all of it means that we made it. A process
that starts with an empty `Redeemed` must also start with a new key: else a nonce redeemed before could be used again.
"""

from __future__ import annotations

import asyncio
import hmac
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Final, Protocol

from holdfast.core import base64url
from holdfast.operations.acme import context as acme_operations
from holdfast.operations.acme.context import AcmeContext, Redemption
from holdfast.pki import strict_json
from holdfast.ports import Clock, Random

VERSION: Final = 1
MAX_NOTE: Final = 40
SKEW: Final = 300  # seconds by which the clock of the replica that made a nonce may be ahead of ours
MAX_REDEEMED: Final = 1_000_000  # about 120 MB; beyond it, the oldest nonces are refused before their time
_HEAD: Final = struct.Struct(">BII")  # version, key, seconds since 1970 (until 2106)
_RANDOM: Final = 12
_MAC: Final = 16
_SHORTEST: Final = _HEAD.size + _RANDOM + _MAC


@dataclass(frozen=True, slots=True)
class NonceKey:
    """A key of 32 random octets; its id travels in every nonce."""

    id: int
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.id < 2**32 or not 16 <= len(self.secret) <= blake2b.MAX_KEY_SIZE:
            raise ValueError("the id of a nonce key has 32 bits, and its secret 16 to 64 octets")


@dataclass(frozen=True, slots=True)
class Minted:
    """A nonce that is ours and not too old. `Redeemed` tells whether it is used for the first time."""

    note: str
    raw: bytes


def mint_nonce(key: NonceKey, now: datetime, random: Random, note: str = "") -> str:
    """A new nonce. The note is not hidden, and comes back only if the client received this nonce."""
    told = note.encode("ascii")
    if len(told) > MAX_NOTE:
        raise ValueError(f"a note has at most {MAX_NOTE} characters")
    content = _HEAD.pack(VERSION, key.id, int(now.timestamp())) + random.token(_RANDOM) + told
    return base64url.encode(content + _mac(key, content))


def open_nonce(text: str, keys: Mapping[int, NonceKey], now: datetime, life: timedelta) -> Minted | None:
    """The nonce that a client sent, if one of these keys made it within `life`; else None: badNonce."""
    try:
        raw = strict_json.decode(text)
    except ValueError:
        return None
    if not _SHORTEST <= len(raw) <= _SHORTEST + MAX_NOTE:
        return None
    version, key_id, made_at = _HEAD.unpack_from(raw)
    key = keys.get(key_id)
    if version != VERSION or key is None or not hmac.compare_digest(_mac(key, raw[:-_MAC]), raw[-_MAC:]):
        return None
    age = int(now.timestamp()) - made_at
    if not -SKEW <= age <= life.total_seconds():
        return None
    return Minted(raw[_HEAD.size + _RANDOM : -_MAC].decode("ascii"), raw)


def _mac(key: NonceKey, content: bytes) -> bytes:
    return blake2b(content, key=key.secret, digest_size=_MAC, person=b"holdfast nonce").digest()


class Redeemed:
    """Which nonces were used, for as long as they could be used again.

    They are kept by the time they were made, and forgotten in lots. A nonce as old as a forgotten lot is refused,
    also if the clock was set back; so `now` should come from a clock that only grows (the time of the start, and the
    monotonic seconds since): after a jump ahead and back, every nonce would be refused until the clock caught up.
    """

    def __init__(self, life: timedelta, limit: int = MAX_REDEEMED) -> None:
        self._life = life.total_seconds()
        self._limit = limit
        self._width = max(1, int(self._life) // 32)  # seconds in a lot
        self._lots: dict[int, set[bytes]] = {}
        self._size = 0
        self._first = 0  # lots before this one are forgotten

    def __len__(self) -> int:
        return self._size

    def redeem(self, raw: bytes, now: datetime) -> bool:
        """True the first time, for a nonce that `open_nonce` has accepted; False ever after."""
        self._forget(int(now.timestamp()))
        number = _HEAD.unpack_from(raw)[2] // self._width
        if number < self._first:
            return False
        lot = self._lots.setdefault(number, set())
        if (mark := raw[-8:]) in lot:
            return False
        lot.add(mark)
        self._size += 1
        return True

    def _forget(self, now: int) -> None:
        """Lots that are too old as a whole, and, when there are too many nonces, the oldest lots."""
        self._drop_before(int(now - self._life) // self._width)
        while self._size >= self._limit:
            self._drop_before(min(self._lots) + 1)

    def _drop_before(self, first: int) -> None:
        if first > self._first:
            self._first = first
            for number in [number for number in self._lots if number < first]:
                self._size -= len(self._lots.pop(number))


# ── Which nonces were used ──
# Used nonces (RFC 8555 §6.5) are remembered by this process, or by all replicas together.


LIFE: Final = timedelta(hours=1)
KEPT_FOR: Final = 2 * LIFE  # a replica whose clock is late takes nonces for longer than they live
LOT: Final = 32  # nonces that one statement redeems
LOOK_AGAIN_AFTER: Final = 0.2  # seconds; garbage must not make us ask the store each time


class Nonces(Protocol):
    async def mint(self, note: str = "") -> str:
        """A new nonce, for one answer."""

    async def redeem(self, text: str) -> Minted | None:
        """The nonce that a client sent, if it is ours, not too old, and used for the first time."""

    async def sweep(self) -> int:
        """Forget redeemed nonces that are too old to be used again."""


def nonces_for(acme_context: AcmeContext, clock: Clock, *, shared: bool) -> Nonces:
    return SharedNonces(acme_context, clock) if shared else OwnNonces(clock, acme_context.random)


class OwnNonces:
    """All in memory, with a new key at each start: nonces redeemed before the start cannot be opened any more."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock, self._random = clock, random
        self._key = NonceKey(int.from_bytes(random.token(4), "big"), random.token(32))
        self._keys = {self._key.id: self._key}
        self._redeemed = Redeemed(LIFE)
        self._started_at, self._started = clock.now(), clock.monotonic()

    async def mint(self, note: str = "") -> str:
        return mint_nonce(self._key, self._now(), self._random, note)

    async def redeem(self, text: str) -> Minted | None:
        now = self._now()
        minted = open_nonce(text, self._keys, now, LIFE)
        return minted if minted is not None and self._redeemed.redeem(minted.raw, now) else None

    async def sweep(self) -> int:
        return 0  # it forgets while it redeems

    def _now(self) -> datetime:
        """A time that only grows: setting the clock must not void every nonce, nor bring old ones back."""
        return self._started_at + timedelta(seconds=self._clock.monotonic() - self._started)


class SharedNonces:
    """Each replica takes the nonces of every other, once among all of them."""

    def __init__(self, acme_context: AcmeContext, clock: Clock) -> None:
        self._db, self._random, self._clock = acme_context.db, acme_context.random, clock
        self._keys: dict[int, NonceKey] = {}
        self._looked = float("-inf")
        self._waiting: list[tuple[int, bytes, asyncio.Future[Redemption]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def mint(self, note: str = "") -> str:
        if not self._keys:
            await self._look()
        key = next(iter(self._keys.values()))
        return mint_nonce(key, self._clock.now(), self._random, note)

    async def redeem(self, text: str) -> Minted | None:
        minted = self._open(text)
        if minted is None and self._clock.monotonic() - self._looked > LOOK_AGAIN_AFTER:
            await self._look()  # another replica may have made a key since
            minted = self._open(text)
        if minted is None:
            return None
        outcome = await self._gathered(_HEAD.unpack_from(minted.raw)[1], minted.raw)
        if outcome == "key lost":
            await self._look()
        return minted if outcome == "first" else None

    async def sweep(self) -> int:
        old = int((self._clock.now() - KEPT_FOR).timestamp())
        gone = 0
        for key in list(self._keys):
            first, last = _HEAD.pack(VERSION, key, 0), _HEAD.pack(VERSION, key, old)
            gone += await acme_operations.forget_nonces(self._db, first, last)
        return gone

    async def _gathered(self, key: int, raw: bytes) -> Redemption:
        """While one lot is on its way, the next one gathers: under load a statement redeems many."""
        waiter: asyncio.Future[Redemption] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, raw, waiter))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send(), name="nonces")
        return await waiter

    async def _send(self) -> None:
        try:
            while lot := self._waiting[:LOT]:
                del self._waiting[:LOT]
                await self._send_lot(lot)
        finally:
            self._sending = None

    async def _send_lot(self, lot: list[tuple[int, bytes, asyncio.Future[Redemption]]]) -> None:
        try:
            outcomes = await acme_operations.redeem_nonces(self._db, [(key, raw) for key, raw, _ in lot])
        except Exception as error:  # each of those that wait must hear of it, whatever it is
            for *_, waiter in lot:
                if not waiter.done():
                    waiter.set_exception(error)
            return
        for (*_, waiter), outcome in zip(lot, outcomes, strict=True):
            if not waiter.done():  # else its client is gone
                waiter.set_result(outcome)

    def _open(self, text: str) -> Minted | None:
        return open_nonce(text, self._keys, self._clock.now(), LIFE)

    async def _look(self) -> None:
        self._looked = self._clock.monotonic()
        found = await acme_operations.nonce_keys(self._db, self._random)
        self._keys = {key: NonceKey(key, secret) for key, secret in found.items()}


# ── Refusing nonces on purpose ──
# Refuses good nonces on purpose, to try clients out: a share of requests at their first try, and never twice in a row.
#
# Several clients try again only once: the test shows whether they do, not how often.


MAX_REFUSED: Final = 10_000  # requests remembered as refused; beyond that, nothing is refused


class NonceChaos:
    def __init__(self, percent: int) -> None:
        self._percent = percent
        self._refused: set[tuple[str, str]] = set()

    def refuses(self, key: str, url: str, random: Random) -> bool:
        """Whether this request of this key is to be refused now."""
        if not self._percent:
            return False
        if (key, url) in self._refused:
            self._refused.discard((key, url))
            return False
        if len(self._refused) >= MAX_REFUSED or random.uniform(0, 100) >= self._percent:
            return False
        self._refused.add((key, url))
        return True
