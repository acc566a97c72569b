"""The facts of a certificate that somebody else made: bounded, printable, whatever is in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from holdfast.core.discovery.find import MOST_NAMES, CertificateFacts
from holdfast.pki import chain as chains
from holdfast.pki.describe import name_in_words
from holdfast.pki.signing import is_self_signed

MOST_SHOWN: Final = 20  # certificates of a chain that are read
LARGEST: Final = 64 * 1024  # bytes of one certificate
_LONGEST_NAME: Final = 253
_LONGEST_ISSUER: Final = 300
_HOST: Final = re.compile(r"[a-z0-9_*]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+")
_UNREADABLE: Final = (
    ValueError, TypeError, IndexError, UnsupportedAlgorithm, x509.InvalidVersion,
    x509.DuplicateExtension, x509.UnsupportedGeneralNameType,
)  # fmt: skip


class Unreadable(ValueError):
    """It is no certificate, or not one that can be read."""


def facts_of(shown: Sequence[bytes], *, precertificate: bool = False, alone: bool = False) -> CertificateFacts:
    """Of a chain in DER, the leaf first. Unreadable if the leaf cannot be read; others that cannot are left out.

    `alone`: nobody served it, so nothing is said of its chain.
    """
    alone = alone or precertificate
    try:
        if not shown or len(shown[0]) > LARGEST:
            raise Unreadable("there is no certificate, or one that is far too large")
        leaf = x509.load_der_x509_certificate(shown[0])
        rest = [each for each in map(_read, shown[1:MOST_SHOWN]) if each is not None]
        fingerprints = tuple(sha256(each).hexdigest() for each in shown[:MOST_SHOWN])
        return CertificateFacts(
            fingerprint="" if precertificate else fingerprints[0],
            serial=f"{leaf.serial_number:x}",
            serial_key=serial_key(leaf.issuer, leaf.serial_number),
            issuer=_printable(name_in_words(leaf.issuer), _LONGEST_ISSUER),
            names=_names(leaf),
            not_before=leaf.not_valid_before_utc,
            not_after=leaf.not_valid_after_utc,
            spki_sha256=_key(leaf),
            self_signed=is_self_signed(leaf),
            authority=_is_authority(leaf),
            chain=() if alone else fingerprints,
            gap="" if alone else chains.gap([leaf, *rest]),
        )
    except Unreadable:
        raise
    except _UNREADABLE as why:
        raise Unreadable(f"it is no certificate that can be read: {type(why).__name__}") from None


def facts_of_pem(text: bytes) -> CertificateFacts:
    """Of a chain in PEM, the leaf first."""
    try:
        certificates = x509.load_pem_x509_certificates(text)
        return facts_of([each.public_bytes(Encoding.DER) for each in certificates])
    except Unreadable:
        raise
    except _UNREADABLE:
        raise Unreadable("it is no certificate that can be read") from None


def serial_key(issuer: x509.Name, serial: int) -> str:
    """Issuer and serial in one text: by these a precertificate and its certificate are the same."""
    return sha256(issuer.public_bytes() + b"\0" + f"{serial:x}".encode()).hexdigest()


def _read(der: bytes) -> x509.Certificate | None:
    try:
        return x509.load_der_x509_certificate(der)
    except _UNREADABLE:
        return None


def _names(leaf: x509.Certificate) -> tuple[str, ...]:
    dns, ips = chains.subject_names(leaf)
    found = [*dns, *ips] or _common_names(leaf)
    printable = (_printable(each, _LONGEST_NAME) for each in found[:MOST_NAMES])
    return tuple(dict.fromkeys(each for each in printable if each))


def _common_names(leaf: x509.Certificate) -> list[str]:
    """Old appliances have their name in the subject alone."""
    said = [str(each.value).lower() for each in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return [each for each in said if _HOST.fullmatch(each)]


def _key(leaf: x509.Certificate) -> str:
    """Of its public key; of one whose kind is unknown here, empty."""
    try:
        return sha256(leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    except _UNREADABLE:
        return ""


def _is_authority(leaf: x509.Certificate) -> bool:
    try:
        return leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _printable(text: str, most: int) -> str:
    """Escape sequences and NULs of a stranger's name reach neither a terminal nor the store."""
    return "".join(char if char.isprintable() else "?" for char in text[:most])
