"""Issued certificates of ACME clients: collect, revoke, when to renew, and whether they were delivered.

RFC 8555 §7.4.2 and §7.6; RFC 9773.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from cryptography import x509

from holdfast.core.own_ca.ca import CaMode, DeliveryLevel, IssuedCertificate
from holdfast.core.own_ca.problem import AcmeError
from holdfast.core.revocation_reason import RevocationReason
from holdfast.operations.acme.context import AcmeContext, Requester, admitted, require
from holdfast.operations.own_ca import revocation
from holdfast.operations.own_ca.authorities import Authority
from holdfast.operations.own_ca.revocation import RevocationRight
from holdfast.pki import ari, keys
from holdfast.store import journal
from holdfast.store.acme import authorizations
from holdfast.store.database import Store
from holdfast.store.marks import inline
from holdfast.store.own_ca import certificates
from holdfast.store.tx import Tx

RENEWAL_RETRY_AFTER: Final = 6 * 3600  # seconds


async def download(acme_context: AcmeContext, who: Requester, certificate_id: str) -> IssuedCertificate:
    def look(tx: Tx) -> IssuedCertificate:
        standing, found = certificates.asked_by(tx, who.account, certificate_id)
        admitted(standing, who)
        if found is None:
            raise AcmeError.malformed("There is no such certificate.", status=404)
        if found.account != who.account:
            raise AcmeError.unauthorized("The certificate belongs to another account.")
        return found

    return await acme_context.db.read(inline(look))


def fetched(acme_context: AcmeContext, account: str, certificate_id: str) -> None:
    """Its bytes were sent. Evidence, written with more of its kind, off the path of any request."""
    acme_context.delivered("fetched", certificate_id, account)


def acknowledged(acme_context: AcmeContext, account: str, certificate_id: str) -> None:
    """The client came back with the nonce of the download: it has read at least the headers of that reply."""
    acme_context.delivered("acknowledged", certificate_id, account)


async def revoke(
    acme_context: AcmeContext,
    ca: Authority,
    der: bytes,
    reason: int | None,
    *,
    who: Requester | None,
    key_spki: bytes | None,
) -> None:
    """Revoke (§7.6) for the certificate's account, an account that has proved all its names, or its own key."""
    certificate = _parsed(der)
    why = _reason(reason)
    job = acme_context.random.new_id("job")

    def write(tx: Tx) -> None:
        if who is not None:
            require(tx, who)
        found = certificates.by_serial(tx, ca.id, f"{certificate.serial_number:x}")
        if found is None or found.der != der:
            raise AcmeError.malformed("This CA did not issue that certificate.", status=404)
        by_key = key_spki is not None and keys.spki_sha256(key_spki).hex() == found.spki_sha256
        standing = RevocationRight.KEY if by_key else None if who is None else _standing(tx, ca, who, found)
        if standing is None:
            raise AcmeError.unauthorized("Neither this account nor this key may revoke that certificate.")
        actor = f"acme:{who.account}" if who is not None else "acme:certificate-key"
        if not revocation.revoke(tx, found, why, actor=actor, job=job, standing=standing):
            raise AcmeError.already_revoked("That certificate is revoked already.")
        if by_key:
            certificates.deliver(tx, DeliveryLevel.ACKNOWLEDGED, [(found.id, found.account)])

    await acme_context.db.write(write)


def _standing(tx: Tx, ca: Authority, who: Requester, found: IssuedCertificate) -> RevocationRight | None:
    if found.account == who.account:
        return RevocationRight.OWNER
    trusted = ca.options.mode is CaMode.TRUST
    proved = authorizations.holds_all(tx, who.account, found.identifiers, tx.now(), trusted=trusted)
    return RevocationRight.NAMES if proved else None


def _parsed(der: bytes) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(der)
    except ValueError:
        raise AcmeError.malformed("The certificate cannot be read.") from None


def _reason(reason: int | None) -> RevocationReason:
    try:
        return RevocationReason.of(0 if reason is None else reason)
    except ValueError:
        allowed = ", ".join(str(each.number) for each in RevocationReason)
        raise AcmeError.bad_revocation_reason(f"A reason is one of {allowed}.") from None


async def renewal_info(acme_context: AcmeContext, ca: Authority, cert_id: str) -> ari.Window:
    """When this certificate should be renewed; anyone may ask (RFC 9773 §4.1)."""
    try:
        key_identifier, serial = ari.parse_cert_id(cert_id)
    except ValueError as error:
        raise AcmeError.malformed(f"Not a certificate identifier: {error}.") from None
    found = None
    if key_identifier == ca.issuer.key_identifier:
        found = await acme_context.db.read(lambda tx: certificates.by_serial(tx, ca.id, serial))
    if found is None:
        raise AcmeError.malformed("This CA did not issue that certificate.", status=404)
    return ari.window(found.not_before, found.not_after, revoked_at=found.revoked_at)


MOST: int = 10_000  # beyond that, evidence is dropped: unknown is shown as unknown


class Deliveries:
    """Remembers deliveries until `flush` writes them; a crash that loses them loses no certificate."""

    def __init__(self, db: Store) -> None:
        self._db = db
        self._seen: dict[DeliveryLevel, dict[tuple[str, str], None]] = {
            level: {} for level in DeliveryLevel if level is not DeliveryLevel.OFFERED
        }

    def __call__(self, level: str, certificate: str, account: str) -> None:
        seen = self._seen[DeliveryLevel(level)]
        if len(seen) < MOST:
            seen[certificate, account] = None

    async def flush(self) -> int:
        """Write the deliveries gathered so far; after a failure they are kept for the next flush."""
        taken = {level: tuple(seen) for level, seen in self._seen.items() if seen}
        if not taken:
            return 0
        await self._db.write(lambda tx: _write(tx, taken))
        for level, delivered in taken.items():
            for each in delivered:
                self._seen[level].pop(each, None)
        return sum(map(len, taken.values()))


def _write(tx: Tx, taken: dict[DeliveryLevel, tuple[tuple[str, str], ...]]) -> None:
    for level, delivered in taken.items():
        for start in range(0, len(delivered), 100):
            certificates.deliver(tx, level, delivered[start : start + 100])


async def tell_uncollected(db: Store, after: timedelta) -> int:
    """Say once of each certificate that was issued and never collected; nothing is deleted because of it."""
    total = 0
    while told := await db.write(lambda tx: _tell(tx, after)):
        total += told
    return total


def _tell(tx: Tx, after: timedelta) -> int:
    waiting: Sequence[IssuedCertificate] = certificates.uncollected(tx, tx.now() - after)
    for each in waiting:
        names = [identifier.value for identifier in each.identifiers]
        journal.event(tx, "certificate.uncollected", each.id, account=each.account, names=names, serial=each.serial)
    if waiting:
        certificates.alerted(tx, [each.id for each in waiting])
    return len(waiting)
