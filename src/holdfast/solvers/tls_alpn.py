"""tls-alpn-01 (RFC 8737): the certificate that proves a name, and the TLS context that shows it to whoever asks."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from holdfast.core.acme import Identifier
from holdfast.issuers.base import Proof
from holdfast.pki import der, keys
from holdfast.ports import Clock
from holdfast.solvers.base import never
from holdfast.solvers.http_store import Delete, Put

ALPN: Final = "acme-tls/1"
ACME_IDENTIFIER: Final = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.31")  # id-pe-acmeIdentifier
_DAY: Final = timedelta(days=1)


class Shown(NamedTuple):
    """What is to be proved to a client that asks for this name."""

    identifier: Identifier
    key_authorization: str


Find = Callable[[str], Shown | None]  # by the name that the client sends; it cannot wait, as TLS does not


class TlsAlpn:
    """Rows in the store, as for http-01; the listener of each replica shows them."""

    type = "tls-alpn-01"

    def __init__(self, put: Put, delete: Delete) -> None:
        self._put = put
        self._delete = delete

    async def publish(self, proof: Proof) -> None:
        if proof.identifier.wildcard:
            raise never("A wildcard cannot be proved by tls-alpn-01 (RFC 8737 §3).")
        await self._put(proof)

    async def visible(self, proof: Proof) -> bool:
        return True

    async def clean(self, proof: Proof) -> None:
        await self._delete(proof)


def server_name(identifier: Identifier) -> str:
    """What the CA will ask for: an address has no SNI, so its name in the reverse tree is used (RFC 8738 §6)."""
    return ipaddress.ip_address(identifier.value).reverse_pointer if identifier.type == "ip" else identifier.value


def certificate_for(shown: Shown, key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    """Self-signed, for this name alone, with the digest of the key authorization in a critical extension (§3)."""
    named: x509.GeneralName = x509.DNSName(shown.identifier.value)
    if shown.identifier.type == "ip":
        named = x509.IPAddress(ipaddress.ip_address(shown.identifier.value))
    nobody = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "acme-tls/1 challenge")])
    digest = der.octet_string(sha256(shown.key_authorization.encode()).digest())
    builder = x509.CertificateBuilder(nobody, nobody, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - _DAY).not_valid_after(now + 7 * _DAY)
    builder = builder.add_extension(x509.SubjectAlternativeName([named]), critical=False)
    builder = builder.add_extension(x509.UnrecognizedExtension(ACME_IDENTIFIER, digest), critical=True)
    return builder.sign(key, hashes.SHA256())


def listening_context(find: Find, clock: Clock) -> ssl.SSLContext:
    """For a listener on port 443 that speaks acme-tls/1 and nothing else. It says nothing after the handshake.

    It has no certificate of its own: without a name that is being proved now there is no handshake.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    context = _context()

    def choose(line: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        shown = find((name or "").lower())
        if shown is None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        line.context = _showing(certificate_for(shown, key, clock.now()), key)
        return None

    context.sni_callback = choose
    return context


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # §4
    context.set_alpn_protocols([ALPN])
    return context


def _showing(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> ssl.SSLContext:
    context = _context()
    handle = os.memfd_create("challenge")  # the ssl module reads files only, and keys do not belong into any
    try:
        os.write(handle, certificate.public_bytes(Encoding.PEM) + keys.to_pem(key).reveal())
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
    return context
