"""Secrets at rest: each has a data key of its own, and the data key is wrapped by a key-encryption key (KEK).

Both steps are AES-256-GCM with a random nonce. Where a box belongs (table, row, column) is authenticated
with it, and with the wrap also the KEK's id: a row that was copied over another does not open. No SQL here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from holdfast.errors import KeyMissing, KeyUnusable
from holdfast.ports import Random
from holdfast.secret import Secret

Origin = Literal["file", "passphrase", "previous passphrase"]

KEY_SIZE: Final = 32
NONCE_SIZE: Final = 12
TAG_SIZE: Final = 16
SALT_SIZE: Final = 16
# 32 MiB and about 0.1 s for each guess. To change them, add a column beside the salt: rows outlive programs.
SCRYPT: Final = {"n": 2**15, "r": 8, "p": 1}
_FORMAT: Final = "holdfast/1"
_CHECK: Final = b"this is the right key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kek:
    """A key-encryption key. Only `id` and dates may be shown; the key prints as ***."""

    id: str
    key: Secret[bytes]
    created_at: datetime
    origin: Origin = "file"

    def __post_init__(self) -> None:
        if len(self.key.reveal()) != KEY_SIZE:
            raise ValueError(f"a key has {KEY_SIZE} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A secret as the store keeps it: which KEK, the data key wrapped by it, the box which that one opens."""

    kek_id: str
    wrapped: bytes = field(repr=False)
    box: bytes = field(repr=False)


class Keyring:
    """The KEKs of this process: the first seals, all of them open. A rotation changes them while we run."""

    def __init__(self, keks: Sequence[Kek], random: Random) -> None:
        self.random = random
        self._keks: tuple[Kek, ...] = ()
        self.adopt(keks)

    def __repr__(self) -> str:
        return f"Keyring({', '.join(kek.id for kek in self._keks)})"

    @property
    def current(self) -> Kek:
        return self._keks[0]

    @property
    def previous(self) -> tuple[Kek, ...]:
        return self._keks[1:]

    def adopt(self, keks: Sequence[Kek]) -> None:
        """Hold these from now on; the first is the current one."""
        if not keks:
            raise ValueError("a keyring holds at least one key")
        self._keks = tuple(keks)

    def find(self, kek_id: str) -> Kek | None:
        return next((kek for kek in self._keks if kek.id == kek_id), None)

    def seal(self, secret: Secret[bytes], *, table: str, row: str, column: str) -> Sealed:
        data_key = Secret(self.random.token(KEY_SIZE))
        place = (table, row, column)
        return Sealed(
            kek_id=self.current.id,
            wrapped=self._wrap(data_key, place),
            box=_shut(data_key, secret, _about("box", *place), self.random),
        )

    def open(self, sealed: Sealed, *, table: str, row: str, column: str) -> Secret[bytes]:
        """Raises KeyUnusable for a damaged or misplaced row, KeyMissing if its KEK is not ours to use."""
        place = (table, row, column)
        secret = _opened(self._unwrap(sealed, place), sealed.box, _about("box", *place))
        if secret is None:
            raise KeyUnusable(f"{table} {row}", sealed.kek_id)
        return secret

    def rewrap(self, sealed: Sealed, *, table: str, row: str, column: str) -> Sealed:
        """The same secret under the current KEK. The box stays as it is: the secret itself is not opened."""
        place = (table, row, column)
        wrapped = self._wrap(self._unwrap(sealed, place), place)
        return Sealed(kek_id=self.current.id, wrapped=wrapped, box=sealed.box)

    def _wrap(self, data_key: Secret[bytes], place: tuple[str, str, str]) -> bytes:
        return _shut(self.current.key, data_key, _about("wrap", self.current.id, *place), self.random)

    def _unwrap(self, sealed: Sealed, place: tuple[str, str, str]) -> Secret[bytes]:
        kek = self.find(sealed.kek_id)
        if kek is None:
            raise KeyMissing(sealed.kek_id)
        data_key = _opened(kek.key, sealed.wrapped, _about("wrap", kek.id, *place))
        if data_key is None:
            raise KeyUnusable(f"{place[0]} {place[1]}", sealed.kek_id)
        return data_key


# ── Making KEKs, and knowing them again ──


def new_kek(random: Random, created_at: datetime) -> Kek:
    return Kek(id=random.new_id("kek"), key=Secret(random.token(KEY_SIZE)), created_at=created_at)


def derive(passphrase: Secret[str], salt: bytes) -> Secret[bytes]:
    """The key that a passphrase stands for (RFC 7914)."""
    text = passphrase.reveal().encode("utf-8", "surrogatepass")  # as in the environment (PEP 383)
    return Secret(hashlib.scrypt(text, salt=salt, **SCRYPT, maxmem=2**26, dklen=KEY_SIZE))


def check_box(kek: Kek, random: Random) -> bytes:
    """What only this KEK can open: kept in the database, so that a wrong key is found at start."""
    return _shut(kek.key, Secret(_CHECK), _about("check", kek.id), random)


def opens(key: Secret[bytes], kek_id: str, box: bytes) -> bool:
    """Whether this key is the KEK of that id."""
    return _opened(key, box, _about("check", kek_id)) == Secret(_CHECK)


# ── AES-256-GCM: nonce, ciphertext, tag ──


def _about(*words: str) -> bytes:
    return json.dumps([_FORMAT, *words]).encode()  # JSON, so that ("a", "bc") is never ("ab", "c")


def _shut(key: Secret[bytes], content: Secret[bytes], about: bytes, random: Random) -> bytes:
    nonce = random.token(NONCE_SIZE)
    return nonce + AESGCM(key.reveal()).encrypt(nonce, content.reveal(), about)


def _opened(key: Secret[bytes], box: bytes, about: bytes) -> Secret[bytes] | None:
    if len(box) < NONCE_SIZE + TAG_SIZE:
        return None
    try:
        return Secret(AESGCM(key.reveal()).decrypt(box[:NONCE_SIZE], box[NONCE_SIZE:], about))
    except InvalidTag:
        return None
