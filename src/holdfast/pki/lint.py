"""Our own rules for a certificate that is about to be signed, read off the certificate itself, not off the plan.

So a mistake between plan and encoding is found, too. They always run; pkilint can be added to them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Final, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes

from holdfast.pki import keys, names
from holdfast.pki.certify import EKU_OIDS, alternative_names
from holdfast.pki.profile import SERIAL_BITS, Intent
from holdfast.pki.refused import KeyRefused, NameRefused, PkiRefused
from holdfast.pki.signing import DIGESTS, SigningCertificate

SECOND: Final = timedelta(seconds=1)
MIN_SERIAL_BITS: Final = 64  # less is guessable, or was not drawn at random
E = TypeVar("E", bound=x509.ExtensionType)


@dataclass(frozen=True, slots=True)
class LintFinding:
    """A rule that is broken: never sign."""

    code: str
    problem: str


def findings(
    certificate: x509.Certificate, intent: Intent, issuer: SigningCertificate, *, max_lifetime: timedelta
) -> list[LintFinding]:
    """Each rule that this certificate breaks; an empty list if it may be signed."""
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
        return [LintFinding("lint-unreadable", f"the certificate cannot be read: {error}")]


def _numbers(
    certificate: x509.Certificate, issuer: SigningCertificate, max_lifetime: timedelta
) -> Iterator[LintFinding]:
    if certificate.version is not x509.Version.v3:
        yield LintFinding("lint-version", "it is not of version 3")
    if not MIN_SERIAL_BITS < certificate.serial_number.bit_length() <= SERIAL_BITS or certificate.serial_number < 0:
        yield LintFinding("lint-serial", f"its serial has {certificate.serial_number.bit_length()} bits, not 65 to 159")
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if ends - begins + SECOND > max_lifetime:
        yield LintFinding("lint-lifetime", f"it is valid for more than {max_lifetime}")
    if begins < issuer.certificate.not_valid_before_utc or ends > issuer.certificate.not_valid_after_utc:
        yield LintFinding("lint-outlives-issuer", "it begins before its issuer or expires after it")
    expected = DIGESTS[issuer.algorithm]
    actual: hashes.HashAlgorithm | None = certificate.signature_hash_algorithm
    if (actual.name if actual else None) != (expected.name if expected else None):
        yield LintFinding("lint-signature-algorithm", f"it would be signed with {actual.name if actual else 'no hash'}")


def _key(certificate: x509.Certificate, intent: Intent) -> Iterator[LintFinding]:
    key = certificate.public_key()
    try:
        keys.check_key(key, ed25519_allowed=True)  # whether it may be Ed25519 is for the profile to say
    except KeyRefused as refused:
        yield LintFinding("lint-key", str(refused))
        return
    if keys.spki(key) != intent.spki:  # type: ignore[arg-type]  # check_key let through only these
        yield LintFinding("lint-other-key", "its key is not the one that was asked for")
    found = _extension(certificate, x509.SubjectKeyIdentifier)
    if found is None or found.value.digest != keys.key_identifier(key):  # type: ignore[arg-type]
        yield LintFinding("lint-key-identifier", "its subjectKeyIdentifier is missing or not that of its key")


def _names(certificate: x509.Certificate, intent: Intent, issuer: SigningCertificate) -> Iterator[LintFinding]:
    found = _extension(certificate, x509.SubjectAlternativeName)
    if found is None or not list(found.value):
        yield LintFinding("lint-no-names", "it has no subjectAltName")
        return
    if found.value != alternative_names(intent):
        yield LintFinding("lint-other-names", "its names are not the ones that were asked for")
    subject = list(certificate.subject)
    if found.critical == bool(subject):
        yield LintFinding("lint-names-critical", "subjectAltName is critical exactly if the subject is empty")
    dns = found.value.get_values_for_type(x509.DNSName)
    ips = [str(ip) for ip in found.value.get_values_for_type(x509.IPAddress)]
    if subject and [attribute.value for attribute in subject] not in [[name] for name in (*dns, *ips)]:
        yield LintFinding("lint-subject", "its subject is more than one of its names")
    yield from _spelling(dns, ips)
    for problem in names.outside(issuer.constraints, dns, ips):
        yield LintFinding("lint-name-constraints", problem)


def _spelling(dns: list[str], ips: list[str]) -> Iterator[LintFinding]:
    for name in dns:
        try:
            if names.dns_name(name) != name:
                yield LintFinding("lint-name", f"{name} is not in lower case")
        except NameRefused as refused:
            yield LintFinding("lint-name", str(refused))
    for ip in ips:
        try:
            names.checked(ipaddress.ip_address(ip))
        except (NameRefused, ValueError) as refused:
            yield LintFinding("lint-name", str(refused))


def _uses(certificate: x509.Certificate, intent: Intent) -> Iterator[LintFinding]:
    basic = _extension(certificate, x509.BasicConstraints)
    if basic is not None and (basic.value.ca or not basic.critical):
        yield LintFinding("lint-ca", "it is a CA certificate, or does not say critically that it is none")
    usage = _extension(certificate, x509.KeyUsage)
    if usage is None or not usage.critical or not usage.value.digital_signature:
        yield LintFinding("lint-key-usage", "it has no critical keyUsage with digitalSignature")
    elif usage.value.key_cert_sign or usage.value.crl_sign:
        yield LintFinding("lint-ca", "its key may sign certificates or CRLs")
    extended = _extension(certificate, x509.ExtendedKeyUsage)
    if extended is None or [*extended.value] != [EKU_OIDS[use] for use in intent.extended_key_usages]:
        yield LintFinding("lint-extended-key-usage", "its extended key usage is missing or not the planned one")


def _links(certificate: x509.Certificate, intent: Intent, issuer: SigningCertificate) -> Iterator[LintFinding]:
    if certificate.issuer != issuer.certificate.subject:
        yield LintFinding("lint-issuer-name", "its issuer is not the subject of the CA's certificate")
    authority = _extension(certificate, x509.AuthorityKeyIdentifier)
    if authority is None or authority.value.key_identifier != issuer.key_identifier:
        yield LintFinding("lint-authority-key", "its authorityKeyIdentifier is not the CA's subjectKeyIdentifier")
    points = _extension(certificate, x509.CRLDistributionPoints)
    urls = [name.value for point in (points.value if points else ()) for name in point.full_name or ()]
    if urls != ([intent.crl_url] if intent.crl_url else []):
        yield LintFinding("lint-crl-url", "its CRL address is not the planned one")


def _issuer(issuer: SigningCertificate) -> Iterator[LintFinding]:
    """A path length of 0 lets a CA sign what we sign here: only certificates that are no CAs."""
    basic = _extension(issuer.certificate, x509.BasicConstraints)
    if basic is None or not basic.value.ca:
        yield LintFinding("lint-issuer", "its issuer is not a CA")
    extended = _extension(issuer.certificate, x509.ExtendedKeyUsage)
    if extended is not None and EKU_OIDS["serverAuth"] not in extended.value:
        yield LintFinding("lint-issuer", "its issuer may not certify servers (extended key usage)")


def _extension(certificate: x509.Certificate, kind: type[E]) -> x509.Extension[E] | None:
    try:
        return certificate.extensions.get_extension_for_class(kind)
    except x509.ExtensionNotFound:
        return None


# ── pkilint ──
# Behind the extra `lint`: an independent check against RFC 5280. About 5 ms for a certificate.


# pkilint takes wildcards and single labels for errors in names; how a name is written is decided by names.py.
_DECIDED_HERE: Final = frozenset({"pkix.invalid_domain_name_syntax"})

# mypy sees pkilint only where it is installed; it brings no types for most names used here.


def pkilint_findings(der: bytes) -> list[LintFinding]:
    """pkilint's findings about a certificate, in its own words; it accepts a placeholder for the signature."""
    return _pkilint_run(_certificate_validator(), _loader("RFC5280CertificateDocumentLoader"), der)


