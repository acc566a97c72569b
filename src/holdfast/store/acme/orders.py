"""ACME orders: what an account asked for, and how far it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from holdfast.core.own_ca.acme import ORDER_MOVES, Order, OrderState, sources
from holdfast.core.own_ca.problem import Problem
from holdfast.store.acme import accounts
from holdfast.store.acme.accounts import AccountStatus
from holdfast.store.rows import IDENTIFIERS_ONCE, Table
from holdfast.store.tx import Change, Tx, change, from_micros, to_micros, value_list
from holdfast.store.work import jobs

PAGE = 200
_ONCE: Final = {"identifiers": IDENTIFIERS_ONCE}
TABLE: Final = Table(Order, "acme_orders", codecs=_ONCE)
_NEW: Final = Table(Order, "acme_orders", codecs=_ONCE, without={"error", "certificate"})  # it has neither yet
_INSERT: Final = f"{_NEW.inserting('likeness')} ON CONFLICT DO NOTHING"


def insertion(order: Order, likeness: str) -> Change:
    """Add an order; nothing is added if the account has one like it that can still be used."""
    return change(_INSERT, **_NEW.values(order), likeness=likeness)


def get(tx: Tx, order: str) -> Order | None:
    row = tx.row(f"SELECT {TABLE.columns} FROM acme_orders WHERE id = :id", id=order)
    return None if row is None else TABLE.read(row)


def asked_by(tx: Tx, account: str, order: str) -> tuple[AccountStatus | None, Order | None]:
    """An order, and the account that asks for it, which may be another one's."""
    return _with(tx, account, "acme_orders o ON o.id = :order", order=order)


def alike(tx: Tx, account: str, likeness: str) -> tuple[AccountStatus | None, Order | None]:
    """An account, and its open order for the same; perhaps expired."""
    same = "o.account = acc.id AND o.likeness = :likeness AND o.state IN ('pending', 'ready')"
    return _with(tx, account, f"acme_orders o ON {same}", likeness=likeness)


def _with(tx: Tx, account: str, joined: str, **params: object) -> tuple[AccountStatus | None, Order | None]:
    standing, rows = accounts.standing_with(tx, account, TABLE.of("o"), joined, **params)
    return standing, TABLE.read(rows[0]) if rows and rows[0]["id"] is not None else None


def finalization(order: str, csr: bytes) -> Change:
    """ready → processing; nothing is changed if it was not ready: of many at once, one is first."""
    return change(
        "UPDATE acme_orders SET state = :state, csr = :csr WHERE id = :id AND state = 'ready'",
        id=order,
        csr=csr,
        state=ORDER_MOVES[OrderState.READY, "finalized"],
    )


def issued(order: str, certificate: str) -> Change:
    return change(
        "UPDATE acme_orders SET state = :state, certificate = :certificate WHERE id = :id AND state = 'processing'",
        id=order,
        certificate=certificate,
        state=ORDER_MOVES[OrderState.PROCESSING, "issued"],
    )


def refuse(tx: Tx, order: str, error: Problem, *, event: str = "refused") -> bool:
    """→ invalid, always with its reason; False if it is over already."""
    before = sources(ORDER_MOVES, event)
    changed = tx.run(
        f"""UPDATE acme_orders SET state = :state, error = :error
             WHERE id = :id AND state IN ({", ".join(f"'{each}'" for each in before)})""",
        id=order,
        error=json.dumps(error.to_json()),
        state=ORDER_MOVES[OrderState(before[0]), event],
    )
    return changed == 1


def lock_pending_with(tx: Tx, authz: str) -> list[str]:
    """The pending orders that wait for an authorization, locked: two answers at once must see each other's."""
    rows = tx.rows(
        """SELECT id FROM acme_orders
            WHERE id IN (SELECT order_id FROM acme_order_authzs WHERE authz_id = :authz)
              AND state IN ('pending', 'ready')
            ORDER BY id /* FOR UPDATE */""",
        authz=authz,
    )
    return [row["id"] for row in rows]


def authorize(tx: Tx, orders: Sequence[str]) -> list[str]:
    """pending → ready, for those of which every authorization is valid now."""
    moved = []
    for order in orders:
        changed = tx.run(
            """UPDATE acme_orders SET state = :state
                WHERE id = :id AND state = 'pending'
                  AND NOT EXISTS (SELECT 1 FROM acme_order_authzs JOIN acme_authzs ON acme_authzs.id = authz_id
                                   WHERE order_id = :id AND acme_authzs.state <> 'valid')""",
            id=order,
            state=ORDER_MOVES[OrderState.PENDING, "authorized"],
        )
        moved += [order] * changed
    return moved


def end_by(tx: Tx, orders: Sequence[str], until: datetime) -> None:
    for order in orders:
        tx.run(
            "UPDATE acme_orders SET expires_at = :until WHERE id = :id AND expires_at > :until", id=order, until=until
        )


