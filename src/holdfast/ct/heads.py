"""Heads of a log's tree: its size and its root, with a signature that is checked if a key is given."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import load_der_public_key

from holdfast.ct.reading import ByteReader, Malformed

LARGEST: Final = 1 << 40  # entries: more than all logs have together
_NOTE_OF_A_LOG: Final = 0x05  # the type of an RFC 6962 signature in a signed note
_SHA256, _RSA, _ECDSA = 4, 1, 3
LogKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


class NotTrusted(ValueError):
    """The head of the tree is not signed by the key of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeHead:
    size: int
    root: str  # SHA-256 in hexadecimal
    timestamp_ms: int
    signed: bool  # its signature was checked


def read_key(text: str) -> bytes:
    """The public key of a log as log lists have it: base64 of its SubjectPublicKeyInfo. ValueError if it is none."""
    try:
        der = base64.b64decode("".join(text.split()), validate=True)
        _loaded(der)
    except (binascii.Error, ValueError, UnsupportedAlgorithm):
        raise ValueError("the key of a log is the base64 of its public key (SubjectPublicKeyInfo)") from None
    return der


def _loaded(der: bytes) -> LogKey:
    key = load_der_public_key(der)
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        raise ValueError("a log signs with ECDSA or RSA")
    return key


# ── RFC 6962 ──


def from_sth(body: bytes, key: bytes | None) -> TreeHead:
    """The answer of get-sth."""
    try:
        found = json.loads(body)
        size, timestamp = int(found["tree_size"]), int(found["timestamp"])
        root = base64.b64decode(found["sha256_root_hash"], validate=True)
        signature = base64.b64decode(found["tree_head_signature"], validate=True)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Malformed("the answer of get-sth cannot be read") from None
    _check(size, root)
    if key is not None:
        _verify(key, signature, timestamp, size, root)
    return TreeHead(size=size, root=root.hex(), timestamp_ms=timestamp, signed=key is not None)


# ── Checkpoints (C2SP tlog-checkpoint, static-ct-api) ──


def from_checkpoint(body: bytes, key: bytes | None) -> TreeHead:
    """A signed note: the origin, the size and the root, an empty line, and signatures."""
    try:
        text, _, signatures = body.decode().partition("\n\n")
        origin, size_text, root_text, *_ = text.split("\n")
        size, root = int(size_text), base64.b64decode(root_text, validate=True)
    except ValueError:
        raise Malformed("the checkpoint cannot be read") from None
    _check(size, root)
    if key is None:
        return TreeHead(size=size, root=root.hex(), timestamp_ms=0, signed=False)
    timestamp = _signed_at(signatures, origin, key, size, root)
    return TreeHead(size=size, root=root.hex(), timestamp_ms=timestamp, signed=True)


def _signed_at(signatures: str, origin: str, key: bytes, size: int, root: bytes) -> int:
    """The time at which the log signed; NotTrusted if no line is a signature of this key."""
    wanted = key_id(origin, key)
    for line in signatures.split("\n"):
        words = line.split(" ")
        if len(words) != 3 or words[0] != "—" or words[1] != origin:
            continue
        try:
            signature = base64.b64decode(words[2], validate=True)
        except binascii.Error:
            raise Malformed("a signature of the checkpoint cannot be read") from None
        if signature[:4] == wanted:
            timestamp = int.from_bytes(signature[4:12], "big")
            _verify(key, signature[12:], timestamp, size, root)
            return timestamp
    raise NotTrusted("the checkpoint has no signature of the log's key")


def key_id(origin: str, key: bytes) -> bytes:
    """By which a signed note names the key of a log."""
    log_id = hashlib.sha256(key).digest()
    return hashlib.sha256(origin.encode() + b"\n" + bytes([_NOTE_OF_A_LOG]) + log_id).digest()[:4]


# ── Both ──


def _check(size: int, root: bytes) -> None:
    if not 0 <= size <= LARGEST or len(root) != 32:
        raise Malformed(f"a tree of {size} entries, or with such a root, cannot be")


def signed_content(timestamp: int, size: int, root: bytes) -> bytes:
    """What a log signs: version 1, a tree head (RFC 6962 §3.5)."""
    return bytes([0, 1]) + timestamp.to_bytes(8, "big") + size.to_bytes(8, "big") + root


def _verify(key: bytes, signed: bytes, timestamp: int, size: int, root: bytes) -> None:
    reader = ByteReader(signed)
    digest, algorithm = reader.number(1), reader.number(1)
    signature, content = reader.vector(2), signed_content(timestamp, size, root)
    loaded = _loaded(key)
    try:
        if digest != _SHA256:
            raise InvalidSignature
        if isinstance(loaded, ec.EllipticCurvePublicKey) and algorithm == _ECDSA:
            loaded.verify(signature, content, ec.ECDSA(hashes.SHA256()))
        elif isinstance(loaded, rsa.RSAPublicKey) and algorithm == _RSA:
            loaded.verify(signature, content, padding.PKCS1v15(), hashes.SHA256())
        else:
            raise InvalidSignature
    except InvalidSignature:
        raise NotTrusted("the head of the tree is not signed by the key that was given") from None
