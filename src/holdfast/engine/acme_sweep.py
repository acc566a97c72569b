"""The periodic duties of the CA's ACME side: what expired says so, what nobody needs any more goes."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.engine.sweep import in_pages
from holdfast.operations.acme_orders import expired_problem
from holdfast.store import acme_authzs, acme_limits, acme_orders, journal
from holdfast.store.database import Store
from holdfast.store.tx import Tx


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
