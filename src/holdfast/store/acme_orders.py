"""ACME orders: what an account asked for, and how far it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from holdfast.core.acme import ORDER_MOVES, Identifier, Order, OrderState, sources
from holdfast.core.problem import Problem
from holdfast.store import jobs
from holdfast.store.tx import Row, Tx, from_micros, instant

_COLUMNS = """id, ca, account, state, profile, identifiers, authzs, not_before, not_after, replaces, expires_at, error,
              certificate, created_at"""
PAGE = 200


def insert(tx: Tx, order: Order, likeness: str) -> bool:
    """Add an order and its links; False if the account has one like it that can still be used."""
    added = tx.run(
        f"""INSERT INTO acme_orders ({_COLUMNS}, likeness)
            VALUES (:id, :ca, :account, :state, :profile, :identifiers, :authzs, :not_before, :not_after, :replaces,
                    :expires_at, NULL, NULL, :created_at, :likeness)
            ON CONFLICT DO NOTHING""",
        id=order.id,
        ca=order.ca,
        account=order.account,
        state=order.state,
        profile=order.profile,
        identifiers=json.dumps([(each.type, each.value) for each in order.identifiers]),
        authzs=json.dumps(order.authzs),
        not_before=order.not_before,
        not_after=order.not_after,
        replaces=order.replaces,
        expires_at=order.expires_at,
        created_at=order.created_at,
        likeness=likeness,
    )
    return added == 1


def get(tx: Tx, order: str) -> Order | None:
    row = tx.row(f"SELECT {_COLUMNS} FROM acme_orders WHERE id = :id", id=order)
    return None if row is None else _order(row)


def alike(tx: Tx, account: str, likeness: str) -> Order | None:
    """The open order of this account for the same; perhaps expired."""
    row = tx.row(
        f"""SELECT {_COLUMNS} FROM acme_orders
             WHERE account = :account AND likeness = :likeness AND state IN ('pending', 'ready')""",
        account=account,
        likeness=likeness,
    )
    return None if row is None else _order(row)


def finalize(tx: Tx, order: str, csr: bytes) -> bool:
    """ready → processing; False if it was not ready: of many at once, one is first."""
    changed = tx.run(
        "UPDATE acme_orders SET state = :state, csr = :csr WHERE id = :id AND state = 'ready'",
        id=order,
        csr=csr,
        state=ORDER_MOVES[OrderState.READY, "finalized"],
    )
    return changed == 1


def issued(tx: Tx, order: str, certificate: str) -> bool:
    changed = tx.run(
        "UPDATE acme_orders SET state = :state, certificate = :certificate WHERE id = :id AND state = 'processing'",
        id=order,
        certificate=certificate,
        state=ORDER_MOVES[OrderState.PROCESSING, "issued"],
    )
    return changed == 1


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
    tx: Tx, *, ca: str | None = None, account: str | None = None, after: str = "", limit: int = 100
) -> list[Order]:
    """Orders as an operator sees them, newest last."""
    wanted = {name: value for name, value in (("ca", ca), ("account", account)) if value is not None}
    where = "".join(f" AND {name} = :{name}" for name in wanted)
    rows = tx.rows(
        f"SELECT {_COLUMNS} FROM acme_orders WHERE id > :after{where} ORDER BY id LIMIT :limit",
        after=after,
        limit=limit,
        **wanted,
    )
    return [_order(row) for row in rows]


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


def _order(row: Row) -> Order:
    return Order(
        id=row["id"],
        ca=row["ca"],
        account=row["account"],
        state=OrderState(row["state"]),
        profile=row["profile"],
        identifiers=tuple(Identifier(*each) for each in json.loads(row["identifiers"])),
        authzs=tuple(json.loads(row["authzs"])),
        not_before=instant(row["not_before"]),
        not_after=instant(row["not_after"]),
        replaces=row["replaces"],
        expires_at=from_micros(row["expires_at"]),
        error=None if row["error"] is None else Problem.from_json(json.loads(row["error"])),
        certificate=row["certificate"],
        created_at=from_micros(row["created_at"]),
    )
