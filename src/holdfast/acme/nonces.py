"""Replay-Nonce (RFC 8555 §6.5): nonces that prove themselves, so that only the redeemed ones need be remembered.

A nonce says which key made it and when, and may carry a note; a MAC over all of it means that we made it. Whoever
starts with an empty `Redeemed` must also start with a new key: else what was redeemed before could be used again.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Final

from holdfast.acme import strict_json
from holdfast.core import base64url
from holdfast.ports import Random

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
    """A nonce that is ours and not too old. Whether it is used for the first time, `Redeemed` knows."""

    note: str
    raw: bytes


def mint(key: NonceKey, now: datetime, random: Random, note: str = "") -> str:
    """A new nonce. The note is not hidden, and comes back only if the client received this nonce."""
    told = note.encode("ascii")
    if len(told) > MAX_NOTE:
        raise ValueError(f"a note has at most {MAX_NOTE} characters")
    content = _HEAD.pack(VERSION, key.id, int(now.timestamp())) + random.token(_RANDOM) + told
    return base64url.encode(content + _mac(key, content))


def open(text: str, keys: Mapping[int, NonceKey], now: datetime, life: timedelta) -> Minted | None:  # noqa: A001
    """What a client sent back, if one of these keys made it within `life`; else None, and the answer is badNonce."""
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

    They are kept by the time they were made, and forgotten in lots. What is as old as a forgotten lot is refused,
    whatever the clock says by then; so `now` should come from a clock that only grows (the time of the start, and the
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
        """True the first time, for a nonce that `open` has accepted; False ever after."""
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
