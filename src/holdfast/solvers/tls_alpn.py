"""tls-alpn-01 (RFC 8737): the solver, the certificate that proves a name, and the TLS context that shows it."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
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
from holdfast.solvers.base import never
from holdfast.solvers.http_store import Delete, Put

ALPN: Final = "acme-tls/1"
ACME_IDENTIFIER: Final = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.31")  # id-pe-acmeIdentifier
_DAY: Final = timedelta(days=1)


class Shown(NamedTuple):
    """What is to be proved to a client that asks for this name."""

    identifier: Identifier
    key_authorization: str


class TlsAlpn:
    """Rows in the store, as for http-01; the listener of each replica shows them."""

    type = "tls-alpn-01"
    side_by_side = True

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


def identifier_of(server_name: str) -> Identifier:
    """The other way round. A name in the reverse tree always means the address: only for one does a CA ask for it."""
    labels = server_name.split(".")
    digits = labels[-3::-1]
    if re.fullmatch(r"(\d{1,3}\.){4}in-addr\.arpa", server_name):
        address = ".".join(digits)
    elif re.fullmatch(r"([0-9a-f]\.){32}ip6\.arpa", server_name):
        address = ":".join("".join(digits[at : at + 4]) for at in range(0, 32, 4))
    else:
        return Identifier("dns", server_name)
    try:
        return Identifier("ip", str(ipaddress.ip_address(address)))
    except ValueError:
        return Identifier("dns", server_name)


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


def plain_context() -> ssl.SSLContext:
    """It speaks acme-tls/1 and has no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # §4
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # nobody comes back
    context.set_alpn_protocols([ALPN])
    return context


def showing_context(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> ssl.SSLContext:
    context = plain_context()
    # The ssl module reads files only, and keys do not belong into any.
    handle = os.memfd_create("challenge", os.MFD_CLOEXEC)
    try:
        os.write(handle, certificate.public_bytes(Encoding.PEM) + keys.to_pem(key).reveal())
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
    return context
