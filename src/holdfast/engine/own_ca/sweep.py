"""The periodic duties of the CA's ACME side: marks orders as expired, and deletes rows that are not needed any more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final

from holdfast.engine.sweep import in_pages
from holdfast.operations.acme.orders import expired_problem
from holdfast.store.acme import authorizations, orders
from holdfast.store.acme import limits as acme_limits
from holdfast.store.database import Store
from holdfast.store.tx import Tx

AUTHZS_FOR: Final = timedelta(days=10)  # after their end: a client that missed a failure can still read why


async def forget(db: Store, history_for: timedelta, *, page: int = orders.FORGET_PAGE) -> int:
    """Delete orders and authorizations that ended long ago and that nothing refers to."""
    pages: list[Callable[[Tx], int]] = [
        lambda tx: orders.forget_authzs(tx, tx.now() - AUTHZS_FOR, page),
        lambda tx: orders.forget_refused(tx, tx.now() - AUTHZS_FOR, page),
    ]
    return sum([await in_pages(db, each) for each in pages]) + await _forget_orders(db, history_for, page)


async def _forget_orders(db: Store, history_for: timedelta, page: int) -> int:
    """Orders with a certificate, the oldest first: most of those looked at stay, so the look itself locks nothing."""
    total, after = 0, ""
    while True:
        look = partial(orders.look_for_ended, kept_for=history_for, after=after, limit=page)
        over, after = await db.read(look)
        if over:
            total += await db.write(partial(orders.forget_orders, orders=over))
        if not after:
            return total


async def expire(db: Store) -> int:
    """Open orders and authorizations whose time is over. They were shown as such before: this only tidies.

    Nobody did anything, so no audit entry is written: a stranger's orders leave the one of their beginning.
    """
    pages: list[Callable[[Tx], int]] = [_orders, _authzs, lambda tx: acme_limits.forget(tx, tx.now())]
    return sum([await in_pages(db, page) for page in pages])


def _orders(tx: Tx) -> int:
    found = orders.expired(tx, tx.now())
    for order in found:
        orders.refuse(tx, order, expired_problem(), event="expired")
    return len(found)


def _authzs(tx: Tx) -> int:
    found = authorizations.expired(tx, tx.now())
    for authz in found:
        authorizations.move(tx, authz, "expired")
    return len(found)
