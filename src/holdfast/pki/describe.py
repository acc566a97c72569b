"""Certificates, CRLs and CSRs described in words. The text comes from strangers: it is made printable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import AuthorityInformationAccessOID, ExtendedKeyUsageOID

from holdfast.pki import chain, keys
from holdfast.pki.refused import PkiRefused

MAX_FILE: Final = 16 * 1024 * 1024  # a CRL may be long
_SHOWN: Final = 20  # of many names or entries
_USES: Final = {
    ExtendedKeyUsageOID.SERVER_AUTH: "servers (TLS)",
    ExtendedKeyUsageOID.CLIENT_AUTH: "clients (TLS)",
    ExtendedKeyUsageOID.CODE_SIGNING: "signing code",
    ExtendedKeyUsageOID.EMAIL_PROTECTION: "e-mail",
    ExtendedKeyUsageOID.OCSP_SIGNING: "OCSP answers",
}
_UNREADABLE: Final = (
    ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion,
    x509.DuplicateExtension, x509.UnsupportedGeneralNameType,
)  # fmt: skip
DescribedLine = tuple[str, str]


def describe(content: bytes, *, now: datetime) -> str:
    """A paragraph for each certificate, CRL or request in a file, PEM or DER; PkiRefused if there is none."""
    if len(content) > MAX_FILE:
        raise PkiRefused("file-too-large", f"The file has more than {MAX_FILE} bytes.")
    if b"PRIVATE KEY-----" in content:
        raise PkiRefused("file-has-key", "There is a private key in this file: it is not shown.")
    try:
        return "\n\n".join(_paragraph(title, lines) for title, lines in _read(content, now))
    except _UNREADABLE:
        raise PkiRefused("file-malformed", "This is not a certificate, a CRL or a signing request.") from None


def _read(content: bytes, now: datetime) -> list[tuple[str, list[DescribedLine]]]:
    if b"-----BEGIN CERTIFICATE-----" in content:
        found = chain.parse_bundle(content)
        titles = ["Certificate"] if len(found) == 1 else [f"Certificate {n} of {len(found)}" for n in _counted(found)]
        return [(title, list(_certificate(each, now))) for title, each in zip(titles, found, strict=True)]
    if b"-----BEGIN X509 CRL-----" in content:
        return [("Revocation list", list(_crl(x509.load_pem_x509_crl(content), now)))]
    if b"CERTIFICATE REQUEST-----" in content:
        return [("Signing request", list(_request(x509.load_pem_x509_csr(content))))]
    return [_read_der(content, now)]


def _read_der(content: bytes, now: datetime) -> tuple[str, list[DescribedLine]]:
    try:
        return "Certificate", list(_certificate(x509.load_der_x509_certificate(content), now))
    except _UNREADABLE:
        pass
    try:
        return "Revocation list", list(_crl(x509.load_der_x509_crl(content), now))
    except _UNREADABLE:
        return "Signing request", list(_request(x509.load_der_x509_csr(content)))


def _counted(found: Iterable[object]) -> Iterator[int]:
    return (number for number, _ in enumerate(found, start=1))


def _paragraph(title: str, lines: list[DescribedLine]) -> str:
    width = max(len(word) for word, _ in lines)
    return "\n".join([title, *(f"  {word.ljust(width)}  {_printable(text)}" for word, text in lines)])


def _printable(text: str) -> str:
    """Escape sequences in a name would otherwise reach the reader's terminal."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)


# ── Certificates ──


def _certificate(certificate: x509.Certificate, now: datetime) -> Iterator[DescribedLine]:
    values = {type(each.value): each.value for each in certificate.extensions}
    yield "for", _listed(_general_names(values.get(x509.SubjectAlternativeName))) or "no name"
    yield "subject", name_in_words(certificate.subject)
    yield "issued by", name_in_words(certificate.issuer)
    yield "serial", f"{certificate.serial_number:x}"
    yield "valid", validity_in_words(certificate.not_valid_before_utc, certificate.not_valid_after_utc, now)
    yield from _key_lines(certificate.public_key())
    yield "signature", _signature(certificate.signature_hash_algorithm, certificate.signature_algorithm_oid)
    yield from _ability_lines(values)
    yield from _place_lines(values)
    yield "fingerprint", f"SHA-256 {certificate.fingerprint(hashes.SHA256()).hex()}"


def _ability_lines(values: dict[type[x509.ExtensionType], x509.ExtensionType]) -> Iterator[DescribedLine]:
    if isinstance(uses := values.get(x509.ExtendedKeyUsage), x509.ExtendedKeyUsage):
        yield "good for", ", ".join(_USES.get(use, use.dotted_string) for use in uses)
    match values.get(x509.BasicConstraints):
        case x509.BasicConstraints(ca=True, path_length=0):
            yield "CA", "yes, for end certificates only (path length 0)"
        case x509.BasicConstraints(ca=True, path_length=length):
            yield "CA", "yes" if length is None else f"yes, with at most {length} CA below it"
        case _:
            yield "CA", "no"
    if isinstance(limits := values.get(x509.NameConstraints), x509.NameConstraints):
        yield "permitted", _listed(_general_names(limits.permitted_subtrees)) or "everything that is not excluded"
        yield "excluded", _listed(_general_names(limits.excluded_subtrees)) or "nothing"
    if isinstance(features := values.get(x509.TLSFeature), x509.TLSFeature):
        yield "TLS features", ", ".join(feature.name for feature in features)


