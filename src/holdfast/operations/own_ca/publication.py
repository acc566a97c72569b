"""What a CA shows to everyone: its lists of revoked certificates, its own certificate, its chain and its root."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.core.own_ca.ca import CaRow, Crl, RootCrl
from holdfast.errors import StoreUnavailable
from holdfast.operations.own_ca.root_crls import mark_of
from holdfast.store.database import Store
from holdfast.store.own_ca import cas, crls, lost
from holdfast.store.tx import Tx

CRL_FRESH_FOR: Final = 300  # seconds; a revocation is to be seen soon, though the list would be good for days
CERTIFICATE_FRESH_FOR: Final = 3600
_LIST: Final = re.compile(r"(0|[1-9][0-9]{0,4})\.crl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A file as it is served, over plain HTTP: clients check its signature (RFC 5280 §8)."""

    content: bytes
    media_type: str
    tag: str
    fresh_for: int  # seconds


async def fetch(db: Store, ca: str, name: str) -> Published | None:
    """The file of this name, such as 0.crl or issuer.cer; None if there is none."""
    return await db.read(lambda tx: _list(tx, ca, name) if name.endswith(".crl") else _certificates(tx, ca, name))


def _list(tx: Tx, ca: str, name: str) -> Published | None:
    match = _LIST.fullmatch(name)
    found: Crl | RootCrl | None = None
    if match:
        found = crls.get(tx, ca, int(match[1]))
        if found is not None and found.number < lost.floor(tx, ca, int(match[1])):
            raise StoreUnavailable("a later CRL than the one that is here was published before; the next is awaited")
    elif name == "root.crl" and (row := cas.get(tx, ca)) is not None:
        found = crls.get_root_crl(tx, mark_of(row.root))
    if found is None:
        return None
    left = int((found.next_update - tx.now()).total_seconds())
    return Published(
        content=found.der,
        media_type="application/pkix-crl",
        tag=f"{found.number}-{_short(found.der)}",
        fresh_for=max(0, min(CRL_FRESH_FOR, left)),
    )


def _certificates(tx: Tx, ca: str, name: str) -> Published | None:
    row = cas.get(tx, ca)
    if row is None:
        return None
    match name:
        case "issuer.cer":  # DER, as §4.2.2.1 asks
            return _file(row.certificate, "application/pkix-cert")
        case "chain.pem":
            return _file(chain_pem(row).encode(), "application/pem-certificate-chain")
        case "root.pem":
            return _file(row.root.encode(), "application/x-pem-file")
        case _:
            return None


def chain_pem(row: CaRow) -> str:
    """What a server sends after its certificate: the issuer and what stands above it, without the root."""
    return x509.load_der_x509_certificate(row.certificate).public_bytes(Encoding.PEM).decode() + row.above


def _file(content: bytes, media_type: str) -> Published:
    return Published(content=content, media_type=media_type, tag=_short(content), fresh_for=CERTIFICATE_FRESH_FOR)


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
