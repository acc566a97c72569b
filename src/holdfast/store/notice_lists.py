"""Notices as people look for them: pages, counts, and what is long over."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from holdfast.core.notice import Notice, Severity, State
from holdfast.store import notices
from holdfast.store.tx import Tx, from_micros

MOST: Final = 500  # rows a page
LAST: Final = "~"  # after every id


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Fields that are not given do not filter."""

    state: State | None = None
    channel: str | None = None
    severity: Severity | None = None
    subject: str | None = None
    event: str | None = None
    why: str | None = None

    def sql(self) -> tuple[str, dict[str, Any]]:
        given = {
            "state": self.state,
            "channel": self.channel,
            "severity": self.severity,
            "subject": self.subject,
            "event": self.event,
            "why": self.why,
        }
        given = {name: value for name, value in given.items() if value is not None}
        return "".join(f" AND {name} = :{name}" for name in given), given


def page(tx: Tx, which: Filter, *, before: str = "", limit: int = 50, lock: bool = False) -> list[Notice]:
    """The newest first; `before` is the last id of the page above."""
    text, values = which.sql()
    rows = tx.rows(
        f"""SELECT {notices.COLUMNS} FROM notices WHERE id < :before {text} ORDER BY id DESC LIMIT :limit
            {"/* FOR UPDATE */" if lock else ""}""",
        before=before or LAST,
        limit=min(max(limit, 1), MOST),
        **values,
    )
    return notices.from_rows(rows)


def counts(tx: Tx) -> dict[tuple[str, str], int]:
    """Over all rows, by channel and state."""
    rows = tx.rows("SELECT channel, state, COUNT(*) AS n FROM notices GROUP BY channel, state")
    return {(row["channel"], row["state"]): int(row["n"]) for row in rows}


def dead(tx: Tx) -> int:
    return int(tx.rows("SELECT COUNT(*) AS n FROM notices WHERE state = 'dead'")[0]["n"])


def any_dead(tx: Tx, channel: str) -> bool:
    row = tx.row("SELECT 1 AS found FROM notices WHERE channel = :channel AND state = 'dead' LIMIT 1", channel=channel)
    return row is not None


def oldest_waiting(tx: Tx) -> dict[str, datetime]:
    """Since when the longest-waiting notice of each channel waits."""
    rows = tx.rows(
        """SELECT channel, MIN(waiting_since) AS since FROM notices WHERE state IN ('pending', 'failed')
            GROUP BY channel"""
    )
    return {row["channel"]: from_micros(row["since"]) for row in rows}


def waits_for(tx: Tx, channel: str, event: str) -> bool:
    """Whether such a notice is still owed to the channel."""
    row = tx.row(
        """SELECT 1 AS found FROM notices
            WHERE channel = :channel AND state IN ('pending', 'failed') AND event = :event LIMIT 1""",
        channel=channel,
        event=event,
    )
    return row is not None


def forget_old(tx: Tx, before: datetime, limit: int = 1000) -> int:
    """Drop a page of what was paid or settled long ago, and of what nobody ever wanted to hear. Dead letters stay.

    So do words about what still lasts: whoever had them hears of its end.
    """
    return tx.run(
        """DELETE FROM notices WHERE id IN (
               SELECT id FROM notices
                WHERE created_at < :before AND (state IN ('sent', 'resolved') OR (state = 'dead' AND channel = ''))
                  AND outage NOT IN (SELECT key FROM outages)
                ORDER BY id LIMIT :limit)""",
        before=before,
        limit=limit,
    )
