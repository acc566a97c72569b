"""Certificates as ACME speaks of them: which chain leads where, and when it is time for the next one (RFC 9773)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from holdfast.issuers import reading
from holdfast.issuers.base import RenewalWindow
from holdfast.pki import ari, chain


def leads_to(pem: bytes, wanted: str) -> bool:
    """Whether a chain ends below, or with, a certificate of this common name."""
    found = chain.parse_bundle(pem)
    names = [name for each in found[1:] for name in (each.subject, each.issuer)] or [found[0].issuer]
    return any(wanted in _common_names(name) for name in names)


def _common_names(name: x509.Name) -> list[str]:
    return [str(each.value) for each in name.get_attributes_for_oid(NameOID.COMMON_NAME)]


def leaf(certificate: bytes) -> x509.Certificate:
    """From DER, or the first of a PEM chain."""
    if certificate.lstrip().startswith(b"-----"):
        return chain.parse_bundle(certificate)[0]
    return x509.load_der_x509_certificate(certificate)


def renewal_name(certificate: x509.Certificate) -> str | None:
    """What RFC 9773 §4.1 calls it; None if it does not say which key signed it."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    except (x509.ExtensionNotFound, ValueError):
        return None
    return None if found is None else ari.cert_id(found, certificate.serial_number)


def window(value: Mapping[str, Any], ask_again_after_s: float) -> RenewalWindow | None:
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
