"""A bundle as it is sent to an agent: all of it but the key, which is sealed beside it or stays on the host."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from holdfast.core.reasons import Reason
from holdfast.deployers.base import Bundle, refused
from holdfast.pki import keys
from holdfast.pki.refused import PkiRefused
from holdfast.secret import Secret


def bundle_body(bundle: Bundle) -> dict[str, Any]:
    return {
        "certificate": bundle.certificate,
        "names": list(bundle.names),
        "leaf": bundle.leaf.decode(),
        "chain": bundle.chain.decode(),
        "roots": bundle.roots.decode(),
        "number": bundle.number,
        "content_id": bundle.content_id,
        "leaf_sha256": bundle.leaf_sha256,
        "serial": bundle.serial,
        "not_before": bundle.not_before.isoformat(),
        "not_after": bundle.not_after.isoformat(),
    }


def leaf_spki(body: Mapping[str, Any]) -> bytes:
    """The public key of the leaf; refused if there is none."""
    try:
        leaf = x509.load_pem_x509_certificate(str(body["leaf"]).encode())
    except (KeyError, ValueError):
        raise refused("The bundle has no certificate.", Reason.BUNDLE_UNFIT) from None
    return leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def read_bundle(body: Mapping[str, Any], key: Secret[bytes]) -> Bundle:
    """On the host: refused, before anything is touched, if the key is not that of the certificate."""
    try:
        private = keys.from_pem(key)
    except PkiRefused as why:
        raise refused(f"The key of the bundle cannot be used: {why}", Reason.BUNDLE_UNFIT) from None
    if keys.spki(private.public_key()) != leaf_spki(body):
        raise refused("The key of the bundle is not that of its certificate.", Reason.BUNDLE_UNFIT)
    try:
        return Bundle(
            certificate=str(body["certificate"]),
            names=tuple(str(each) for each in body["names"]),
            leaf=str(body["leaf"]).encode(),
            chain=str(body["chain"]).encode(),
            roots=str(body.get("roots", "")).encode(),
            key=key,
            number=int(body["number"]),
            content_id=str(body["content_id"]),
            leaf_sha256=str(body["leaf_sha256"]),
            serial=str(body["serial"]),
            not_before=datetime.fromisoformat(body["not_before"]),
            not_after=datetime.fromisoformat(body["not_after"]),
        )
    except (KeyError, TypeError, ValueError):
        raise refused("The bundle is not of this protocol.", Reason.BUNDLE_UNFIT) from None
