"""The tables of open outages, and of the expiry thresholds that people were told of."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from holdfast.core.notifications.alert import Outage
from holdfast.core.notifications.notification import ExpiringVersion, Severity
from holdfast.store.rows import Table
from holdfast.store.tx import Tx, to_micros, value_list

NEVER: Final = 2**62  # no expiry threshold is left
TABLE: Final = Table(Outage, "outages")
_EXPIRING: Final = Table(ExpiringVersion, columns={"version": "id"})


def open_or_count(tx: Tx, key: str, *, event: str, severity: Severity, subject: str, name: str) -> bool:
    """Open an outage: True if it is new. An open one is counted, and keeps the worst severity of its alerts."""
    row = tx.rows(
        """INSERT INTO outages (key, event, severity, subject, name, opened_at, seen_at)
           VALUES (:key, :event, :severity, :subject, :name, now_us(), now_us())
           ON CONFLICT (key) DO UPDATE
              SET repeats = outages.repeats + 1, seen_at = excluded.seen_at,
                  severity = CASE WHEN 'critical' IN (outages.severity, excluded.severity) THEN 'critical'
                                  WHEN 'warning' IN (outages.severity, excluded.severity) THEN 'warning'
                                  ELSE 'info' END
           RETURNING repeats""",
        key=key,
        event=event,
        severity=severity,
        subject=subject,
        name=name,
    )[0]
    return bool(row["repeats"] == 0)


def close(tx: Tx, key: str) -> Outage | None:
    """Close an outage; None if it was not open."""
    row = tx.row(f"DELETE FROM outages WHERE key = :key RETURNING {TABLE.columns}", key=key)
    return None if row is None else TABLE.read(row)


def is_open(tx: Tx, key: str) -> bool:
    return tx.row("SELECT 1 AS found FROM outages WHERE key = :key", key=key) is not None


def after(tx: Tx, key: str, limit: int) -> list[Outage]:
    """A page of open outages, in the order of keys."""
    rows = tx.rows(
        f"SELECT {TABLE.columns} FROM outages WHERE key > :key ORDER BY key LIMIT :limit", key=key, limit=limit
    )
    return [TABLE.read(row) for row in rows]


# ── Expiry of versions ──


def to_look(tx: Tx, now: datetime, limit: int) -> list[ExpiringVersion]:
    rows = tx.rows(
        """SELECT v.id, v.certificate, v.not_before, v.not_after,
                  (c.state <> 'archived' AND c.current_version = v.id) AS watched
             FROM certificate_versions AS v JOIN certificates AS c ON c.id = v.certificate
            WHERE v.state IN ('active', 'imported') AND v.look_at <= :now ORDER BY v.look_at LIMIT :limit""",
        now=now,
        limit=limit,
    )
    return [_EXPIRING.read(row) for row in rows]


def look_again(tx: Tx, version: str, at: datetime | None) -> None:
    tx.run("UPDATE certificate_versions SET look_at = :at WHERE id = :id", id=version, at=NEVER if at is None else at)


def told_of(tx: Tx, version: str) -> set[int]:
    rows = tx.rows("SELECT threshold FROM crossings WHERE version = :version", version=version)
    return {row["threshold"] for row in rows}


def cross(tx: Tx, version: str, thresholds: Sequence[int], now: datetime) -> int:
    """Record the thresholds as told; the number of new ones."""
    text, values = value_list([(version, threshold, to_micros(now)) for threshold in thresholds])
    return tx.run(f"INSERT INTO crossings (version, threshold, told_at) {text} ON CONFLICT DO NOTHING", **values)
