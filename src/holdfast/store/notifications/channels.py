"""The table of channels: routing, settings, credentials, breaker and heartbeat of each."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from holdfast.core.issuers.breaker import Breaker
from holdfast.core.issuers.budget import Limit
from holdfast.core.notifications.channel import ChannelRow
from holdfast.core.notifications.notification import Routing, Severity
from holdfast.store.remote_rows import BREAKER, RemoteRows
from holdfast.store.rows import Codec, Part, Table, assignments
from holdfast.store.tx import Tx

BEAT_EARLY: Final = timedelta(seconds=30)  # the duty runs about every minute, and must not be a minute late
_SEVERITIES: Final = Codec(
    lambda chosen: json.dumps(sorted(chosen)), lambda text: frozenset(map(Severity, json.loads(text)))
)
TABLE: Final = Table(
    ChannelRow,
    "channels",
    parts={
        "routing": Part(Table(Routing, codecs={"severities": _SEVERITIES})),
        "limit": Part(Table(Limit, prefix="rate_", without={"reserve"})),
        "breaker": Part(BREAKER),
    },
)


def _proven(before: ChannelRow, after: ChannelRow) -> ChannelRow:
    """What was delivered proves nothing about other settings or credentials."""
    same = (after.settings, after.credentials) == (before.settings, before.credentials)
    return replace(after, proven=before.proven and same)


ROWS: Final = RemoteRows(
    TABLE,
    decided=(
        *("settings", "credentials", "state", "routing", "fallback"),
        *("digest_every", "heartbeat_every", "limit", "proven"),
    ),
    derived=_proven,
)
insert, save, get, delete, all_channels = ROWS.insert, ROWS.save, ROWS.get, ROWS.delete, ROWS.all


def save_breaker(tx: Tx, name: str, breaker: Breaker, down_since: datetime | None) -> None:
    tx.run(
        f"UPDATE channels SET {assignments(BREAKER.names)}, down_since = :down_since WHERE name = :name",
        name=name,
        down_since=down_since,
        **BREAKER.values(breaker),
    )


def save_error(tx: Tx, row: ChannelRow, error: str) -> None:
    """What went wrong last, without counting it: a refused message, or a test."""
    save_breaker(tx, row.name, replace(row.breaker, error=error), row.down_since)


def mark_proven(tx: Tx, row: ChannelRow) -> None:
    tx.run("UPDATE channels SET proven = TRUE WHERE name = :name", name=row.name)


def mark_heartbeat(tx: Tx, row: ChannelRow, now: datetime) -> None:
    """The next heartbeat is due an interval after this one was due, not after it was sent. Missed ones are skipped."""
    every = row.heartbeat_every or timedelta(0)
    due = now if row.heartbeat_at is None else row.heartbeat_at + every
    at = due if due > now - every else now
    tx.run("UPDATE channels SET heartbeat_at = :at WHERE name = :name", name=row.name, at=at)


def with_heartbeat(tx: Tx, now: datetime) -> list[ChannelRow]:
    """Channels whose next heartbeat is due."""
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM channels
             WHERE state = 'active' AND heartbeat_every IS NOT NULL
               AND (heartbeat_at IS NULL OR heartbeat_at + heartbeat_every <= :soon) ORDER BY name""",
        soon=now + BEAT_EARLY,
    )
    return [TABLE.read(row) for row in rows]
