"""From an intent to a certificate: a pure function of the intent, the signing certificate and the key."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import AuthorityInformationAccessOID, ExtendedKeyUsageOID, NameOID

from holdfast.pki import keys
from holdfast.pki.der import bit_string, integer, sequence
from holdfast.pki.in_thread import aside
from holdfast.pki.keys import PublicKey
from holdfast.pki.profile import KEY_USAGES, Intent
from holdfast.pki.refused import MustNotSign, SignerRefused
from holdfast.pki.signing import DIGESTS, Signer, SigningCertificate, algorithm_of, verifies

# ── Before the signature ──
# Certificates and CRLs, complete but for a placeholder of the signature, so that they can be linted and kept.
#
# `cryptography` builds and signs in one step, with any object of its key classes. We hand it one that does not
# sign, lint the result, and put the true signature in its place; nothing is encoded twice.


# Well-formed for linters, and no signature of anything. For EC it is r = s = 1 (RFC 3279 §2.2.3).
_PLACEHOLDER: Final[dict[type, bytes]] = {
    ec.EllipticCurvePrivateKey: sequence(integer(1), integer(1)),
    rsa.RSAPrivateKey: bytes(256),
    ed25519.Ed25519PrivateKey: bytes(64),
}
_KEY_CLASSES: Final[dict[type, type]] = {
    ec.EllipticCurvePublicKey: ec.EllipticCurvePrivateKey,
    rsa.RSAPublicKey: rsa.RSAPrivateKey,
    ed25519.Ed25519PublicKey: ed25519.Ed25519PrivateKey,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsigned:
    """The bytes to be signed, and the algorithm identifier between them and the signature."""

    tbs: bytes
    algorithm: bytes  # AlgorithmIdentifier, in DER
    issuer_key: PublicKey
    preview: x509.Certificate | x509.CertificateRevocationList  # with the placeholder in place of a signature

    def with_signature(self, signature: bytes) -> bytes:
        return sequence(self.tbs, self.algorithm, bit_string(signature))


def unsigned(
    builder: x509.CertificateBuilder | x509.CertificateRevocationListBuilder, issuer_key: PublicKey
) -> Unsigned:
    base = next(private for public, private in _KEY_CLASSES.items() if isinstance(issuer_key, public))
    preview = builder.sign(_stand_in(base), DIGESTS[algorithm_of(issuer_key)])
    tbs = preview.tbs_certificate_bytes if isinstance(preview, x509.Certificate) else preview.tbs_certlist_bytes
    der, tail = preview.public_bytes(Encoding.DER), bit_string(_PLACEHOLDER[base])
    algorithm = der[der.index(tbs, 0, len(tbs) + 8) + len(tbs) : -len(tail)]
    return Unsigned(tbs=tbs, algorithm=algorithm, issuer_key=issuer_key, preview=preview)


@cache
def _stand_in(base: type) -> Any:
    """An object of a private-key class that has no key."""
    methods = dict.fromkeys(base.__abstractmethods__, _never)  # type: ignore[attr-defined]  # it is an ABC
    return type("StandIn", (base,), {**methods, "sign": lambda *_: _PLACEHOLDER[base], "curve": ec.SECP256R1()})()


def _never(*_: object) -> object:
    raise AssertionError("there is no key here")


def finish(content: Unsigned, signer: Signer) -> bytes:
    """The signed certificate or CRL, in DER. A signature that does not verify is refused: a device may fail, too."""
    if keys.spki(signer.public_key) != keys.spki(content.issuer_key):
        raise SignerRefused("signer-other-key", "The signer's key is not the one in the issuer's certificate.")
    signature = signer.sign(content.tbs)
    if not verifies(content.issuer_key, signature, content.tbs):
        raise SignerRefused("signer-bad-signature", "The signer returned a signature that does not verify.")
    return content.with_signature(signature)


async def finish_aside(content: Unsigned, signer: Signer) -> bytes:
    """The same without holding up the event loop: on a thread, if this signer is slow."""
    return finish(content, signer) if signer.quick else await aside(finish, content, signer)


# ── Certificates ──


EKU_OIDS: Final = {"serverAuth": ExtendedKeyUsageOID.SERVER_AUTH, "clientAuth": ExtendedKeyUsageOID.CLIENT_AUTH}
_OTHER_USAGES: Final = (
    "content_commitment", "data_encipherment", "key_agreement", "key_cert_sign", "crl_sign",
    "encipher_only", "decipher_only",
)  # fmt: skip


def prepare(intent: Intent, issuer: SigningCertificate) -> Unsigned:
    """All of the certificate but its signature: `preview` is for the linter, finish() or finish_aside() sign it."""
    if (intent.issuer_id, intent.issuer_sha256) != (issuer.id, issuer.sha256):
        raise MustNotSign("issuer-changed", f"CA {issuer.id!r} has another name or key than when this was planned.")
    if intent.algorithm is not issuer.algorithm:
        raise MustNotSign("issuer-changed", f"CA {issuer.id!r} signs with {issuer.algorithm} now.")
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


def sign(intent: Intent, issuer: SigningCertificate, signer: Signer) -> bytes:
    """The certificate in DER. With a deterministic signer, the same intent gives the same bytes."""
    return finish(prepare(intent, issuer), signer)


def _subject(intent: Intent) -> x509.Name:
    if intent.common_name is None:
        return x509.Name([])
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, intent.common_name)])


def _extensions(intent: Intent, key: PublicKey, issuer: SigningCertificate) -> list[tuple[x509.ExtensionType, bool]]:
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
    entries += [x509.IPAddress(ipaddress.ip_address(ip)) for ip in intent.ips]
    return x509.SubjectAlternativeName(entries + [x509.UniformResourceIdentifier(uri) for uri in intent.uris])


def authority_key(issuer: SigningCertificate) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier(issuer.key_identifier, None, None)


def distribution_points(url: str) -> x509.CRLDistributionPoints:
    place = [x509.UniformResourceIdentifier(url)]
    return x509.CRLDistributionPoints([x509.DistributionPoint(place, None, None, None)])


def _authority_information(url: str) -> x509.AuthorityInformationAccess:
    place = x509.UniformResourceIdentifier(url)
    return x509.AuthorityInformationAccess([x509.AccessDescription(AuthorityInformationAccessOID.CA_ISSUERS, place)])
