"""Our own rules for a certificate that is about to be signed, read off the certificate itself, not off the plan.

So a mistake between plan and encoding is found, too. They always run; pkilint (linting.py) can be added to them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes

from holdfast.pki import constraints, keys, names
from holdfast.pki.certify import EKU_OIDS, alternative_names
from holdfast.pki.intent import SERIAL_BITS, Intent
from holdfast.pki.issuer import Issuer
from holdfast.pki.refused import KeyRefused, NameRefused
from holdfast.pki.signer import DIGESTS

SECOND: Final = timedelta(seconds=1)
MIN_SERIAL_BITS: Final = 64  # less is guessable, or was not drawn at random
E = TypeVar("E", bound=x509.ExtensionType)


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that is broken: never sign."""

    code: str
    problem: str


def findings(
    certificate: x509.Certificate, intent: Intent, issuer: Issuer, *, max_lifetime: timedelta
) -> list[Finding]:
    """What is wrong with this certificate; nothing, if it may be signed."""
    try:
        return [
            *_numbers(certificate, issuer, max_lifetime),
            *_key(certificate, intent),
            *_names(certificate, intent, issuer),
            *_uses(certificate, intent),
            *_links(certificate, intent, issuer),
            *_issuer(issuer),
        ]
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        return [Finding("lint-unreadable", f"the certificate cannot be read: {error}")]


def _numbers(certificate: x509.Certificate, issuer: Issuer, max_lifetime: timedelta) -> Iterator[Finding]:
    if certificate.version is not x509.Version.v3:
        yield Finding("lint-version", "it is not of version 3")
    if not MIN_SERIAL_BITS < certificate.serial_number.bit_length() <= SERIAL_BITS or certificate.serial_number < 0:
        yield Finding("lint-serial", f"its serial has {certificate.serial_number.bit_length()} bits, not 65 to 159")
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if ends - begins + SECOND > max_lifetime:
        yield Finding("lint-lifetime", f"it is valid for more than {max_lifetime}")
    if begins < issuer.certificate.not_valid_before_utc or ends > issuer.certificate.not_valid_after_utc:
        yield Finding("lint-outlives-issuer", "it begins before its issuer or ends after it")
    expected = DIGESTS[issuer.algorithm]
    actual: hashes.HashAlgorithm | None = certificate.signature_hash_algorithm
    if (actual.name if actual else None) != (expected.name if expected else None):
        yield Finding("lint-signature-algorithm", f"it would be signed with {actual.name if actual else 'no hash'}")


def _key(certificate: x509.Certificate, intent: Intent) -> Iterator[Finding]:
    key = certificate.public_key()
    try:
        keys.check_key(key, ed25519_allowed=True)  # whether it may be Ed25519 is for the profile to say
    except KeyRefused as refused:
        yield Finding("lint-key", str(refused))
        return
    if keys.spki(key) != intent.spki:  # type: ignore[arg-type]  # check_key let through only these
        yield Finding("lint-other-key", "its key is not the one that was asked for")
    found = _extension(certificate, x509.SubjectKeyIdentifier)
    if found is None or found.value.digest != keys.key_identifier(key):  # type: ignore[arg-type]
        yield Finding("lint-key-identifier", "its subjectKeyIdentifier is missing or not that of its key")


def _names(certificate: x509.Certificate, intent: Intent, issuer: Issuer) -> Iterator[Finding]:
    found = _extension(certificate, x509.SubjectAlternativeName)
    if found is None or not list(found.value):
        yield Finding("lint-no-names", "it has no subjectAltName")
        return
    if found.value != alternative_names(intent):
        yield Finding("lint-other-names", "its names are not the ones that were asked for")
    subject = list(certificate.subject)
    if found.critical == bool(subject):
        yield Finding("lint-names-critical", "subjectAltName is critical exactly if the subject is empty")
    dns = found.value.get_values_for_type(x509.DNSName)
    ips = [str(ip) for ip in found.value.get_values_for_type(x509.IPAddress)]
    if subject and [attribute.value for attribute in subject] not in [[name] for name in (*dns, *ips)]:
        yield Finding("lint-subject", "its subject is more than one of its names")
    yield from _spelling(dns, ips)
    for problem in constraints.outside(issuer.constraints, dns, ips):
        yield Finding("lint-name-constraints", problem)


def _spelling(dns: list[str], ips: list[str]) -> Iterator[Finding]:
    for name in dns:
        try:
            if names.dns_name(name) != name:
                yield Finding("lint-name", f"{name} is not in lower case")
        except NameRefused as refused:
            yield Finding("lint-name", str(refused))
    for ip in ips:
        try:
            names.checked(ipaddress.ip_address(ip))
        except (NameRefused, ValueError) as refused:
            yield Finding("lint-name", str(refused))


def _uses(certificate: x509.Certificate, intent: Intent) -> Iterator[Finding]:
    basic = _extension(certificate, x509.BasicConstraints)
    if basic is not None and (basic.value.ca or not basic.critical):
        yield Finding("lint-ca", "it is a CA certificate, or does not say critically that it is none")
    usage = _extension(certificate, x509.KeyUsage)
    if usage is None or not usage.critical or not usage.value.digital_signature:
        yield Finding("lint-key-usage", "it has no critical keyUsage with digitalSignature")
    elif usage.value.key_cert_sign or usage.value.crl_sign:
        yield Finding("lint-ca", "its key may sign certificates or CRLs")
    extended = _extension(certificate, x509.ExtendedKeyUsage)
    if extended is None or [*extended.value] != [EKU_OIDS[use] for use in intent.extended_key_usages]:
        yield Finding("lint-extended-key-usage", "its extended key usage is missing or not the planned one")


def _links(certificate: x509.Certificate, intent: Intent, issuer: Issuer) -> Iterator[Finding]:
    if certificate.issuer != issuer.certificate.subject:
        yield Finding("lint-issuer-name", "its issuer is not the subject of the CA's certificate")
    authority = _extension(certificate, x509.AuthorityKeyIdentifier)
    if authority is None or authority.value.key_identifier != issuer.key_identifier:
        yield Finding("lint-authority-key", "its authorityKeyIdentifier is not the CA's subjectKeyIdentifier")
    points = _extension(certificate, x509.CRLDistributionPoints)
    urls = [name.value for point in (points.value if points else ()) for name in point.full_name or ()]
    if urls != ([intent.crl_url] if intent.crl_url else []):
        yield Finding("lint-crl-url", "its CRL address is not the planned one")


def _issuer(issuer: Issuer) -> Iterator[Finding]:
    """A path length of 0 lets a CA sign what we sign here: only certificates that are no CAs."""
    basic = _extension(issuer.certificate, x509.BasicConstraints)
    if basic is None or not basic.value.ca:
        yield Finding("lint-issuer", "its issuer is not a CA")
    extended = _extension(issuer.certificate, x509.ExtendedKeyUsage)
    if extended is not None and EKU_OIDS["serverAuth"] not in extended.value:
        yield Finding("lint-issuer", "its issuer may not certify servers (extended key usage)")


def _extension(certificate: x509.Certificate, kind: type[E]) -> x509.Extension[E] | None:
    try:
        return certificate.extensions.get_extension_for_class(kind)
    except x509.ExtensionNotFound:
        return None
