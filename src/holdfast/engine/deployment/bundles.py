"""Makes the bundle that a target gets, and refuses one that does not fit together before anything is touched."""

from __future__ import annotations

import hashlib
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from holdfast.core.certificate import Certificate, Version
from holdfast.core.deployment import Deployment
from holdfast.core.reasons import Reason
from holdfast.deployers.base import Bundle, refused
from holdfast.pki import chain, keys
from holdfast.pki.refused import PkiRefused
from holdfast.secret import Secret


def made(
    found: Certificate,
    version: Version,
    deployment: Deployment,
    key: Secret[bytes],
    now: datetime,
    *,
    roots: bytes = b"",
    key_there: bool = False,  # the target has the key; the host compares it with the certificate
) -> Bundle:
    """Refused, reason BUNDLE_UNFIT: key, chain or dates do not fit."""
    there = key_there and not key
    try:
        certificates = chain.parse_bundle(version.chain_pem.encode())
        private = None if there else keys.from_pem(key)
        public = keys.from_spki(_spki(certificates[0])) if private is None else private.public_key()
    except PkiRefused as why:
        raise refused(f"{found.name}: {why}", Reason.BUNDLE_UNFIT) from None
    dns, ips = chain.subject_names(certificates[0]) if certificates else ([], [])
    problem = chain.problem_with(certificates, key=public, names=dns, ips=ips, now=now)
    if problem is not None:
        raise refused(f"{found.name}: {problem}", Reason.BUNDLE_UNFIT)
    leaf, above = chain.certificates_pem(certificates[:1]), chain.certificates_pem(certificates[1:])
    return Bundle(
        certificate=found.name,
        names=(*dns, *ips),
        leaf=leaf,
        chain=above,
        key=Secret(b"") if private is None else keys.to_pem(private),
        roots=roots,
        number=deployment.number,
        content_id=hashlib.sha256(leaf + above + roots).hexdigest()[:16],
        leaf_sha256=certificates[0].fingerprint(hashes.SHA256()).hex(),
        serial=version.serial,
        not_before=version.not_before,
        not_after=version.not_after,
    )


def _spki(leaf: x509.Certificate) -> bytes:
    return leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def leaf_digest(version: Version) -> str:
    """SHA-256 of its certificate; empty if it cannot be read."""
    try:
        found = chain.parse_bundle(version.chain_pem.encode())
    except PkiRefused:
        return ""
    return found[0].fingerprint(hashes.SHA256()).hex() if found else ""
