"""tls-alpn-01 (RFC 8737): a certificate shown over TLS holds the digest of the key authorization."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from holdfast.pki import der
from holdfast.ports import Tls
from holdfast.validators.dialer import SafeDialer
from holdfast.validators.verdict import ChallengeFailed, ChallengeToCheck, Trace

# ── Extensions of a certificate ──
# The extensions of a certificate, undecoded: OID, critical or not, and the bytes.
#
# `cryptography` reads all of them or none, and refuses certificates for extensions that do not matter here:
# `basicConstraints = CA:FALSE, pathlen:0`, for one, which a widespread client puts into every challenge certificate.


_EXTENSIONS: Final = 0xA3  # [3], after all that is not optional (RFC 5280 §4.1)
_OID, _BOOLEAN, _OCTETS = 0x06, 0x01, 0x04
_TRUE: Final = b"\xff"


class Extension(NamedTuple):
    critical: bool
    content: bytes


class _Part(NamedTuple):
    tag: int
    content: bytes


def read_extensions(certificate: x509.Certificate) -> dict[bytes, Extension]:
    """By the encoded OID. ValueError if it is no list of extensions, or names one twice (RFC 5280 §4.2)."""
    [content] = _parts(certificate.tbs_certificate_bytes)
    found = dict[bytes, Extension]()
    for listed in (part for part in _parts(content.content) if part.tag == _EXTENSIONS):
        [each] = _parts(listed.content)
        for extension in _parts(each.content):
            oid, parsed = _extension(extension)
            if oid in found:
                raise ValueError("an extension comes twice")
            found[oid] = parsed
    return found


def _extension(part: _Part) -> tuple[bytes, Extension]:
    oid, *critical, content = _parts(part.content)
    if [oid.tag, *(each.tag for each in critical), content.tag] not in ([_OID, _OCTETS], [_OID, _BOOLEAN, _OCTETS]):
        raise ValueError("an extension is of another form")
    return oid.content, Extension(critical == [_Part(_BOOLEAN, _TRUE)], content.content)


def _parts(data: bytes) -> list[_Part]:
    """The parts of a DER sequence, each with its tag (X.690 §8.1); lengths of up to three octets."""
    found, at = [], 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1] if at + 1 < len(data) else 0x80, at + 2
        if size >= 0x80:
            octets = size & 0x7F
            if not 0 < octets <= 3:
                raise ValueError("a length is of another form")
            size, at = int.from_bytes(data[at : at + octets], "big"), at + octets
        if at + size > len(data):
            raise ValueError("a part is longer than the whole")
        found.append(_Part(tag, data[at : at + size]))
        at += size
    return found


# ── The challenge ──
# tls-alpn-01 (RFC 8737, for addresses RFC 8738 §6): a self-signed certificate, shown to clients that speak acme-tls/1.


ALPN: Final = "acme-tls/1"
ACME_IDENTIFIER: Final = der.object_identifier("1.3.6.1.5.5.7.1.31")[2:]  # id-pe-acmeIdentifier
SUBJECT_ALT_NAME: Final = der.object_identifier("2.5.29.17")[2:]
_DNS_NAME, _IP_ADDRESS = 0x82, 0x87  # tags of GeneralName (RFC 5280 §4.2.1.6)


async def check(challenge: ChallengeToCheck, dialer: SafeDialer, port: int, trace: Trace) -> None:
    """Return if the response is there; raise ChallengeFailed if not. After the handshake nothing more is sent (§3)."""
    if challenge.wildcard:
        raise ChallengeFailed("rejectedIdentifier", "A wildcard cannot be proved by tls-alpn-01 (RFC 8737 §3).")
    tls = Tls(server_name=server_name(challenge), alpn=(ALPN,))
    line = await dialer.connect(challenge.identifier, port, trace, tls=tls)
    line.stream.close()
    if line.stream.alpn != ALPN:
        raise ChallengeFailed("incorrectResponse", f"{challenge.identifier} did not choose the protocol {ALPN}.")
    if problem := wrong(line.stream.certificate, challenge):
        raise ChallengeFailed("incorrectResponse", f"{challenge.identifier} showed a certificate {problem}.")


def server_name(challenge: ChallengeToCheck) -> str:
    """An address has no SNI, so its name in the reverse tree is used (RFC 8738 §6)."""
    if challenge.identifier_type == "ip":
        return ipaddress.ip_address(challenge.identifier).reverse_pointer
    return challenge.identifier


def wrong(certificate: bytes | None, challenge: ChallengeToCheck) -> str | None:
    """Why a certificate is not the challenge response, to follow "a certificate"; None if it is."""
    if certificate is None:
        return "that is missing"
    try:
        found = x509.load_der_x509_certificate(certificate)
        listed = read_extensions(found)
    except ValueError:
        return "that cannot be read"
    if not _self_signed(found):
        return "that is not self-signed"
    return _wrong_name(listed, challenge) or _wrong_digest(listed, challenge.key_authorization)


def _self_signed(certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(certificate)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _wrong_name(listed: Mapping[bytes, Extension], challenge: ChallengeToCheck) -> str | None:
    """One name and nothing else: so there is one encoding of it, save for the case of its letters (§3)."""
    found = listed.get(SUBJECT_ALT_NAME)
    if found is None:
        return "without a subjectAltName"
    name = _encoded(challenge)
    expected = der.sequence(der.tlv(_IP_ADDRESS if challenge.identifier_type == "ip" else _DNS_NAME, name))
    head, tail = found.content[: -len(name)], found.content[-len(name) :]
    if challenge.identifier_type == "dns":
        tail = tail.lower()
    return None if head + tail == expected else "for another name, or for more than one"


def _encoded(challenge: ChallengeToCheck) -> bytes:
    if challenge.identifier_type == "ip":
        return ipaddress.ip_address(challenge.identifier).packed
    return challenge.identifier.encode("ascii")


def _wrong_digest(listed: Mapping[bytes, Extension], key_authorization: str) -> str | None:
    found = listed.get(ACME_IDENTIFIER)
    if found is None:
        return "without the acmeIdentifier extension"
    if not found.critical:
        return "whose acmeIdentifier extension is not critical"
    expected = der.octet_string(sha256(key_authorization.encode()).digest())
    same = hmac.compare_digest(found.content, expected)
    return None if same else "with the wrong digest in its acmeIdentifier extension"
