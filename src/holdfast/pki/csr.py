"""Certificate signing requests (PKCS#10, RFC 2986): what may be asked of us, and how we ask others.

Names, key and must-staple are read from a CSR; every other field of the certificate comes from our profile. An
extension or attribute that we do not know is refused, rather than left out of the certificate.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

from holdfast.pki import keys, names
from holdfast.pki.keys import PrivateKey, PublicKey
from holdfast.pki.refused import CsrRefused, KeyRefused, NameRefused, PkiRefused
from holdfast.pki.signing import DIGESTS, algorithm_of

MAX_CSR: Final = 64 * 1024
MAX_NAMES: Final = 100
MAX_COMMON_NAME: Final = 64  # RFC 5280 appendix A: ub-common-name

_PEM: Final = re.compile(
    rb"\s*-----BEGIN (NEW )?CERTIFICATE REQUEST-----\s([A-Za-z0-9+/=\s]*)-----END (?:NEW )?CERTIFICATE REQUEST-----\s*"
)
# Left by OpenSSL and by Windows in every request they make; they ask for nothing that our profile decides otherwise.
_IGNORED: Final = frozenset(
    {
        ExtensionOID.SUBJECT_KEY_IDENTIFIER.dotted_string,
        "1.2.840.113549.1.9.15",  # S/MIME capabilities
        "1.3.6.1.4.1.311.20.2",  # Microsoft: certificate template, by name
        "1.3.6.1.4.1.311.21.7",  # Microsoft: certificate template, by number
        "1.3.6.1.4.1.311.21.10",  # Microsoft: application policies, which repeat the extended key usage
    }
)
_EXTENSION_REQUESTS: Final = frozenset({"1.2.840.113549.1.9.14", "1.3.6.1.4.1.311.2.1.14"})  # RFC 2985; Microsoft's own
_USES: Final = frozenset({ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH})
# The version of a request that says 2 or 3, as some clients write for want of a better number. Other CAs do not look.
_HEAD: Final = rb"\x30(?:[\x00-\x7f]|\x81.|\x82..|\x83...)"
_VERSION: Final = re.compile(rb"\A(" + _HEAD + _HEAD + rb"\x02\x01)[\x01\x02]", re.DOTALL)
_WEAK: Final = (hashes.MD5, hashes.SHA1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRequest:
    """The checked content of a CSR: every name in its one spelling, in the order of the CSR."""

    names: tuple[str, ...]  # DNS names; a wildcard begins with "*."
    ips: tuple[str, ...]
    spki: bytes  # the public key, in DER
    common_name: str | None = None  # always one of names or ips
    must_staple: bool = False  # RFC 7633: status_request
    uris: tuple[str, ...] = ()  # never from a CSR: we say who an agent is

    @property
    def public_key(self) -> PublicKey:
        return keys.from_spki(self.spki)


def parse(content: bytes, *, ed25519_allowed: bool = False, must_staple_allowed: bool = False) -> CertificateRequest:
    """Read a request in DER or PEM, or raise CsrRefused for the first rule that it breaks."""
    csr = _read(content)
    try:
        key = _key(csr, ed25519_allowed=ed25519_allowed)  # before the signature: a giant key would make that slow
        _check_signature(csr, _der(content))
        extensions = _extensions(csr)
        must_staple = _check_extensions(extensions, must_staple_allowed=must_staple_allowed)
        dns, ips = _alternative_names(extensions)
        common_name = _common_name(csr, dns, ips)
    except (NameRefused, KeyRefused) as refused:
        raise CsrRefused(refused.code, str(refused), refused.hint) from None
    if not dns and not ips:
        raise CsrRefused("csr-no-names", "The request has no name.", "Put the names into subjectAltName.")
    if len(dns) + len(ips) > MAX_NAMES:
        raise _too_many_names()
    return CertificateRequest(
        names=tuple(dns), ips=tuple(ips), spki=keys.spki(key), common_name=common_name, must_staple=must_staple
    )


def for_agent(content: bytes, uri: str) -> CertificateRequest:
    """The request of an agent for its identity: it has a key and no name, because the server says who it is."""
    csr = _read(content)
    try:
        key = _key(csr, ed25519_allowed=True)
        _check_signature(csr, _der(content))
        dns, ips = _alternative_names(_extensions(csr))
        common_name = _common_name(csr, dns, ips)
    except (NameRefused, KeyRefused) as refused:
        raise CsrRefused(refused.code, str(refused), refused.hint) from None
    if dns or ips or common_name:
        raise CsrRefused("csr-agent-names", "The request of an agent names itself; the server gives it its name.")
    return CertificateRequest(names=(), ips=(), uris=(uri,), spki=keys.spki(key))


def key_of(content: bytes) -> PublicKey:
    """The key of a CSR that we made ourselves, whose other fields need no second check."""
    return _key(_read(content), ed25519_allowed=True)


# ── The parts of a request ──


def _read(content: bytes) -> x509.CertificateSigningRequest:
    if len(content) > MAX_CSR:
        raise CsrRefused("csr-too-large", f"A request has at most {MAX_CSR} bytes; this one has {len(content)}.")
    try:
        csr = x509.load_der_x509_csr(_VERSION.sub(rb"\1\0", _der(content)))
        csr.subject  # noqa: B018  (each of these is read only now)
        csr.attributes  # noqa: B018
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CsrRefused("csr-malformed", "This is not a certificate signing request (PKCS#10).") from None
    except x509.InvalidVersion:
        raise CsrRefused("csr-version", "The request has a version other than 1 (RFC 2986 §4.1).") from None
    return csr


def _der(content: bytes) -> bytes:
    return _der_of_pem(content) if content.lstrip()[:5] == b"-----" else content


def _der_of_pem(content: bytes) -> bytes:
    """One block and nothing else: of two requests, which one was meant?"""
    match = _PEM.fullmatch(content)
    try:
        return base64.b64decode(b"".join(match[2].split()), validate=True) if match else b""
    except ValueError:
        return b""


def _key(csr: x509.CertificateSigningRequest, *, ed25519_allowed: bool) -> PublicKey:
    try:
        key = csr.public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise CsrRefused("key-malformed", "The public key of the request cannot be read.") from None
    keys.check_key(key, ed25519_allowed=ed25519_allowed)
    return key  # type: ignore[return-value]  # check_key let through only these


def _check_signature(csr: x509.CertificateSigningRequest, sent: bytes) -> None:
    """The signature proves that the sender holds the private key; with a weak hash others could forge it."""
    try:
        if isinstance(csr.signature_hash_algorithm, _WEAK):
            raise CsrRefused("csr-signature-weak", "The request is signed with SHA-1 or MD5.", "Use SHA-256.")
        whole = csr.public_bytes(Encoding.DER).endswith(b"\0" + csr.signature)  # of octets: no bit of it is unused
        good = whole and _is_signed(csr, sent)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        good = False
    if not good:
        raise CsrRefused("csr-signature", "The signature of the request does not match its key.")


def _is_signed(csr: x509.CertificateSigningRequest, sent: bytes) -> bool:
    """`sent` is the request with the version that it was signed with."""
    read = csr.public_bytes(Encoding.DER)
    if read == sent:
        return csr.is_signature_valid
    begin, size = read.index(csr.tbs_certrequest_bytes), len(csr.tbs_certrequest_bytes)
    key: Any = csr.public_key()
    how: list[Any] = [] if isinstance(key, ed25519.Ed25519PublicKey) else [csr.signature_algorithm_parameters]
    how += [csr.signature_hash_algorithm] if isinstance(key, rsa.RSAPublicKey) else []
    try:
        key.verify(csr.signature, sent[begin : begin + size], *how)
    except InvalidSignature:
        return False
    return True


def _extensions(csr: x509.CertificateSigningRequest) -> x509.Extensions:
    asked = [each for each in csr.attributes if each.oid.dotted_string in _EXTENSION_REQUESTS]
    if len(asked) > 1:
        raise CsrRefused("csr-extensions-twice", "The request has two lists of extensions.")
    try:
        return csr.extensions
    except x509.DuplicateExtension as error:
        raise CsrRefused("csr-extension-twice", f"Extension {error.oid.dotted_string} is there twice.") from None
    except x509.UnsupportedGeneralNameType:
        raise _wrong_type() from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CsrRefused("csr-extensions-malformed", "The extensions of the request cannot be read.") from None


def _check_extensions(extensions: x509.Extensions, *, must_staple_allowed: bool) -> bool:
    """Refuse extensions that we do not grant; return whether the CSR asks for must-staple."""
    must_staple = False
    for extension in extensions:
        match extension.value:
            case x509.SubjectAlternativeName():
                pass
            case x509.BasicConstraints(ca=ca):
                if ca:
                    raise CsrRefused("csr-ca", "The request asks for a CA certificate.")
            case x509.KeyUsage() as usage:
                if usage.key_cert_sign or usage.crl_sign:
                    raise CsrRefused("csr-key-usage", "The request asks for a key that signs certificates or CRLs.")
            case x509.ExtendedKeyUsage() as uses:
                _check_uses(uses)
            case x509.TLSFeature() as features:
                must_staple = _staple(features, allowed=must_staple_allowed)
            case _ if extension.oid.dotted_string not in _IGNORED or extension.critical:
                raise CsrRefused(
                    "csr-extension",
                    f"The request asks for extension {extension.oid.dotted_string}, which we never set.",
                )
    return must_staple


def _check_uses(uses: x509.ExtendedKeyUsage) -> None:
    for use in uses:
        if use not in _USES:
            raise CsrRefused(
                "csr-extended-key-usage",
                f"The request asks for the use {use.dotted_string}; only serverAuth and clientAuth can be had.",
            )


def _staple(features: x509.TLSFeature, *, allowed: bool) -> bool:
    if list(features) != [x509.TLSFeatureType.status_request]:
        raise CsrRefused("csr-tls-feature", "The only TLS feature that can be asked for is status_request.")
    if not allowed:
        raise CsrRefused("csr-must-staple", "Must-staple certificates are not issued here (RFC 7633).")
    return True


def _alternative_names(extensions: x509.Extensions) -> tuple[list[str], list[str]]:
    try:
        entries = list(extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return [], []
    if len(entries) > MAX_NAMES:
        raise _too_many_names()
    dns, ips = dict[str, None](), dict[str, None]()  # sets that keep their order
    for entry in entries:
        match entry:
            case x509.DNSName(value=text):
                dns[names.dns_name(text)] = None
            case x509.IPAddress(value=ipaddress.IPv4Address() | ipaddress.IPv6Address() as address):
                ips[names.checked(address)] = None
            case x509.IPAddress():
                raise CsrRefused("ip-network", "The request asks for a network, not for the address of one host.")
            case x509.RFC822Name():
                raise CsrRefused("csr-email", "The request asks for an e-mail address.")
            case x509.UniformResourceIdentifier():
                raise CsrRefused("csr-uri", "The request asks for a URI.")
            case _:
                raise _wrong_type()
    return list(dns), list(ips)


def _common_name(csr: x509.CertificateSigningRequest, dns: list[str], ips: list[str]) -> str | None:
    """The common name, in its one spelling; added to the names if it is not among them (RFC 8555 §7.4)."""
    found = csr.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if not found:
        return None
    if len(found) > 1:
        raise CsrRefused("csr-common-names", "The request has more than one common name.")
    text = found[0].value
    if not isinstance(text, str) or not text:
        raise CsrRefused("csr-common-name", "The common name is empty or not text.")
    if len(text) > MAX_COMMON_NAME:
        raise CsrRefused("csr-common-name-long", f"A common name has at most {MAX_COMMON_NAME} characters.")
    try:
        address = names.checked(ipaddress.ip_address(text))
    except ValueError:
        name = names.dns_name(text)
        dns += [] if name in dns else [name]
        return name
    ips += [] if address in ips else [address]
    return address


def _too_many_names() -> PkiRefused:
    return CsrRefused("csr-too-many-names", f"A certificate has at most {MAX_NAMES} names.")


def _wrong_type() -> PkiRefused:
    return CsrRefused("csr-name-type", "Only DNS names and IP addresses can be asked for.")


# ── Asking others ──


def to_der(content: bytes) -> bytes:
    """A CSR in DER or PEM, as DER."""
    return _der(content)


def to_pem(content: bytes) -> str:
    """A request in DER as most CAs want it."""
    return x509.load_der_x509_csr(content).public_bytes(Encoding.PEM).decode()


def build(
    dns: Iterable[str],
    key: PrivateKey,
    *,
    ips: Iterable[str] = (),
    must_staple: bool = False,
    common_name: bool = False,
) -> bytes:
    """A request in DER for these names. The same names and key give the same bytes, so it can be made again.

    `common_name`: the first name that is short enough is also written into the subject, for CAs that look there.
    """
    entries: list[x509.GeneralName] = [x509.DNSName(names.dns_name(name)) for name in dns]
    entries += [x509.IPAddress(ipaddress.ip_address(names.ip_address(text))) for text in ips]
    if not entries:
        raise CsrRefused("csr-no-names", "A request needs at least one name.")
    short = [each.value for each in entries if isinstance(each, x509.DNSName) and len(each.value) <= MAX_COMMON_NAME]
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, short[0])] if common_name and short else []
    builder = x509.CertificateSigningRequestBuilder(x509.Name(subject)).add_extension(
        x509.SubjectAlternativeName(entries), critical=True
    )
    if must_staple:
        builder = builder.add_extension(x509.TLSFeature([x509.TLSFeatureType.status_request]), critical=False)
    on_curve = isinstance(key, ec.EllipticCurvePrivateKey)
    csr = builder.sign(key, DIGESTS[algorithm_of(key.public_key())], ecdsa_deterministic=True if on_curve else None)
    return csr.public_bytes(Encoding.DER)
