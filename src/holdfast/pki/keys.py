"""Key pairs: making them, reading and writing them, and saying which ones are not good enough."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
)

from holdfast.pki import weak
from holdfast.pki.aside import aside
from holdfast.pki.refused import KeyRefused
from holdfast.secret import Secret

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey

MAX_KEY_PEM: Final = 16 * 1024  # RSA-4096 needs 3.3 KiB
RSA_EXPONENT: Final = 65537
RSA_BITS: Final = (2048, 4096)  # the smallest and the largest that are accepted


class KeyKind(StrEnum):
    EC_P256 = "ec-p256"
    EC_P384 = "ec-p384"
    RSA_2048 = "rsa-2048"
    RSA_3072 = "rsa-3072"
    RSA_4096 = "rsa-4096"
    ED25519 = "ed25519"


_CURVES: Final[dict[KeyKind, ec.EllipticCurve]] = {KeyKind.EC_P256: ec.SECP256R1(), KeyKind.EC_P384: ec.SECP384R1()}
_SIZES: Final = {KeyKind.RSA_2048: 2048, KeyKind.RSA_3072: 3072, KeyKind.RSA_4096: 4096}
# Widely usable in TLS today; Ed25519 is not understood by browsers, so it must be asked for.
EVERYDAY: Final = frozenset(KeyKind) - {KeyKind.ED25519}


# ── Making them ──


async def generate(kind: KeyKind) -> PrivateKey:
    """A new key pair. RSA takes up to seconds, so it is made on a thread (OpenSSL lets go of the interpreter)."""
    if kind in _SIZES:
        return await aside(rsa.generate_private_key, RSA_EXPONENT, _SIZES[kind])
    return ed25519.Ed25519PrivateKey.generate() if kind is KeyKind.ED25519 else ec.generate_private_key(_CURVES[kind])


# ── Reading and writing ──


def to_pem(key: PrivateKey) -> Secret[bytes]:
    """PKCS#8, not encrypted: for the keyring to seal, or for a deployer to install."""
    return Secret(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def from_pem(pem: bytes | Secret[bytes], passphrase: Secret[str] | None = None) -> PrivateKey:
    """Read PKCS#8 or one of the older formats; KeyRefused says why it cannot be read, and never quotes it."""
    content = pem.reveal() if isinstance(pem, Secret) else pem
    if len(content) > MAX_KEY_PEM:
        raise KeyRefused("key-too-large", f"A key file has at most {MAX_KEY_PEM} bytes; this one has {len(content)}.")
    password = passphrase.reveal().encode("utf-8", "surrogatepass") if passphrase else None
    try:
        key = load_pem_private_key(content, password)
    except TypeError:  # it is encrypted and no passphrase was given, or the other way round
        if password is None:
            raise KeyRefused("key-needs-passphrase", "The key is encrypted, and no passphrase was given.") from None
        return from_pem(pem)  # a passphrase that is not needed does no harm
    except (ValueError, UnsupportedAlgorithm):
        if password is not None and b"ENCRYPTED" in content:
            raise KeyRefused("key-passphrase-wrong", "The passphrase does not open the key.") from None
        raise KeyRefused("key-malformed", "This is not a private key in PEM format.") from None
    if not isinstance(key, PrivateKey):
        raise KeyRefused("key-kind", "Only EC, RSA and Ed25519 keys can be used.")
    return key


def spki(key: PublicKey) -> bytes:
    """SubjectPublicKeyInfo in DER: the one encoding by which keys are compared and stored."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def from_spki(der: bytes) -> PublicKey:
    try:
        key = load_der_public_key(der)
    except (ValueError, UnsupportedAlgorithm):
        raise KeyRefused("key-malformed", "The public key cannot be read.") from None
    if not isinstance(key, PublicKey):
        raise KeyRefused("key-kind", "Only EC, RSA and Ed25519 keys can be used.")
    return key


def spki_sha256(key: PublicKey | bytes) -> bytes:
    """How a key is named in lists of blocked keys, in pins and in the audit."""
    return hashlib.sha256(key if isinstance(key, bytes) else spki(key)).digest()


def key_identifier(key: PublicKey) -> bytes:
    """For subjectKeyIdentifier: 160 bits of SHA-256 over the key's bits (RFC 7093 §2, method 1)."""
    if isinstance(key, rsa.RSAPublicKey):
        bits = key.public_bytes(Encoding.DER, PublicFormat.PKCS1)
    elif isinstance(key, ec.EllipticCurvePublicKey):
        bits = key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    else:
        bits = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return hashlib.sha256(bits).digest()[:20]


def kind_of(key: PublicKey) -> KeyKind | None:
    """None for RSA of an odd size, and for curves that we do not use."""
    if isinstance(key, ed25519.Ed25519PublicKey):
        return KeyKind.ED25519
    if isinstance(key, rsa.RSAPublicKey):
        return next((kind for kind, size in _SIZES.items() if size == key.key_size), None)
    return next((kind for kind, curve in _CURVES.items() if curve.name == key.curve.name), None)


# ── Good enough? ──


def key_problem(key: object, *, ed25519_allowed: bool = False) -> str | None:
    """Why no certificate may carry this public key, in a sentence; None if it is good."""
    try:
        check_key(key, ed25519_allowed=ed25519_allowed)
    except KeyRefused as refused:
        return str(refused)
    return None


def check_key(key: object, *, ed25519_allowed: bool = False) -> None:
    """Raise KeyRefused for the first rule that a public key breaks."""
    if isinstance(key, rsa.RSAPublicKey):
        _check_rsa(key.public_numbers())
    elif isinstance(key, ec.EllipticCurvePublicKey):
        if kind_of(key) is None:  # that the point is on its curve was checked when the key was read
            raise KeyRefused("key-curve", f"The curve {key.curve.name} is not accepted; P-256 and P-384 are.")
    elif not isinstance(key, ed25519.Ed25519PublicKey):
        raise KeyRefused("key-kind", "Only EC, RSA and Ed25519 keys can be used.")
    elif not ed25519_allowed:
        raise KeyRefused("key-ed25519", "Ed25519 keys are not allowed here.", "Use EC P-256.")


def _check_rsa(numbers: rsa.RSAPublicNumbers) -> None:
    n, e = numbers.n, numbers.e
    low, high = RSA_BITS
    if not low <= n.bit_length() <= high:
        raise KeyRefused("key-rsa-size", f"An RSA key has {low} to {high} bits; this one has {n.bit_length()}.")
    if n.bit_length() % 8:
        raise KeyRefused("key-rsa-size", f"The size of an RSA key is a multiple of 8; this is {n.bit_length()} bits.")
    if not RSA_EXPONENT <= e < 2**256 or e % 2 == 0:  # FIPS 186-5 §5.1
        raise KeyRefused("key-rsa-exponent", "An RSA exponent is odd, at least 65537 and below 2^256.")
    if weak.has_small_divisor(n):
        raise KeyRefused("key-rsa-small-factor", "The RSA modulus can be divided by a small prime.")
    if weak.is_roca(n):
        raise KeyRefused("key-rsa-roca", "The RSA key comes from a broken generator (ROCA, CVE-2017-15361).")
    if weak.has_close_primes(n):
        raise KeyRefused("key-rsa-close-primes", "The RSA key's primes are so close that it can be factored.")