def load_pkilint() -> None:
    """Load pkilint, if installed, before the first certificate needs it: loading takes longer than linting."""
    with suppress(PkiRefused):
        _certificate_validator()
        _loader("RFC5280CertificateDocumentLoader")


def _pkilint_run(validator: Any, loader: Any, der: bytes) -> list[LintFinding]:
    try:
        document = loader.load_der_document(der, "to be signed")
    except ValueError as error:
        return [LintFinding("pkilint.unreadable", str(error))]
    return [
        LintFinding(found.finding.code, found.message or str(found.finding.severity.name).lower())
        for result in validator.validate(document.root)
        for found in result.finding_descriptions
        if found.finding.severity.name in {"WARNING", "ERROR", "FATAL"} and found.finding.code not in _DECIDED_HERE
    ]


def _missing() -> PkiRefused:
    return PkiRefused("pkilint-missing", "pkilint is not installed.", "Run: pip install 'holdfast[lint]'")


def _loader(name: str) -> object:
    try:
        from pkilint import loader  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise _missing() from None
    return getattr(loader, name)()


@cache
def _certificate_validator() -> object:
    """Built once: it takes longer than linting does."""
    try:
        from pkilint.pkix import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
            certificate,
            extension,
            name,
        )
    except ImportError:
        raise _missing() from None
    return certificate.create_pkix_certificate_validator_container(
        certificate.create_decoding_validators(name.ATTRIBUTE_TYPE_MAPPINGS, extension.EXTENSION_MAPPINGS),
        [
            certificate.create_issuer_validator_container([]),
            certificate.create_validity_validator_container(),
            certificate.create_subject_validator_container([]),
            certificate.create_extensions_validator_container([]),
            certificate.create_spki_validator_container([]),
        ],
    )
