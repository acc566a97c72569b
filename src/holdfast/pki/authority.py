"""Certificates of CAs: a root that signs itself, and an intermediate that may sign only end certificates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast.pki import keys
from holdfast.pki.certify import Unsigned, distribution_points, key_usage, unsigned
from holdfast.pki.keys import PublicKey
from holdfast.pki.lint import LintFinding
from holdfast.pki.signing import issuer_problem


@dataclass(frozen=True, slots=True, kw_only=True)
class CaCertificateFields:
    """The fields of a CA's certificate."""

    organization: str
    common_name: str
    key: PublicKey
    serial: int
    not_before: datetime
    not_after: datetime
    path_length: int  # how many CAs may stand between this one and an end certificate
    constraints: x509.NameConstraints | None = None
    crl_url: str | None = None  # where the CRL of its issuer is found; a root's own certificate has none

    @property
    def subject(self) -> x509.Name:
        return x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, self.organization),
                x509.NameAttribute(NameOID.COMMON_NAME, self.common_name),
            ]
        )


def prepare(authority: CaCertificateFields, issuer: x509.Certificate | None = None) -> Unsigned:
    """The certificate but for its signature; without an issuer, a root's own."""
    issuer_key = authority.key if issuer is None else _usable(issuer.public_key())
    builder = (
        x509.CertificateBuilder()
        .serial_number(authority.serial)
        .issuer_name(authority.subject if issuer is None else issuer.subject)
        .subject_name(authority.subject)
        .not_valid_before(authority.not_before)
        .not_valid_after(authority.not_after)
        .public_key(authority.key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=authority.path_length), critical=True)
        .add_extension(key_usage("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(x509.SubjectKeyIdentifier(keys.key_identifier(authority.key)), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier(keys.key_identifier(issuer_key), None, None), critical=False)
    )
    if issuer is not None:
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        if authority.crl_url:
            builder = builder.add_extension(distribution_points(authority.crl_url), critical=False)
    if authority.constraints is not None:
        builder = builder.add_extension(authority.constraints, critical=True)
    return unsigned(builder, issuer_key)


def _usable(key: object) -> PublicKey:
    keys.check_key(key, ed25519_allowed=True)
    return key  # type: ignore[return-value]  # check_key let through only these


def findings(certificate: x509.Certificate, issuer: x509.Certificate | None, *, now: datetime) -> list[LintFinding]:
    """The rules that the certificate of a CA breaks, before it is signed (`issuer`: None for a root)."""
    return [*_own_findings(certificate, issuer, now), *(_findings_below(certificate, issuer) if issuer else ())]


def _own_findings(
    certificate: x509.Certificate, issuer: x509.Certificate | None, now: datetime
) -> Iterator[LintFinding]:  # fmt: skip
    if problem := issuer_problem(certificate, dev=issuer is None, now=now):
        yield LintFinding("lint-authority", f"it {problem}")
    if certificate.serial_number.bit_length() <= 64:
        yield LintFinding("lint-serial", "its serial is not random")


def _findings_below(certificate: x509.Certificate, issuer: x509.Certificate) -> Iterator[LintFinding]:
    if certificate.issuer != issuer.subject:
        yield LintFinding("lint-issuer-name", "its issuer is not the subject of the issuer's certificate")
    ours, theirs = _path_length(certificate), _path_length(issuer)
    if ours is None or (theirs is not None and ours >= theirs):
        yield LintFinding("lint-path-length", f"its path length is {ours} under an issuer of {theirs}")
    if certificate.not_valid_after_utc > issuer.not_valid_after_utc:
        yield LintFinding("lint-outlives-issuer", "it expires after its issuer")
    if certificate.not_valid_before_utc < issuer.not_valid_before_utc:
        yield LintFinding("lint-outlives-issuer", "it begins before its issuer")
    if _identifiers(certificate)[1] != _identifiers(issuer)[0]:
        yield LintFinding("lint-authority-key", "its authorityKeyIdentifier is not its issuer's subjectKeyIdentifier")


def _path_length(certificate: x509.Certificate) -> int | None:
    return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length


def _identifiers(certificate: x509.Certificate) -> tuple[bytes, bytes | None]:
    own = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    issuers = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    return own.digest, issuers.key_identifier
