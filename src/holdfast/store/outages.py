"""What is wrong now, told once however many suffer from it; and which ends of versions people were told of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.core.notice import Severity
from holdfast.store.tx import Row, Tx, from_micros, to_micros, value_list

NEVER: Final = 2**62  # no look at its end is due any more
_COLUMNS: Final = "key, event, severity, subject, name, repeats, opened_at, seen_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    key: str
    event: str
    severity: Severity
    subject: str
    name: str
    repeats: int
    opened_at: datetime
    seen_at: datetime


def open_or_count(tx: Tx, key: str, *, event: str, severity: Severity, subject: str, name: str) -> bool:
    """True if it is new. One that is known is counted, and is as severe as the worst that was said of it."""
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
    """It is over; None if nobody was told of it."""
    row = tx.row(f"DELETE FROM outages WHERE key = :key RETURNING {_COLUMNS}", key=key)
    return None if row is None else _outage(row)


def is_open(tx: Tx, key: str) -> bool:
    return tx.row("SELECT 1 AS found FROM outages WHERE key = :key", key=key) is not None


def after(tx: Tx, key: str, limit: int) -> list[Outage]:
    """A page in the order of keys."""
    rows = tx.rows(f"SELECT {_COLUMNS} FROM outages WHERE key > :key ORDER BY key LIMIT :limit", key=key, limit=limit)
    return [_outage(row) for row in rows]


def _outage(row: Row) -> Outage:
    return Outage(
        key=row["key"],
        event=row["event"],
        severity=Severity(row["severity"]),
        subject=row["subject"],
        name=row["name"],
        repeats=row["repeats"],
        opened_at=from_micros(row["opened_at"]),
        seen_at=from_micros(row["seen_at"]),
    )


# ── Ends of versions ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A version in use whose end is to be looked at."""

    version: str
    certificate: str
    not_before: datetime
    not_after: datetime
    watched: bool  # its certificate is not archived, and this is the version that it uses


def to_look(tx: Tx, now: datetime, limit: int) -> list[Ending]:
    rows = tx.rows(
        """SELECT v.id, v.certificate, v.not_before, v.not_after,
                  (c.state <> 'archived' AND c.current_version = v.id) AS watched
             FROM certificate_versions AS v JOIN certificates AS c ON c.id = v.certificate
            WHERE v.state IN ('active', 'imported') AND v.look_at <= :now ORDER BY v.look_at LIMIT :limit""",
        now=now,
        limit=limit,
    )
    return [
        Ending(
            version=row["id"],
            certificate=row["certificate"],
            not_before=from_micros(row["not_before"]),
            not_after=from_micros(row["not_after"]),
            watched=bool(row["watched"]),
        )
        for row in rows
    ]


def look_again(tx: Tx, version: str, at: datetime | None) -> None:
    tx.run("UPDATE certificate_versions SET look_at = :at WHERE id = :id", id=version, at=NEVER if at is None else at)


def told_of(tx: Tx, version: str) -> set[int]:
    rows = tx.rows("SELECT threshold FROM crossings WHERE version = :version", version=version)
    return {row["threshold"] for row in rows}


def cross(tx: Tx, version: str, thresholds: Sequence[int], now: datetime) -> int:
    """Note that these were told; how many of them were not before."""
    text, values = value_list([(version, threshold, to_micros(now)) for threshold in thresholds])
    return tx.run(f"INSERT INTO crossings (version, threshold, told_at) {text} ON CONFLICT DO NOTHING", **values)
