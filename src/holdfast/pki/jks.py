"""Java's own keystore format (JKS, version 2), for programs that cannot read PKCS#12.

Its encryption of keys is a stream of SHA-1 digests, and it protects its content by a salted SHA-1: both are weak, and
part of the format. There is no document; this is what sun.security.provider.JavaKeyStore and KeyProtector do.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.pki import der
from holdfast.secret import Secret

MAGIC: Final = bytes.fromhex("feedfeed")
_VERSION: Final = 2
_KEY, _TRUSTED = 1, 2
_WHITENER: Final = b"Mighty Aphrodite"
_DIGEST: Final = 20  # bytes of SHA-1, and of the salt of a key
_PROTECTOR: Final = der.sequence(der.object_identifier("1.3.6.1.4.1.42.2.17.1.1"), der.tlv(0x05))
_MOST: Final = 10_000  # entries, or certificates of a chain


@dataclass(frozen=True, slots=True, kw_only=True)
class JksEntry:
    """A key with its chain; without a key, a certificate that is trusted."""

    alias: str  # Java looks for it in lower case
    chain: tuple[bytes, ...]  # DER
    key: Secret[bytes] | None = None  # PKCS#8, DER


def encoded(entries: Sequence[JksEntry], password: Secret[str], *, at: datetime, salts: Iterator[bytes]) -> bytes:
    """A keystore; its keys have its password."""
    known = [_entry(each, password, at, salts) for each in entries]
    content = MAGIC + _number(_VERSION) + _number(len(known)) + b"".join(known)
    return content + _sealed(content, password)


def decoded(content: bytes, password: Secret[str]) -> list[JksEntry]:
    """What it holds; ValueError if it is none, or the password is another."""
    body, seal = content[:-_DIGEST], content[-_DIGEST:]
    if not body.startswith(MAGIC) or not hmac.compare_digest(_sealed(body, password), seal):
        raise ValueError("it is no JKS keystore, or its password is another")
    reader = _Reader(body[len(MAGIC) :])
    if reader.number() != _VERSION:
        raise ValueError("it is a keystore of another version")
    return [_read_entry(reader, password) for _ in range(reader.count())]


# ── Entries ──


def _entry(entry: JksEntry, password: Secret[str], at: datetime, salts: Iterator[bytes]) -> bytes:
    known = _text(entry.alias.lower()) + int(at.timestamp() * 1000).to_bytes(8, "big")
    chain = b"".join(_text("X.509") + _sized(each) for each in entry.chain)
    if entry.key is None:
        return _number(_TRUSTED) + known + chain
    protected = der.sequence(_PROTECTOR, der.octet_string(_protected(entry.key, password, next(salts))))
    return _number(_KEY) + known + _sized(protected) + _number(len(entry.chain)) + chain


def _read_entry(reader: _Reader, password: Secret[str]) -> JksEntry:
    tag, alias = reader.number(), reader.text()
    reader.take(8)
    if tag not in (_KEY, _TRUSTED):
        raise ValueError("it has an entry of an unknown kind")
    key = _opened(reader.sized(), password) if tag == _KEY else None
    chain = tuple(reader.certificate() for _ in range(reader.count() if tag == _KEY else 1))
    return JksEntry(alias=alias, chain=chain, key=key)


# ── Keys ──


def _protected(key: Secret[bytes], password: Secret[str], salt: bytes) -> bytes:
    plain = key.reveal()
    return salt + _mixed(plain, password, salt) + _sha1(_utf16(password), plain)


def _opened(content: bytes, password: Secret[str]) -> Secret[bytes]:
    """The octet string is the last part of the structure, whose head has a fixed form."""
    _, inner = _after_head(content)
    if not inner.startswith(_PROTECTOR):
        raise ValueError("its key is protected in another way")
    _, held = _after_head(inner[len(_PROTECTOR) :])
    salt, mixed, check = held[:_DIGEST], held[_DIGEST:-_DIGEST], held[-_DIGEST:]
    plain = _mixed(mixed, password, salt)
    if not hmac.compare_digest(_sha1(_utf16(password), plain), check):
        raise ValueError("its key has another password")
    return Secret(plain)


def _mixed(content: bytes, password: Secret[str], salt: bytes) -> bytes:
    """The same in both directions: each block is mixed with the digest of the password and the digest before."""
    mixed, stream = bytearray(), salt
    for start in range(0, len(content), _DIGEST):
        stream = _sha1(_utf16(password), stream)
        mixed += bytes(a ^ b for a, b in zip(content[start : start + _DIGEST], stream, strict=False))
    return bytes(mixed)


def _sealed(content: bytes, password: Secret[str]) -> bytes:
    return _sha1(_utf16(password), _WHITENER, content)


def _sha1(*parts: bytes) -> bytes:
    return hashlib.sha1(b"".join(parts)).digest()  # noqa: S324


def _utf16(password: Secret[str]) -> bytes:
    return password.reveal().encode("utf-16-be")


# ── Numbers and texts, as java.io.DataOutput writes them ──


def _number(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _sized(content: bytes) -> bytes:
    return _number(len(content)) + content


def _text(value: str) -> bytes:
    content = value.encode()
    return len(content).to_bytes(2, "big") + content


def _after_head(content: bytes) -> tuple[int, bytes]:
    """The tag of a DER structure, and its content."""
    if len(content) < 2:
        raise ValueError("it ends too early")
    size = content[1]
    start = 2 if size < 0x80 else 2 + (size & 0x7F)
    return content[0], content[start:]


@dataclass(slots=True)
class _Reader:
    left: bytes

    def take(self, size: int) -> bytes:
        if size > len(self.left):
            raise ValueError("it ends too early")
        found, self.left = self.left[:size], self.left[size:]
        return found

    def number(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def count(self) -> int:
        if (found := self.number()) > _MOST:
            raise ValueError("it has too many entries")
        return found

    def sized(self) -> bytes:
        return self.take(self.number())

    def text(self) -> str:
        return self.take(int.from_bytes(self.take(2), "big")).decode("utf-8", "replace")

    def certificate(self) -> bytes:
        self.text()  # its type
        return self.sized()
