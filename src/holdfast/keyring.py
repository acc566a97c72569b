"""Secrets at rest: each has a data key of its own, and the data key is wrapped by a key-encryption key (KEK).

Both steps are AES-256-GCM with a random nonce. Where a box belongs (table, row, column) is authenticated
with it, and with the wrap also the KEK's id: a row that was copied over another does not open. Whose it is (table, row
and column of what refers to it) is authenticated by its data key as well: a row that refers to the secret of another
gets nothing. No SQL here.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from holdfast.errors import KeyMissing, KeyUnusable, StoreRefused
from holdfast.ports import Files, Random
from holdfast.secret import Secret

KekOrigin = Literal["file", "passphrase", "previous passphrase"]

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
    origin: KekOrigin = "file"

    def __post_init__(self) -> None:
        if len(self.key.reveal()) != KEY_SIZE:
            raise ValueError(f"a key has {KEY_SIZE} bytes")


class SecretOwner(NamedTuple):
    """What refers to a secret."""

    table: str
    row: str
    column: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A secret as the store keeps it: which KEK, the data key wrapped by it, the box which that one opens."""

    kek_id: str
    wrapped: bytes = field(repr=False)
    box: bytes = field(repr=False)
    binding: bytes | None = field(default=None, repr=False)  # what the data key says of the owner; None: nothing


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

    def seal(
        self, secret: Secret[bytes], *, table: str, row: str, column: str, owner: SecretOwner | None = None
    ) -> Sealed:
        data_key = Secret(self.random.token(KEY_SIZE))
        place = (table, row, column)
        nothing = Secret(b"")
        return Sealed(
            kek_id=self.current.id,
            wrapped=self._wrap(data_key, place),
            box=_shut(data_key, secret, _about("box", *place), self.random),
            binding=None if owner is None else _shut(data_key, nothing, _about("owner", *place, *owner), self.random),
        )

    def open(
        self, sealed: Sealed, *, table: str, row: str, column: str, owner: SecretOwner | None = None
    ) -> Secret[bytes]:
        """Raises KeyUnusable for a damaged or misplaced row, KeyMissing if its KEK is not ours to use.

        With an owner it opens only what was sealed for that owner.
        """
        place = (table, row, column)
        data_key = self._unwrap(sealed, place)
        secret = _opened(data_key, sealed.box, _about("box", *place))
        bound = owner is None or _opened(data_key, sealed.binding or b"", _about("owner", *place, *owner)) is not None
        if secret is None or not bound:
            raise KeyUnusable(f"{table} {row}", sealed.kek_id)
        return secret

    def rewrap(self, sealed: Sealed, *, table: str, row: str, column: str) -> Sealed:
        """The same secret under the current KEK. The box stays as it is: the secret itself is not opened."""
        place = (table, row, column)
        wrapped = self._wrap(self._unwrap(sealed, place), place)
        return replace(sealed, kek_id=self.current.id, wrapped=wrapped)

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


FIRST_LINE: Final = "holdfast-keys 1"
NOTE: Final = """\
# This file and the database together reveal every secret; without this file the secrets are lost.
# Keep a copy in a safe place, apart from the backups of the database. One file for one database.
"""


def read_key_file(files: Files, path: Path) -> list[Kek] | None:
    """The keys in it, or None if there is no such file."""
    try:
        content = files.read(path)
        if content is None:
            return None
        mode = files.mode(path)
    except OSError as error:
        raise StoreRefused(
            f"The key file {path} cannot be read: {error.strerror or error}.",
            "It must belong to the user that Holdfast runs as (keys.file says where it is looked for).",
        ) from error
    projected = mode == 0o440  # as Kubernetes gives a Secret to the group of a pod: no user may write it
    if mode & 0o077 and not projected:
        raise StoreRefused(
            f"The key file {path} is open to other users of this machine (mode {mode:04o}).",
            f"Run: chmod 600 {path}   If others may have read it, run 'holdfast key rotate' after that.",
        )
    return parse_key_file(content, path)


def create_key_file(files: Files, path: Path, kek: Kek) -> list[Kek] | None:
    """Make the file. If another replica made it meanwhile, its keys count, and ours is forgotten."""
    try:
        _write(files, path, [kek], replace=False)
    except FileExistsError:
        return read_key_file(files, path)
    return [kek]


def rewrite_key_file(files: Files, path: Path, keks: Sequence[Kek]) -> None:
    """Replace the file's keys, all at once: a crash leaves the old file or the new one."""
    _write(files, path, keks, replace=True)


def _write(files: Files, path: Path, keks: Sequence[Kek], *, replace: bool) -> None:
    try:
        files.write_private(path, render_key_file(keks), replace=replace)
    except FileExistsError:
        raise
    except OSError as error:
        raise StoreRefused(
            f"The key file {path} cannot be written: {error.strerror or error}.",
            "Make its folder writable for the user that Holdfast runs as, or name another with keys.file.",
        ) from error


def render_key_file(keks: Sequence[Kek]) -> bytes:
    lines = "".join(
        f"{kek.id} {kek.created_at.isoformat()} {base64.b64encode(kek.key.reveal()).decode()}\n" for kek in keks
    )
    return f"{FIRST_LINE}\n{NOTE}{lines}".encode()


def parse_key_file(content: bytes, path: Path) -> list[Kek]:
    """Read what render wrote. A line that is not understood is never skipped: it may be the key we need."""
    try:
        first, *lines = content.decode("ascii").splitlines() or [""]
    except UnicodeDecodeError:
        raise _malformed(path, "it is not text") from None
    if first != FIRST_LINE:
        raise _malformed(path, f"its first line is not '{FIRST_LINE}'")
    keks = [
        _kek(line, path, number)
        for number, line in enumerate(lines, start=2)
        if line.strip() and not line.startswith("#")
    ]
    if len({kek.id for kek in keks}) < len(keks):
        raise _malformed(path, "it has two keys of the same id")
    return keks


def _kek(line: str, path: Path, number: int) -> Kek:
    try:
        kek_id, created, key = line.split()
        created_at = datetime.fromisoformat(created)
        if created_at.tzinfo is None:
            raise ValueError("a date without a zone")
        return Kek(id=kek_id, key=Secret(base64.b64decode(key, validate=True)), created_at=created_at)
    except ValueError:  # never quoted: the line may well be a key
        raise _malformed(path, f"line {number} is not an id, a date and a key") from None


def _malformed(path: Path, problem: str) -> StoreRefused:
    return StoreRefused(
        f"The key file {path} is damaged: {problem}.",
        "Restore it from your copy. Do not remove it: without its key the secrets in the database are lost.",
    )
