"""A CA that signs: its certificate, what stands above it, and where it publishes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Final

from cryptography import x509

from holdfast.pki import keys
from holdfast.pki.keys import PublicKey
from holdfast.pki.refused import IssuerRefused, KeyRefused
from holdfast.pki.signer import Algorithm, algorithm_of

SHARD: Final = "{shard}"


@dataclass(frozen=True, kw_only=True)
class Issuer:
    """Made by open_issuer, which refuses certificates that must not sign."""

    id: str
    certificate: x509.Certificate
    above: tuple[x509.Certificate, ...] = ()  # the rest of the chain that clients get; the root is not in it
    ca_issuers_url: str | None = None  # where others fetch `certificate`, in DER, over plain HTTP
    crl_url: str | None = None  # with "{shard}" if there is more than one
    shards: int = 1  # may grow, never shrink: old certificates keep their number

    def __post_init__(self) -> None:
        if self.shards < 1 or (self.shards > 1 and SHARD not in (self.crl_url or "")):
            raise IssuerRefused("issuer-shards", f"The CRL address of several shards must contain {SHARD}.")

    @cached_property
    def public_key(self) -> PublicKey:
        key = self.certificate.public_key()
        keys.check_key(key, ed25519_allowed=True)
        return key  # type: ignore[return-value]  # check_key let through only these

    @cached_property
    def algorithm(self) -> Algorithm:
        return algorithm_of(self.public_key)

    @cached_property
    def key_identifier(self) -> bytes:
        return self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest

    @cached_property
    def sha256(self) -> str:
        """Of what goes from it into certificates, its name and key: with a later end it is still the same issuer."""
        return hashlib.sha256(self.certificate.subject.public_bytes() + keys.spki(self.public_key)).hexdigest()

    @cached_property
    def constraints(self) -> x509.NameConstraints | None:
        try:
            return self.certificate.extensions.get_extension_for_class(x509.NameConstraints).value
        except x509.ExtensionNotFound:
            return None

    def shard_of(self, serial: int) -> int | None:
        """The shard in which a new certificate's revocation would appear; None without a CRL."""
        return serial % self.shards if self.crl_url is not None else None

    def url_of(self, shard: int | None) -> str | None:
        return self.crl_url.replace(SHARD, str(shard)) if self.crl_url is not None and shard is not None else None


def open_issuer(issuer: Issuer, *, dev: bool, now: datetime) -> Issuer:
    """The same issuer, or IssuerRefused. `dev` lets a self-signed certificate sign, which a root never should."""
    problem = issuer_problem(issuer.certificate, dev=dev, now=now)
    if problem is not None:
        raise IssuerRefused("issuer-unfit", f"The certificate of CA {issuer.id!r} {problem}.")
    return issuer


def is_self_signed(certificate: x509.Certificate) -> bool:
    if certificate.subject != certificate.issuer:
        return False
    try:
        certificate.verify_directly_issued_by(certificate)
    except Exception:  # a bad signature, another key type, an unknown algorithm: none of them is its own
        return False
    return True


def issuer_problem(certificate: x509.Certificate, *, dev: bool, now: datetime) -> str | None:
    """Why this certificate must not sign others, as the end of a sentence; None if it may."""
    if not dev and certificate.subject == certificate.issuer:
        return "is self-signed: put the root away, and sign with an intermediate ('holdfast pki init' makes both)"
    try:
        keys.check_key(certificate.public_key(), ed25519_allowed=True)
        extensions = certificate.extensions
        basic = extensions.get_extension_for_class(x509.BasicConstraints)
        usage = extensions.get_extension_for_class(x509.KeyUsage).value
        extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except KeyRefused as refused:
        return f"has a key that is not good enough: {str(refused).removesuffix('.')}"
    except x509.ExtensionNotFound as missing:
        return f"has no {getattr(missing.oid, '_name', missing.oid.dotted_string)} extension"
    except Exception:  # whatever is wrong in there, cryptography cannot read it
        return "cannot be read"
    if not basic.value.ca or not basic.critical:
        return "is not a CA certificate (basicConstraints CA:TRUE, critical)"
    if not usage.key_cert_sign or not usage.crl_sign:
        return "may not sign certificates and CRLs (keyUsage)"
    if now < certificate.not_valid_before_utc:
        return f"begins only at {certificate.not_valid_before_utc:%F %T}Z"
    if now >= certificate.not_valid_after_utc:
        return f"expired at {certificate.not_valid_after_utc:%F %T}Z"
    return None