def ids_of(tx: Tx, account: str, *, after: str, limit: int) -> list[str]:
    """Those that are not invalid; one that has expired is, though the sweep may not have come by yet."""
    rows = tx.rows(
        """SELECT id FROM acme_orders
            WHERE account = :account AND id > :after
              AND (state IN ('processing', 'valid') OR state IN ('pending', 'ready') AND expires_at > now_us())
            ORDER BY id LIMIT :limit""",
        account=account,
        after=after,
        limit=limit,
    )
    return [row["id"] for row in rows]


def open_of(tx: Tx, account: str) -> list[str]:
    """What an account has under way that is not finalized."""
    rows = tx.rows(
        "SELECT id FROM acme_orders WHERE account = :account AND state IN ('pending', 'ready') ORDER BY id",
        account=account,
    )
    return [row["id"] for row in rows]


def page(
    tx: Tx,
    *,
    ca: str | None = None,
    account: str | None = None,
    under_way: bool = False,
    after: str = "",
    limit: int = 100,
) -> list[Order]:
    """Orders as an operator sees them, newest last."""
    wanted = {name: value for name, value in (("ca", ca), ("account", account)) if value is not None}
    where = "".join(f" AND {name} = :{name}" for name in wanted)
    where += " AND state IN ('pending', 'ready', 'processing')" if under_way else ""
    rows = tx.rows(
        f"SELECT {TABLE.columns} FROM acme_orders WHERE id > :after{where} ORDER BY id LIMIT :limit",
        after=after,
        limit=limit,
        **wanted,
    )
    return [TABLE.read(row) for row in rows]


def expired(tx: Tx, now: datetime, limit: int = PAGE) -> list[str]:
    """Open orders whose time is over."""
    rows = tx.rows(
        """SELECT id FROM acme_orders WHERE state IN ('pending', 'ready') AND expires_at <= :now
            ORDER BY expires_at LIMIT :limit /* FOR UPDATE SKIP LOCKED */""",
        now=now,
        limit=limit,
    )
    return [row["id"] for row in rows]


def processing_without_job(tx: Tx, kind: str, limit: int = PAGE) -> list[tuple[str, bool]]:
    """Orders under way that no live job works on, and whether a dead one tells that we gave up."""
    return jobs.processing_without(tx, "acme_orders", kind, limit)


FORGET_PAGE = 500


class EndedOrders(NamedTuple):
    """What a page of orders held: those that may go, and after which id to go on; "" when the rest is too young."""

    over: list[str]
    after: str


def forget_authzs(tx: Tx, before: datetime, limit: int = FORGET_PAGE) -> int:
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


def forget_refused(tx: Tx, before: datetime, limit: int = FORGET_PAGE) -> int:
    """Delete orders without a certificate that ended before then. What they meant to sign stays on record."""
    rows = tx.rows(
        """SELECT id FROM acme_orders WHERE state = 'invalid' AND expires_at < :before
              AND NOT EXISTS (SELECT 1 FROM listener_certificates l WHERE l.order_id = acme_orders.id)
            ORDER BY expires_at LIMIT :limit /* FOR UPDATE SKIP LOCKED */""",
        before=before,
        limit=limit,
    )
    return forget_orders(tx, [row["id"] for row in rows])


def look_for_ended(tx: Tx, *, kept_for: timedelta, after: str, limit: int) -> EndedOrders:
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
    return EndedOrders([row["id"] for row in old if row["over"]], rows[-1]["id"] if more else "")


def forget_orders(tx: Tx, orders: list[str]) -> int:
    if not orders:
        return 0
    text, values = value_list([(order,) for order in orders])
    tx.run(f"DELETE FROM acme_order_authzs WHERE order_id IN ({text})", **values)
    return tx.run(f"DELETE FROM acme_orders WHERE id IN ({text}) AND state IN ('valid', 'invalid')", **values)


def stages(tx: Tx, ca: str) -> list[tuple[str, int, datetime | None]]:
    """How many orders of a CA are at each stage that is not the last, and when the oldest was placed."""
    rows = tx.rows(
        """SELECT state, COUNT(*) AS n, MIN(created_at) AS oldest FROM acme_orders
            WHERE ca = :ca AND state IN ('pending', 'ready') GROUP BY state
           UNION ALL
           SELECT state, COUNT(*) AS n, MIN(created_at) AS oldest FROM acme_orders
            WHERE ca = :ca AND state = 'processing' GROUP BY state""",
        ca=ca,
    )
    found = {row["state"]: (int(row["n"]), from_micros(row["oldest"])) for row in rows}
    return [(name, *found.get(name, (0, None))) for name in ("pending", "ready", "processing")]
