"""tls-alpn-01 (RFC 8737, for addresses RFC 8738 §6): a self-signed certificate, shown to whoever speaks acme-tls/1."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from holdfast.pki import der
from holdfast.ports import Tls
from holdfast.validators import extensions
from holdfast.validators.dialer import SafeDialer
from holdfast.validators.extensions import Extension
from holdfast.validators.verdict import Challenge, Failed, Trace

ALPN: Final = "acme-tls/1"
ACME_IDENTIFIER: Final = der.object_identifier("1.3.6.1.5.5.7.1.31")[2:]  # id-pe-acmeIdentifier
SUBJECT_ALT_NAME: Final = der.object_identifier("2.5.29.17")[2:]
_DNS_NAME, _IP_ADDRESS = 0x82, 0x87  # tags of GeneralName (RFC 5280 §4.2.1.6)


async def check(challenge: Challenge, dialer: SafeDialer, port: int, trace: Trace) -> None:
    """Return if the proof is there; Failed if not. After the handshake nothing more is said (§3)."""
    if challenge.wildcard:
        raise Failed("rejectedIdentifier", "A wildcard cannot be proved by tls-alpn-01 (RFC 8737 §3).")
    tls = Tls(server_name=server_name(challenge), alpn=(ALPN,))
    line = await dialer.connect(challenge.identifier, port, trace, tls=tls)
    line.stream.close()
    if line.stream.alpn != ALPN:
        raise Failed("incorrectResponse", f"{challenge.identifier} did not choose the protocol {ALPN}.")
    if problem := wrong(line.stream.certificate, challenge):
        raise Failed("incorrectResponse", f"{challenge.identifier} showed a certificate {problem}.")


def server_name(challenge: Challenge) -> str:
    """An address has no SNI, so its name in the reverse tree is used (RFC 8738 §6)."""
    if challenge.identifier_type == "ip":
        return ipaddress.ip_address(challenge.identifier).reverse_pointer
    return challenge.identifier


def wrong(certificate: bytes | None, challenge: Challenge) -> str | None:
    """What is wrong with it, to follow "a certificate"; None if it is the proof."""
    if certificate is None:
        return "that is missing"
    try:
        found = x509.load_der_x509_certificate(certificate)
        listed = extensions.read(found)
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


def _wrong_name(listed: Mapping[bytes, Extension], challenge: Challenge) -> str | None:
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


def _encoded(challenge: Challenge) -> bytes:
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
