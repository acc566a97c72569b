"""Bundles for tests: true certificates with true keys, made once for each number."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from holdfast.deployers.base import Bundle
from holdfast.deployers.kind import DeployerParts, LocalRules
from holdfast.local_bundles import LocalBundles
from holdfast.network import SystemNet
from holdfast.pki import keys
from holdfast.world import HttpTransport, LocalFiles, SystemClock, SystemRandom

CERTIFICATE = "www.example.com"


def parts(rules: LocalRules | None = None, **more: Any) -> DeployerParts:
    """The real parts of a deployer."""
    given: dict[str, Any] = {
        "credentials": {}, "transport": HttpTransport(), "net": SystemNet(), "files": LocalFiles(),
        "bundles": LocalBundles(), "clock": SystemClock(), "random": SystemRandom(), "local": rules or LocalRules(),
    }  # fmt: skip
    return DeployerParts(target="web-1", **{**given, **more})


@cache
def _authority() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Bench Intermediate")])
    now = datetime.now(UTC).replace(microsecond=0)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Bench Root")]))
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return key, made


def with_roots(bundle: Bundle, *numbers: int) -> Bundle:
    """The same bundle, with made-up roots of ours."""
    roots = b"".join(a_bundle(900 + each, f"root-{each}").leaf for each in numbers)
    content = hashlib.sha256(bundle.fullchain + roots).hexdigest()[:16]
    return replace(bundle, roots=roots, content_id=content)


@cache
def a_bundle(number: int, name: str = CERTIFICATE) -> Bundle:
    """The same for the same number, in one process."""
    signer, above = _authority()
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC).replace(microsecond=0)
    leaf = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(above.subject)
        .public_key(key.public_key())
        .serial_number(1000 + number)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=90))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    pem, chain = leaf.public_bytes(Encoding.PEM), above.public_bytes(Encoding.PEM)
    return Bundle(
        certificate=name,
        names=(name,),
        leaf=pem,
        chain=chain,
        key=keys.to_pem(key),
        number=number,
        content_id=hashlib.sha256(pem + chain).hexdigest()[:16],
        leaf_sha256=leaf.fingerprint(hashes.SHA256()).hex(),
        serial=f"{leaf.serial_number:x}",
        not_before=leaf.not_valid_before_utc,
        not_after=leaf.not_valid_after_utc,
    )
