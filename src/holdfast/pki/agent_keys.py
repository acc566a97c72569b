"""Keys of agents and of tokens: who signs what, and what is sealed to whom."""

from __future__ import annotations

from typing import Any, Final

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, x25519
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
)

from holdfast.core.agents.http_signature import Algorithm
from holdfast.pki.refused import KeyRefused
from holdfast.secret import Secret

Signs = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey
Verifies = ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey
_HALF: Final = 32  # bytes of r, and of s (RFC 9421 §3.3.4)
_SUITE: Final = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)  # RFC 9180


def token_key(secret: Secret[bytes]) -> ed25519.Ed25519PrivateKey:
    """The key of a token: its secret is the seed, and the server keeps the public half alone."""
    return ed25519.Ed25519PrivateKey.from_private_bytes(secret.reveal())


def new_binding() -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def new_identity() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public_der(key: Any) -> bytes:
    """The SPKI of a private or a public key."""
    public = key.public_key() if hasattr(key, "public_key") else key
    der: bytes = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return der


def to_pem(key: Any) -> Secret[bytes]:
    return Secret(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def from_pem(content: Secret[bytes]) -> Any:
    return load_pem_private_key(content.reveal(), None)


def read_public(der: bytes) -> Verifies:
    """A key that may sign for an agent; KeyRefused for any other."""
    try:
        key = load_der_public_key(der)
    except Exception:
        raise KeyRefused("key-malformed", "The public key cannot be read.") from None
    on_p256 = isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    if isinstance(key, ed25519.Ed25519PublicKey) or (isinstance(key, ec.EllipticCurvePublicKey) and on_p256):
        return key
    raise KeyRefused("key-kind", "An agent signs with Ed25519 or P-256.")


def algorithm_of(key: Signs | Verifies) -> Algorithm:
    return "ed25519" if isinstance(key, ed25519.Ed25519PrivateKey | ed25519.Ed25519PublicKey) else "ecdsa-p256-sha256"


def sign(key: Signs, content: bytes) -> bytes:
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(content)
    r, s = decode_dss_signature(key.sign(content, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(_HALF, "big") + s.to_bytes(_HALF, "big")


def verifies(key: Verifies, signature: bytes, content: bytes) -> bool:
    try:
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, content)
            return True
        if len(signature) != 2 * _HALF:
            return False
        halves = (int.from_bytes(half, "big") for half in (signature[:_HALF], signature[_HALF:]))
        key.verify(encode_dss_signature(*halves), content, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


# ── What only one agent can read ──


def new_sealing() -> x25519.X25519PrivateKey:
    return x25519.X25519PrivateKey.generate()


def read_sealing(der: bytes) -> x25519.X25519PublicKey:
    try:
        key = load_der_public_key(der)
    except Exception:
        raise KeyRefused("key-malformed", "The sealing key cannot be read.") from None
    if not isinstance(key, x25519.X25519PublicKey):
        raise KeyRefused("key-kind", "Secrets are sealed to keys of X25519.")
    return key


def seal(content: Secret[bytes], to: bytes, *, purpose: str) -> bytes:
    """Encrypt for the holder of a sealing key alone; `purpose` must be named again to open it."""
    return _SUITE.encrypt(content.reveal(), read_sealing(to), purpose.encode())


def unseal(content: bytes, key: x25519.X25519PrivateKey, *, purpose: str) -> Secret[bytes]:
    try:
        return Secret(_SUITE.decrypt(content, key, purpose.encode()))
    except (InvalidTag, ValueError):
        raise KeyRefused("sealed-for-another", "This was sealed to another key, or for another purpose.") from None