def _place_lines(values: dict[type[x509.ExtensionType], x509.ExtensionType]) -> Iterator[DescribedLine]:
    if isinstance(points := values.get(x509.CRLDistributionPoints), x509.CRLDistributionPoints):
        yield "CRL at", _listed([text for point in points for text in _general_names(point.full_name)])
    if isinstance(access := values.get(x509.AuthorityInformationAccess), x509.AuthorityInformationAccess):
        for each in access:
            word = "issuer at" if each.access_method == AuthorityInformationAccessOID.CA_ISSUERS else "OCSP at"
            yield word, _listed(_general_names([each.access_location]))


def _key_lines(key: object) -> Iterator[DescribedLine]:
    match key:
        case rsa.RSAPublicKey(key_size=size):
            yield "key", f"RSA, {size} bits"
        case ec.EllipticCurvePublicKey(curve=curve):
            yield "key", f"EC, {curve.name}"
        case _:
            yield "key", type(key).__name__.removesuffix("PublicKey")
    if problem := keys.key_problem(key, ed25519_allowed=True):
        yield "warning", problem
    if isinstance(key, keys.PublicKey):
        yield "key pin", f"SHA-256 {keys.spki_sha256(key).hex()}"


# ── CRLs and requests ──


def _crl(crl: x509.CertificateRevocationList, now: datetime) -> Iterator[DescribedLine]:
    yield "issued by", name_in_words(crl.issuer)
    number = [each.value.crl_number for each in crl.extensions if isinstance(each.value, x509.CRLNumber)]
    yield "number", str(*number) or "none"
    if crl.next_update_utc is None:
        yield "valid", f"from {crl.last_update_utc:%F %T}Z, without an end"
    else:
        yield "valid", validity_in_words(crl.last_update_utc, crl.next_update_utc, now)
    for each in crl.extensions:
        if isinstance(each.value, x509.IssuingDistributionPoint):
            yield "shard", _listed(_general_names(each.value.full_name))
    yield "signature", _signature(crl.signature_hash_algorithm, crl.signature_algorithm_oid)
    yield "revoked", str(len(crl))
    for at, entry in enumerate(crl):
        if at == _SHOWN:
            yield "", f"… and {len(crl) - _SHOWN} more"
            break
        reasons = [each.value.reason.value for each in entry.extensions if isinstance(each.value, x509.CRLReason)]
        yield "", " ".join([f"{entry.serial_number:x}", f"at {entry.revocation_date_utc:%F %T}Z", *reasons])


def _request(request: x509.CertificateSigningRequest) -> Iterator[DescribedLine]:
    values = {type(each.value): each.value for each in request.extensions}
    yield "for", _listed(_general_names(values.get(x509.SubjectAlternativeName))) or "no name but the subject's"
    yield "subject", name_in_words(request.subject)
    yield from _key_lines(request.public_key())
    yield "signature", "matches the key" if request.is_signature_valid else "DOES NOT MATCH THE KEY"
    asked = [each.oid for each in request.extensions]
    yield "asks for", ", ".join(getattr(oid, "_name", "?") for oid in asked) or "no extensions"


# ── Words ──


def name_in_words(name: x509.Name) -> str:
    return name.rfc4514_string() or "(empty)"


def validity_in_words(begins: datetime, ends: datetime, now: datetime) -> str:
    span = f"{begins:%F %T}Z to {ends:%F %T}Z"
    if now < begins:
        return f"{span}: NOT YET"
    if now > ends:
        return f"{span}: EXPIRED {_days(now - ends)} ago"
    return f"{span}: another {_days(ends - now)}"


def _days(span: timedelta) -> str:
    count, unit = (span.days, "day") if span.days else (int(span.total_seconds() // 3600), "hour")
    return f"{count} {unit}{'' if count == 1 else 's'}"


def _general_names(found: object) -> list[str]:
    if not isinstance(found, Iterable):
        return []
    return [str(each.value) for each in found if isinstance(each, x509.GeneralName)]


def _listed(texts: list[str]) -> str:
    more = [f"… and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
    return ", ".join([text or '""' for text in texts[:_SHOWN]] + more)


def _signature(digest: hashes.HashAlgorithm | None, oid: x509.ObjectIdentifier) -> str:
    weak = ": WEAK" if isinstance(digest, (hashes.MD5, hashes.SHA1)) else ""
    return f"{getattr(oid, '_name', oid.dotted_string)}{weak}"
