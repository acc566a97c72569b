"""Our own CA, asked from inside: orders without challenges, their certificates, revocation, and renewal times."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.core.acme import Identifier, Order
from holdfast.operations import acme_names, revocation
from holdfast.operations import acme_orders as verbs
from holdfast.operations.authorities import Authority
from holdfast.operations.desk import Desk
from holdfast.pki import ari
from holdfast.pki.crl import Reason
from holdfast.store import acme_orders, ca_certificates
from holdfast.store.ca_certificates import Issued
from holdfast.store.tx import Tx


class Found(NamedTuple):
    order: Order
    issued: Issued | None


def account_of(ca: Authority) -> str:
    """The account under which certificates are kept from this CA."""
    return f"acct_kept_{ca.id}"


async def order(
    desk: Desk,
    ca: Authority,
    *,
    order_id: str,
    identifiers: tuple[Identifier, ...],
    content: bytes,
    profile: str | None,
    not_after: datetime | None,
) -> Order:
    """The order of this id, placed and finalized in one; the certificate is signed by the job of all orders."""
    acme_names.check_allowed(ca, identifiers)
    return await verbs.place_internal(
        desk,
        ca,
        account=account_of(ca),
        identifiers=identifiers,
        content=content,
        profile=profile,
        not_after=not_after,
        order_id=order_id,
    )


async def find(desk: Desk, order_id: str) -> Found | None:
    def read(tx: Tx) -> Found | None:
        found = acme_orders.get(tx, order_id)
        if found is None:
            return None
        return Found(found, None if found.certificate is None else ca_certificates.get(tx, found.certificate))

    return await desk.db.read(read)


def chain(ca: Authority, issued: Issued) -> bytes:
    return x509.load_der_x509_certificate(issued.der).public_bytes(Encoding.PEM) + ca.chain_pem


async def revoke(desk: Desk, ca: Authority, der: bytes, reason: int, *, actor: str) -> bool:
    """False if this CA did not issue it; once revoked it stays so, however often this is asked."""
    serial, job = f"{x509.load_der_x509_certificate(der).serial_number:x}", desk.random.new_id("job")

    def write(tx: Tx) -> bool:
        found = ca_certificates.by_serial(tx, ca.id, serial)
        if found is None or found.der != der:
            return False
        revocation.revoke(tx, found, Reason(reason), actor=actor, job=job)
        return True

    return await desk.db.write(write)


async def window(desk: Desk, ca: Authority, der: bytes) -> ari.Window | None:
    """When it should be renewed; at once if it was revoked."""
    serial = f"{x509.load_der_x509_certificate(der).serial_number:x}"
    found = await desk.db.read(lambda tx: ca_certificates.by_serial(tx, ca.id, serial))
    return None if found is None else ari.window(found.not_before, found.not_after, revoked_at=found.revoked_at)
