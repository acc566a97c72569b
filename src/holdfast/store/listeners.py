"""Certificates of our own listener: which order is one, where its key is, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.core.acme import OrderState
from holdfast.store.tx import Row, Tx, from_micros, instant

KEPT: Final = 10  # for each host; older ones are forgotten, with their keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """An order of the listener; the fields about its certificate are empty until there is one."""

    order: str
    host: str
    key_secret: str
    created_at: datetime
    state: OrderState
    ca: str
    account: str
    certificate: str | None = None
    der: bytes = b""
    not_before: datetime | None = None
    not_after: datetime | None = None
    revoked: bool = False


def insert(tx: Tx, *, order: str, host: str, key_secret: str) -> None:
    tx.run(
        """INSERT INTO listener_certificates (order_id, host, key_secret, created_at)
           VALUES (:order, :host, :key_secret, now_us())""",
        order=order,
        host=host,
        key_secret=key_secret,
    )


def newest(tx: Tx, host: str) -> list[Ordered]:
    """The last few orders for a host, the newest first."""
    rows = tx.rows(
        """SELECT l.order_id, l.host, l.key_secret, l.created_at, o.state, o.ca, o.account,
                  c.id AS certificate, c.der, c.not_before, c.not_after, c.revoked_at
             FROM listener_certificates l JOIN acme_orders o ON o.id = l.order_id
             LEFT JOIN ca_certificates c ON c.order_id = l.order_id
            WHERE l.host = :host ORDER BY l.created_at DESC, l.order_id DESC LIMIT :limit""",
        host=host,
        limit=KEPT,
    )
    return [_ordered(row) for row in rows]


def forget_old(tx: Tx, host: str) -> list[str]:
    """Drop all but the last few; the ids of their keys come back, to be deleted, too."""
    rows = tx.rows(
        """DELETE FROM listener_certificates WHERE host = :host AND order_id NOT IN
                  (SELECT order_id FROM listener_certificates WHERE host = :host
                    ORDER BY created_at DESC, order_id DESC LIMIT :limit)
           RETURNING key_secret""",
        host=host,
        limit=KEPT,
    )
    return [row["key_secret"] for row in rows]


def _ordered(row: Row) -> Ordered:
    return Ordered(
        order=row["order_id"],
        host=row["host"],
        key_secret=row["key_secret"],
        created_at=from_micros(row["created_at"]),
        state=OrderState(row["state"]),
        ca=row["ca"],
        account=row["account"],
        certificate=row["certificate"],
        der=b"" if row["der"] is None else bytes(row["der"]),
        not_before=instant(row["not_before"]),
        not_after=instant(row["not_after"]),
        revoked=row["revoked_at"] is not None,
    )
