"""Raises alerts about certificates and signing certificates that expire soon: once for each threshold."""

from __future__ import annotations

from typing import Final

from holdfast.core.notifications.notification import ExpiringVersion, crossings
from holdfast.core.own_ca import ca
from holdfast.core.own_ca.ca import SigningCertificateExpiry
from holdfast.operations.own_ca import authorities
from holdfast.store import certificates, issuances, journal
from holdfast.store.database import Store
from holdfast.store.notifications import outages
from holdfast.store.tx import Tx

PAGE: Final = 200


async def sweep(db: Store) -> int:
    """Look at every version whose next threshold has passed, a page at a time; how many ends were told of."""
    total = await db.write(_issuers)
    while True:
        seen, told = await db.write(_page)
        total += told
        if seen < PAGE:
            return total


def _issuers(tx: Tx) -> int:
    """Our own CAs: they are few, so all are looked at."""
    return sum(_look_at_issuer(tx, each) for each in authorities.expiries(tx))


def _look_at_issuer(tx: Tx, end: SigningCertificateExpiry) -> bool:
    now = tx.now()
    found = ca.expiry_crossings(end, now, outages.told_of(tx, end.crossing_key))
    if found.told is None or not outages.cross(tx, end.crossing_key, found.owed, now):
        return False
    journal.event(
        tx,
        "ca.issuer_ends",
        end.ca,
        threshold=found.told,
        left_s=(end.not_after - now).total_seconds(),
        not_after=end.not_after.isoformat(),
        root_here=end.root_here,
    )
    return True


def _page(tx: Tx) -> tuple[int, int]:
    found = outages.to_look(tx, tx.now(), PAGE)
    return len(found), sum(_look(tx, each) for each in found)


def _look(tx: Tx, ending: ExpiringVersion) -> bool:
    now = tx.now()
    known = outages.told_of(tx, ending.version)
    found = crossings(ending.not_after - ending.not_before, ending.not_after, now, known)
    outages.look_again(tx, ending.version, found.next_at)
    if found.told is None or not ending.watched or not outages.cross(tx, ending.version, found.owed, now):
        return False
    certificate = certificates.get(tx, ending.certificate)
    planned = None if certificate is None else certificate.next_action_at
    under_way = issuances.under_way(tx, ending.certificate) is not None
    healthy = certificate is not None and certificate.failing is None
    soon = under_way or (planned is not None and planned < (found.next_at or now))
    journal.event(
        tx,
        "certificate.expires",
        ending.certificate,
        version=ending.version,
        threshold=found.told,
        left_s=(ending.not_after - now).total_seconds(),
        not_after=ending.not_after.isoformat(),
        next=None if planned is None else planned.isoformat(),
        under_way=under_way,
        in_hand=healthy and soon,
    )
    return True
