"""Certificates and chains that a CA hands out: reading them, which chain leads where, and when to renew (RFC 9773)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from holdfast.core.reasons import Reason
from holdfast.issuers import reading
from holdfast.issuers.base import Failed, Listed, RenewalWindow
from holdfast.pki import ari, chain, csr, keys
from holdfast.pki.refused import ChainRefused
from holdfast.pki.signing import is_self_signed

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


def listed(content: object, number: str) -> Listed | None:
    """A certificate of a CA's list, from the text that it hands out; None if that cannot be read."""
    return listed_of(read(content), number)


def listed_of(found: Sequence[x509.Certificate], number: str) -> Listed | None:
    """The leaf is the one that issued none of the others: CAs send chains in either order."""
    leaf = next((each for each in found if not any(chain.issued_by(other, each) for other in found)), None)
    if leaf is None:
        return None
    rest = [each for each in found if each is not leaf]
    return Listed(chain=tuple(each.public_bytes(Encoding.DER) for each in (leaf, *rest)), number=number)


def text(certificate: x509.Certificate) -> str:
    """One certificate as `read` takes it, without line breaks: fit for an order's `ref`."""
    return base64.b64encode(certificate.public_bytes(Encoding.DER)).decode()


def above(leaf: x509.Certificate, pool: Iterable[x509.Certificate]) -> bytes | None:
    """The PEM chain of a certificate: leaf first, each signed by the next, without the root.

    None if its issuer is not in the pool: clients that do not know the issuer already would not trust such a chain.
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
    return chain.certificates_pem(chain.without_root(path))


def is_for(certificate: x509.Certificate, request: bytes) -> bool:
    """Whether it carries the public key of this signing request."""
    try:
        return keys.spki(certificate.public_key()) == public_key(request)  # type: ignore[arg-type]
    except _UNREADABLE:
        return False


def answers(certificate: x509.Certificate, request: bytes, asked_at: datetime) -> bool:
    """Whether it may be the certificate ordered then. A reused key has older certificates, which are not."""
    return is_for(certificate, request) and certificate.not_valid_before_utc >= asked_at - BACKDATED


def not_ours(ca: str) -> Failed:
    why = f"{ca} sent a certificate for another key than ours."
    return Failed(why=why, reason=Reason.WRONG_CERTIFICATE, retryable=False)


def public_key(request: bytes) -> bytes:
    """The key of a signing request of ours, as SubjectPublicKeyInfo in DER."""
    return csr.parse(request, ed25519_allowed=True, must_staple_allowed=True).spki


# ── Certificates ──
# Certificates as ACME speaks of them: which chain leads where, and when it is time for the next one (RFC 9773).


def leads_to(pem: bytes, wanted: str) -> bool:
    """Whether a chain ends below, or with, a certificate of this common name."""
    found = chain.parse_bundle(pem)
    names = [name for each in found[1:] for name in (each.subject, each.issuer)] or [found[0].issuer]
    return any(wanted in _common_names(name) for name in names)


def _common_names(name: x509.Name) -> list[str]:
    return [str(each.value) for each in name.get_attributes_for_oid(NameOID.COMMON_NAME)]


def leaf_of(certificate: bytes) -> x509.Certificate:
    """From DER, or the first of a PEM chain."""
    if certificate.lstrip().startswith(b"-----"):
        return chain.parse_bundle(certificate)[0]
    return x509.load_der_x509_certificate(certificate)


def renewal_name(certificate: x509.Certificate) -> str | None:
    """The certID of RFC 9773 §4.1; None if the certificate does not name its issuer's key."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    except (x509.ExtensionNotFound, ValueError):
        return None
    return None if found is None else ari.cert_id(found, certificate.serial_number)


def renewal_window(value: Mapping[str, object], ask_again_after_s: float) -> RenewalWindow | None:
    """When a CA wants a certificate renewed; None if it does not say so in a way that makes sense."""
    suggested = value.get("suggestedWindow")
    if not isinstance(suggested, dict):
        return None
    start, end = reading.instant(suggested.get("start")), reading.instant(suggested.get("end"))
    if start is None or end is None or end <= start:  # no answer (RFC 9773 §4.2)
        return None
    page = value.get("explanationURL")
    explanation = reading.words(page) if isinstance(page, str) else None
    return RenewalWindow(start=start, end=end, explanation=explanation, ask_again_after_s=ask_again_after_s)
