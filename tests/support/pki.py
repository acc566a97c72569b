"""A small CA for tests: the same keys and certificates in every run, and signing requests with anything in them."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from holdfast.core.key_kind import KeyKind
from holdfast.pki import authority, certify, csr, der, keys, lint, profile
from holdfast.pki.certify import finish
from holdfast.pki.keys import PrivateKey
from holdfast.pki.lint import LintFinding
from holdfast.pki.names import permitting
from holdfast.pki.profile import Intent, Profile, new_serial
from holdfast.pki.signing import KeySigner, SigningCertificate
from tests.support.keys import T0, Draws
from tests.support.reaper import PATIENCE

NOW = T0
DAY = timedelta(days=1)
CRL_URL = "http://ca.example.internal/crl/{shard}.crl"


@cache
def a_key(kind: KeyKind = KeyKind.EC_P256, number: int = 1) -> PrivateKey:
    """A key of this kind; EC and Ed25519 keys are the same in every run, RSA takes too long for that."""
    match kind:
        case KeyKind.ED25519:
            return ed25519.Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big"))
        case KeyKind.EC_P256 | KeyKind.EC_P384:
            curve = ec.SECP256R1() if kind is KeyKind.EC_P256 else ec.SECP384R1()
            return ec.derive_private_key(10**60 + number, curve)
        case _:
            return rsa.generate_private_key(65537, int(kind.removeprefix("rsa-")))


def signed(content: authority.Unsigned, key: PrivateKey) -> x509.Certificate:
    return x509.load_der_x509_certificate(finish(content, KeySigner(key)))


@cache
def root(kind: KeyKind = KeyKind.EC_P256, number: int = 101) -> x509.Certificate:
    key = a_key(kind, number)
    plan = authority.CaCertificateFields(
        organization="Example",
        common_name=f"Root {number}",
        key=key.public_key(),
        serial=new_serial(Draws(number)),
        not_before=NOW - DAY,
        not_after=NOW + 3650 * DAY,
        path_length=1,
    )
    return signed(authority.prepare(plan), key)


@cache
def intermediate(
    kind: KeyKind = KeyKind.EC_P256, number: int = 102, permit: tuple[str, ...] = (), root_number: int = 101
) -> x509.Certificate:
    plan = authority.CaCertificateFields(
        organization="Example",
        common_name=f"Intermediate {number}",
        key=a_key(kind, number).public_key(),
        serial=new_serial(Draws(number)),
        not_before=NOW - DAY,
        not_after=NOW + 1000 * DAY,
        path_length=0,
        constraints=permitting(permit),
    )
    return signed(authority.prepare(plan, root(kind, root_number)), a_key(kind, root_number))


def an_issuer(kind: KeyKind = KeyKind.EC_P256, *, permit: tuple[str, ...] = ()) -> SigningCertificate:
    return SigningCertificate(
        id="ca1",
        certificate=intermediate(kind, permit=permit),
        ca_issuers_url="http://ca.example.internal/ca1.cer",
        crl_url=CRL_URL,
        shards=4,
    )


def a_signer(kind: KeyKind = KeyKind.EC_P256) -> KeySigner:
    return KeySigner(a_key(kind, 102))


def a_request(
    names: Iterable[str] = ("www.example.internal",), *, ips: Iterable[str] = (), key: PrivateKey | None = None
) -> csr.CertificateRequest:
    return csr.parse(csr.build(names, key or a_key(), ips=ips), ed25519_allowed=True)


def an_intent(issuer: SigningCertificate | None = None, *, seed: int = 1, **changes: object) -> Intent:
    everything = Profile(key_kinds=frozenset(KeyKind))
    made = profile.plan(everything, a_request(), issuer or an_issuer(), serial=new_serial(Draws(seed)), now=NOW)
    return replace(made, **changes)  # type: ignore[arg-type]


def a_leaf(
    issuer: SigningCertificate | None = None, *, signer: KeySigner | None = None, **changes: object
) -> x509.Certificate:
    issuer = issuer or an_issuer()
    der = certify.sign(an_intent(issuer, **changes), issuer, signer or a_signer(kind_of(issuer)))  # type: ignore[arg-type]
    return x509.load_der_x509_certificate(der)


def kind_of(issuer: SigningCertificate) -> KeyKind:
    kind = keys.kind_of(issuer.public_key)
    assert kind is not None
    return kind


def at_years(years: int) -> datetime:
    return NOW + years * 365 * DAY


# ── Requests with anything in them, signed all the same ──

EC_SHA256 = der.sequence(der.object_identifier("1.2.840.10045.4.3.2"))
EMPTY = der.sequence()


def extension(dotted: str, value: bytes, *, critical: bool = False) -> bytes:
    flag = [b"\x01\x01\xff"] if critical else []
    return der.sequence(der.object_identifier(dotted), *flag, der.octet_string(value))


def san(*names: bytes) -> bytes:
    return extension("2.5.29.17", der.sequence(*names))


def dns(text: str | bytes) -> bytes:
    return der.tlv(0x82, text if isinstance(text, bytes) else text.encode())


def common_name(text: str | bytes, tag: int = 0x0C) -> bytes:
    value = der.tlv(tag, text if isinstance(text, bytes) else text.encode())
    return der.tlv(0x31, der.sequence(der.object_identifier("2.5.4.3"), value))


def asked(*extensions: bytes) -> bytes:
    """The attribute with the requested extensions (RFC 2985 §5.4.2)."""
    return der.sequence(
        der.object_identifier("1.2.840.113549.1.9.14"), der.tlv(0x31, der.sequence(*extensions))
    )  # fmt: skip


def crafted(
    *extensions: bytes,
    subject: Sequence[bytes] = (),
    spki: bytes | None = None,
    attributes: Sequence[bytes] | None = None,
    version: int = 0,
    algorithm: bytes = EC_SHA256,
    signature: bytes | None = None,
) -> bytes:
    """A request of a P-256 key that says exactly this, with a signature that is right unless another one is given."""
    key = a_key()
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    found = sorted([asked(*extensions)] if attributes is None else attributes)  # a SET is sorted in DER
    info = der.sequence(
        der.integer(version), der.sequence(*subject), spki or keys.spki(key.public_key()), der.tlv(0xA0, *found)
    )
    made = key.sign(info, ec.ECDSA(hashes.SHA256(), deterministic_signing=True)) if signature is None else signature
    return der.sequence(info, algorithm, der.bit_string(made))


def rsa_spki(modulus: int, exponent: int = 65537) -> bytes:
    numbers = der.sequence(der.integer(modulus), der.integer(exponent))
    algorithm = der.sequence(der.object_identifier("1.2.840.113549.1.1.1"), b"\x05\x00")
    return der.sequence(algorithm, der.bit_string(numbers))


def ec_spki(curve: str, point: bytes) -> bytes:
    algorithm = der.sequence(der.object_identifier("1.2.840.10045.2.1"), der.object_identifier(curve))
    return der.sequence(algorithm, der.bit_string(point))


# ── RSA moduli that are no good ──

SOUND = 2**2047 + 2**1024 + 2**600 + 1  # no key, but of the right size


def next_factor(number: int) -> int:
    """Without small divisors; that it is prime does not matter to these tests, and would take long to find."""
    number |= 1
    while keys.has_small_divisor(number):
        number += 2
    return number


def roca_modulus(bits: int) -> int:
    """p and q are k·M + 65537^a mod M, as Infineon's library made them; see next_factor."""
    draw = random.Random(bits)
    primorial = prod(p for p in range(2, 168) if all(p % d for d in range(2, p)))

    def factor() -> int:
        top = (1 << bits // 2) - draw.getrandbits(bits // 2 - 8)
        return top // primorial * primorial + pow(65537, draw.getrandbits(60), primorial)

    while keys.has_small_divisor(modulus := factor() * factor()):
        pass
    return modulus


def close_primes(bits: int) -> int:
    p = next_factor((1 << bits // 2) - random.Random(bits).getrandbits(bits // 2 - 8))
    return p * next_factor(p + 2**40)


# ── The judgement of others ──


def openssl(*args: str | Path, folder: Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["openssl", *map(str, args)], cwd=folder, input=stdin, capture_output=True, timeout=PATIENCE)


# ── pkilint on CRLs ──


def crl_findings(der: bytes) -> list[LintFinding]:
    """What pkilint finds in a CRL, in its own words."""
    return lint._pkilint_run(_crl_validator(), lint._loader("RFC5280CertificateListDocumentLoader"), der)


@cache
def _crl_validator() -> Any:
    from pkilint import pkix
    from pkilint.pkix import crl, extension, name

    return crl.create_pkix_crl_validator_container(
        [
            pkix.create_attribute_decoder(name.ATTRIBUTE_TYPE_MAPPINGS),
            pkix.create_extension_decoder(extension.EXTENSION_MAPPINGS),
        ],
        [
            crl.create_issuer_validator_container([]),
            crl.create_validity_validator_container([]),
            crl.create_extensions_validator_container([]),
        ],
    )
