"""ACME orders, authorizations and challenges that nobody can use any more: found and deleted, a page at a time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast.store.tx import Tx, to_micros, value_list

PAGE = 500


class Looked(NamedTuple):
    """What a page of orders held: those that may go, and after which id to go on; "" when the rest is too young."""

    over: list[str]
    after: str


def forget_authzs(tx: Tx, before: datetime, limit: int = PAGE) -> int:
    """Delete authorizations that ended before then, with their challenges; never what an open order still needs."""
    rows = tx.rows(
        """SELECT id FROM acme_authzs
            WHERE state IN ('invalid', 'deactivated', 'expired', 'revoked') AND expires_at < :before
              AND NOT EXISTS (SELECT 1 FROM acme_challenges c WHERE c.authz_id = acme_authzs.id
                                                                AND c.state = 'processing')
              AND NOT EXISTS (SELECT 1 FROM acme_order_authzs l JOIN acme_orders o ON o.id = l.order_id
                               WHERE l.authz_id = acme_authzs.id AND o.state IN ('pending', 'ready', 'processing'))
            ORDER BY expires_at LIMIT :limit /* FOR UPDATE SKIP LOCKED */""",
        before=before,
        limit=limit,
    )
    if rows:
        text, values = value_list([(row["id"],) for row in rows])
        tx.run(f"DELETE FROM acme_challenges WHERE authz_id IN ({text})", **values)
        tx.run(f"DELETE FROM acme_order_authzs WHERE authz_id IN ({text})", **values)
        tx.run(f"DELETE FROM acme_authzs WHERE id IN ({text})", **values)
    return len(rows)


def forget_refused(tx: Tx, before: datetime, limit: int = PAGE) -> int:
    """Delete orders without a certificate that ended before then. What they meant to sign stays on record."""
    rows = tx.rows(
        """SELECT id FROM acme_orders WHERE state = 'invalid' AND expires_at < :before
              AND NOT EXISTS (SELECT 1 FROM listener_certificates l WHERE l.order_id = acme_orders.id)
            ORDER BY expires_at LIMIT :limit /* FOR UPDATE SKIP LOCKED */""",
        before=before,
        limit=limit,
    )
    return forget(tx, [row["id"] for row in rows])


def look_for_over(tx: Tx, *, kept_for: timedelta, after: str, limit: int) -> Looked:
    """The next page of orders by age, and of these the valid ones whose certificate ended so long ago.

    A client may fetch its order, and through it the certificate, for as long as that is of use to anybody.
    """
    before = tx.now() - kept_for
    rows = tx.rows(
        """SELECT o.id, o.created_at,
                  o.state = 'valid' AND c.not_after < :before
                  AND NOT EXISTS (SELECT 1 FROM listener_certificates l WHERE l.order_id = o.id) AS over
             FROM acme_orders o LEFT JOIN ca_certificates c ON c.id = o.certificate
            WHERE o.id > :after ORDER BY o.id LIMIT :limit""",
        before=before,
        after=after,
        limit=limit,
    )
    old = [row for row in rows if row["created_at"] < to_micros(before)]
    more = len(rows) == limit and len(old) == limit
    return Looked([row["id"] for row in old if row["over"]], rows[-1]["id"] if more else "")


def forget(tx: Tx, orders: list[str]) -> int:
    if not orders:
        return 0
    text, values = value_list([(order,) for order in orders])
    tx.run(f"DELETE FROM acme_order_authzs WHERE order_id IN ({text})", **values)
    return tx.run(f"DELETE FROM acme_orders WHERE id IN ({text}) AND state IN ('valid', 'invalid')", **values)
