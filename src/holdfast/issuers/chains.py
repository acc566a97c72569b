"""A chain made of what a CA hands out in pieces: the certificate here, those above it there, in any order."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.core.reasons import Reason
from holdfast.issuers.base import Failed
from holdfast.pki import bundle, chain, csr, keys
from holdfast.pki.issuer import is_self_signed
from holdfast.pki.refused import ChainRefused

BACKDATED: Final = timedelta(days=1)  # by which CAs let certificates begin before they were asked for
_UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion, x509.DuplicateExtension)


def read(text: object) -> tuple[x509.Certificate, ...]:
    """The certificates in a text: PEM, or the base64 of one in DER; none if it is neither."""
    if not isinstance(text, str) or not text.strip():
        return ()
    try:
        if "-----BEGIN" in text:
            return chain.parse_bundle(text.encode("utf-8", "replace"))
        return (x509.load_der_x509_certificate(base64.b64decode("".join(text.split()), validate=True)),)
    except (ChainRefused, binascii.Error, *_UNREADABLE):
        return ()


def text(certificate: x509.Certificate) -> str:
    """One certificate as `read` takes it, without line breaks: fit for an order's `ref`."""
    return base64.b64encode(certificate.public_bytes(Encoding.DER)).decode()


def above(leaf: x509.Certificate, pool: Iterable[x509.Certificate]) -> bytes | None:
    """The PEM chain of a certificate: leaf first, each signed by the next, without the root.

    None if its issuer is not in the pool: such a chain would be trusted by nobody who does not know it already.
    """
    path, left = [leaf], [each for each in pool if each != leaf]
    while not is_self_signed(path[-1]):
        upper = next((each for each in left if chain.issued_by(path[-1], each)), None)
        if upper is None:
            break
        path.append(upper)
        left.remove(upper)
    if len(path) == 1 and not is_self_signed(leaf):
        return None
    return bundle.certificates_pem(chain.without_root(path))


def is_for(certificate: x509.Certificate, request: bytes) -> bool:
    """Whether it carries the public key of this signing request."""
    try:
        return keys.spki(certificate.public_key()) == public_key(request)  # type: ignore[arg-type]
    except _UNREADABLE:
        return False


def answers(certificate: x509.Certificate, request: bytes, asked_at: datetime) -> bool:
    """Whether it may be what was asked for then. A key that is used again has older certificates, which are not."""
    return is_for(certificate, request) and certificate.not_valid_before_utc >= asked_at - BACKDATED


def not_ours(ca: str) -> Failed:
    why = f"{ca} sent a certificate for another key than ours."
    return Failed(why=why, reason=Reason.WRONG_CERTIFICATE, retryable=False)


def public_key(request: bytes) -> bytes:
    """The key of a signing request of ours, as SubjectPublicKeyInfo in DER."""
    return csr.parse(request, ed25519_allowed=True, must_staple_allowed=True).spki
