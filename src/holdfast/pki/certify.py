"""From an intent to a certificate: a pure function of the intent, the issuer and the key."""

from __future__ import annotations

import ipaddress
from typing import Final

from cryptography import x509
from cryptography.x509.oid import AuthorityInformationAccessOID, ExtendedKeyUsageOID, NameOID

from holdfast.pki import keys
from holdfast.pki.intent import KEY_USAGES, Intent
from holdfast.pki.issuer import Issuer
from holdfast.pki.keys import PublicKey
from holdfast.pki.refused import IssuerRefused
from holdfast.pki.signer import Signer
from holdfast.pki.unsigned import Unsigned, finish, unsigned

EKU_OIDS: Final = {"serverAuth": ExtendedKeyUsageOID.SERVER_AUTH, "clientAuth": ExtendedKeyUsageOID.CLIENT_AUTH}
_OTHER_USAGES: Final = (
    "content_commitment", "data_encipherment", "key_agreement", "key_cert_sign", "crl_sign",
    "encipher_only", "decipher_only",
)  # fmt: skip


def prepare(intent: Intent, issuer: Issuer) -> Unsigned:
    """All of the certificate but its signature: `preview` is for the linter, finish() or finish_aside() sign it."""
    if (intent.issuer_id, intent.issuer_sha256) != (issuer.id, issuer.sha256):
        raise IssuerRefused("issuer-changed", f"CA {issuer.id!r} has another name or key than when this was planned.")
    if intent.algorithm is not issuer.algorithm:
        raise IssuerRefused("issuer-changed", f"CA {issuer.id!r} signs with {issuer.algorithm} now.")
    builder = (
        x509.CertificateBuilder()
        .serial_number(intent.serial)
        .issuer_name(issuer.certificate.subject)
        .subject_name(_subject(intent))
        .not_valid_before(intent.not_before)
        .not_valid_after(intent.not_after)
    )
    key = keys.from_spki(intent.spki)
    builder = builder.public_key(key)
    for value, critical in _extensions(intent, key, issuer):
        builder = builder.add_extension(value, critical=critical)
    return unsigned(builder, issuer.public_key)


def sign(intent: Intent, issuer: Issuer, signer: Signer) -> bytes:
    """The certificate in DER. With a deterministic signer, the same intent gives the same bytes."""
    return finish(prepare(intent, issuer), signer)


def _subject(intent: Intent) -> x509.Name:
    if intent.common_name is None:
        return x509.Name([])
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, intent.common_name)])


def _extensions(intent: Intent, key: PublicKey, issuer: Issuer) -> list[tuple[x509.ExtensionType, bool]]:
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (key_usage(*intent.key_usages), True),
        (x509.ExtendedKeyUsage([EKU_OIDS[use] for use in intent.extended_key_usages]), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.SubjectKeyIdentifier(keys.key_identifier(key)), False),
        (authority_key(issuer), False),
        (alternative_names(intent), intent.common_name is None),  # critical if there is no other name, §4.2.1.6
    ]
    if intent.ca_issuers_url is not None:
        extensions.append((_authority_information(intent.ca_issuers_url), False))
    if intent.crl_url is not None:
        extensions.append((distribution_points(intent.crl_url), False))
    if intent.must_staple:
        extensions.append((x509.TLSFeature([x509.TLSFeatureType.status_request]), False))
    return extensions


def key_usage(*usages: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in usages for name in (*KEY_USAGES, *_OTHER_USAGES)})


def alternative_names(intent: Intent) -> x509.SubjectAlternativeName:
    entries: list[x509.GeneralName] = [x509.DNSName(name) for name in intent.names]
    return x509.SubjectAlternativeName(entries + [x509.IPAddress(ipaddress.ip_address(ip)) for ip in intent.ips])


def authority_key(issuer: Issuer) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier(issuer.key_identifier, None, None)


def distribution_points(url: str) -> x509.CRLDistributionPoints:
    place = [x509.UniformResourceIdentifier(url)]
    return x509.CRLDistributionPoints([x509.DistributionPoint(place, None, None, None)])


def _authority_information(url: str) -> x509.AuthorityInformationAccess:
    place = x509.UniformResourceIdentifier(url)
    return x509.AuthorityInformationAccess([x509.AccessDescription(AuthorityInformationAccessOID.CA_ISSUERS, place)])
