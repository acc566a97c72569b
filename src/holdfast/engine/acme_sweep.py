"""The periodic duties of the CA's ACME side: what expired says so, what nobody needs any more goes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final

from holdfast.engine.sweep import in_pages
from holdfast.operations.acme_orders import expired_problem
from holdfast.store import acme_authzs, acme_ended, acme_limits, acme_orders, journal
from holdfast.store.database import Store
from holdfast.store.tx import Tx

AUTHZS_FOR: Final = timedelta(days=10)  # after their end: a client that missed a failure can still read why


async def forget(db: Store, history_for: timedelta, *, page: int = acme_ended.PAGE) -> int:
    """Delete what is over for so long that no client asks for it, and nothing else refers to it."""
    pages: list[Callable[[Tx], int]] = [
        lambda tx: acme_ended.forget_authzs(tx, tx.now() - AUTHZS_FOR, page),
        lambda tx: acme_ended.forget_refused(tx, tx.now() - history_for, page),
    ]
    return sum([await in_pages(db, each) for each in pages]) + await _forget_orders(db, history_for, page)


async def _forget_orders(db: Store, history_for: timedelta, page: int) -> int:
    """Orders with a certificate, the oldest first: most of those looked at stay, so the look itself locks nothing."""
    total, after = 0, ""
    while True:
        look = partial(acme_ended.look_for_over, kept_for=history_for, after=after, limit=page)
        over, after = await db.read(look)
        if over:
            total += await db.write(partial(acme_ended.forget, orders=over))
        if not after:
            return total


async def expire(db: Store) -> int:
    """Open orders and authorizations whose time is over. They were shown as such before: this only tidies."""
    pages: list[Callable[[Tx], int]] = [_orders, _authzs, lambda tx: acme_limits.forget(tx, tx.now())]
    return sum([await in_pages(db, page) for page in pages])


def _orders(tx: Tx) -> int:
    found = acme_orders.expired(tx, tx.now())
    for order in found:
        acme_orders.refuse(tx, order, expired_problem(), event="expired")
        journal.audit(tx, "order_expired", order)
    return len(found)


def _authzs(tx: Tx) -> int:
    found = acme_authzs.expired(tx, tx.now())
    for authz in found:
        acme_authzs.move(tx, authz, "expired")
        journal.audit(tx, "authz_expired", authz)
    return len(found)
