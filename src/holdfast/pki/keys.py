"""Key pairs: making, reading and writing them, their JWK thumbprints, and which keys are too weak."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from math import gcd, isqrt, prod
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
)

from holdfast.core import base64url
from holdfast.core.key_kind import KeyKind
from holdfast.pki.der import integer, object_identifier, octet_string, sequence
from holdfast.pki.in_thread import aside
from holdfast.pki.refused import KeyRefused
from holdfast.ports import Random
from holdfast.secret import Secret

# ── RSA moduli that can be factored ──
# RSA moduli that can be factored: small divisors, primes too close to each other, and the ROCA generator.
#
# Each test takes microseconds and none needs a list of keys. Other weak keys are a matter for the list of blocked keys.


FERMAT_ROUNDS: Final = 100  # primes that differ in more than their lower half survive this, and any number of rounds
_SMALL: Final = 752  # as far as Boulder and Go look
_ROCA_PRIMES: Final = 167  # the primorial of Infineon's generator for the smallest keys; larger ones contain it
_ROCA_GENERATOR: Final = 65537


def _primes(limit: int) -> list[int]:
    return [n for n in range(2, limit + 1) if all(n % d for d in range(2, isqrt(n) + 1))]


@cache
def _small_primes() -> int:
    return prod(_primes(_SMALL))


@cache
def _roca_residues() -> tuple[tuple[int, frozenset[int]], ...]:
    """For each prime, the powers of 65537; primes of which it generates every residue say nothing."""
    residues = ((p, frozenset(pow(_ROCA_GENERATOR, n, p) for n in range(p - 1))) for p in _primes(_ROCA_PRIMES))
    return tuple((p, powers) for p, powers in residues if len(powers) < p - 1)


def has_small_divisor(modulus: int) -> bool:
    return gcd(modulus, _small_primes()) != 1


def is_roca(modulus: int) -> bool:
    """CVE-2017-15361: both primes are k·M + 65537^a mod M, so N is a power of 65537 modulo each prime of M.

    A random modulus passes for one with a chance below 2^-27 (Nemec, Sys, Svenda et al., CCS 2017, §4.1).
    """
    return all(modulus % p in powers for p, powers in _roca_residues())


def has_close_primes(modulus: int, rounds: int = FERMAT_ROUNDS) -> bool:
    """Fermat's factoring: N = a² - b² with a just above √N if p and q are close (CVE-2022-26320)."""
    a = isqrt(modulus - 1) + 1
    b_squared = a * a - modulus
    for _ in range(rounds):
        if _may_be_square(b_squared) and isqrt(b_squared) ** 2 == b_squared:
            return True
        b_squared += 2 * a + 1
        a += 1
    return False


def _may_be_square(number: int) -> bool:
    """Squares end in one of 12 ways of 64: this spares most of the square roots."""
    return number & 63 in {0, 1, 4, 9, 16, 17, 25, 33, 36, 41, 49, 57}


# ── Keys ──
# Key pairs: making them, reading and writing them, and saying which ones are not good enough.


PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey

MAX_KEY_PEM: Final = 16 * 1024  # RSA-4096 needs 3.3 KiB
RSA_EXPONENT: Final = 65537
RSA_BITS: Final = (2048, 4096)  # the smallest and the largest that are accepted


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
    if has_small_divisor(n):
        raise KeyRefused("key-rsa-small-factor", "The RSA modulus can be divided by a small prime.")
    if is_roca(n):
        raise KeyRefused("key-rsa-roca", "The RSA key comes from a broken generator (ROCA, CVE-2017-15361).")
    if has_close_primes(n):
        raise KeyRefused("key-rsa-close-primes", "The RSA key's primes are so close that it can be factored.")


# ── JWK thumbprints ──
# The thumbprint of a key (RFC 7638): how ACME names the key of an account.


def thumbprint(key: PublicKey) -> str:
    canonical = json.dumps(jwk(key), sort_keys=True, separators=(",", ":"))
    return base64url.encode(hashlib.sha256(canonical.encode()).digest())


def jwk(key: PublicKey) -> dict[str, str]:
    """The members that make up a public key (RFC 7638 §3.2, RFC 8037 §2)."""
    match key:
        case ec.EllipticCurvePublicKey():
            numbers, size = key.public_numbers(), (key.curve.key_size + 7) // 8
            x, y = (base64url.encode(number.to_bytes(size, "big")) for number in (numbers.x, numbers.y))
            return {"crv": f"P-{key.curve.key_size}", "kty": "EC", "x": x, "y": y}
        case rsa.RSAPublicKey():
            e, n = key.public_numbers().e, key.public_numbers().n
            return {"e": _jwk_number(e), "kty": "RSA", "n": _jwk_number(n)}
        case _:
            x = base64url.encode(key.public_bytes(Encoding.Raw, PublicFormat.Raw))
            return {"crv": "Ed25519", "kty": "OKP", "x": x}


def _jwk_number(number: int) -> str:
    return base64url.encode(number.to_bytes((number.bit_length() + 7) // 8, "big"))


# ── Private keys under a passphrase ──
# Private keys under a passphrase: PKCS#8 with scrypt and AES-256-CBC, which OpenSSL reads, too.
#
# `cryptography` writes such files with 2 048 rounds of PBKDF2, which a graphics card tries by the million a
# second. A CA key that is put away for years deserves the slow function (RFC 7914 §7 for its encoding).


# 16 MiB five times over, about 0.3 s for a guess. OpenSSL refuses to use more than 32 MiB, hence p and not n.
SCRYPT: Final = {"n": 2**14, "r": 8, "p": 5}
_KEY_SIZE: Final = 32
_PBES2: Final = object_identifier("1.2.840.113549.1.5.13")
_SCRYPT: Final = object_identifier("1.3.6.1.4.1.11591.4.11")
_AES_256_CBC: Final = object_identifier("2.16.840.1.101.3.4.1.42")


def to_encrypted_pem(key: PrivateKey, passphrase: Secret[str], random: Random) -> bytes:
    """An encrypted PEM that `from_pem` opens again with the same passphrase."""
    if not passphrase:
        raise ValueError("an empty passphrase protects nothing")
    salt, start = random.token(16), random.token(16)
    text = passphrase.reveal().encode("utf-8", "surrogatepass")
    secret = hashlib.scrypt(text, salt=salt, **SCRYPT, maxmem=2**26, dklen=_KEY_SIZE)
    der = sequence(sequence(_PBES2, _parameters(salt, start)), octet_string(_encrypted(key, secret, start)))
    return _pem("ENCRYPTED PRIVATE KEY", der)


def _parameters(salt: bytes, start: bytes) -> bytes:
    costs = [integer(SCRYPT["n"]), integer(SCRYPT["r"]), integer(SCRYPT["p"]), integer(_KEY_SIZE)]
    return sequence(
        sequence(_SCRYPT, sequence(octet_string(salt), *costs)), sequence(_AES_256_CBC, octet_string(start))
    )


def _encrypted(key: PrivateKey, secret: bytes, start: bytes) -> bytes:
    content = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    padding = PKCS7(128).padder()
    encryptor = Cipher(algorithms.AES(secret), modes.CBC(start)).encryptor()
    return encryptor.update(padding.update(content) + padding.finalize()) + encryptor.finalize()


def _pem(label: str, der: bytes) -> bytes:
    body = base64.b64encode(der).decode()
    lines = [body[at : at + 64] for at in range(0, len(body), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""]).encode()
