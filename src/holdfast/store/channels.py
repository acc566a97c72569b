"""The channels that people are told through: what each wants to hear, how it is reached, and how it stands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from holdfast.core.breaker import Breaker
from holdfast.core.budget import Limit
from holdfast.core.notice import Routing, Severity
from holdfast.errors import TxConflict
from holdfast.store.tx import Row, Tx, from_micros, instant

State = Literal["active", "paused"]
BEAT_EARLY: Final = timedelta(seconds=30)  # whoever looks every minute, more or less, must not be a minute late
_WRITTEN: Final = (
    "settings", "credentials", "severities", "owners", "labels", "fallback", "digest_every", "heartbeat_every",
    "rate_burst", "rate_every", "state", "version",
)  # fmt: skip
_COLUMNS: Final = f"""name, kind, {", ".join(_WRITTEN)}, heartbeat_at, breaker_failures, breaker_until, breaker_probe,
              breaker_probe_until, breaker_error, breaker_limits, down_since, proven, created_at"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRow:
    name: str
    kind: str  # smtp, webhook, slack, …
    settings: Mapping[str, Any] = field(default_factory=dict)
    credentials: Mapping[str, str] = field(default_factory=dict)  # purpose → id of a secret
    routing: Routing = field(default_factory=Routing)
    fallback: str | None = None  # who hears of what this one cannot deliver
    digest_every: timedelta | None = None  # None: each at once
    heartbeat_every: timedelta | None = None  # None: none
    heartbeat_at: datetime | None = None
    limit: Limit = field(default_factory=lambda: Limit(burst=60, every=timedelta(milliseconds=100)))
    state: State = "active"
    version: int = 1
    breaker: Breaker = field(default_factory=Breaker)
    down_since: datetime | None = None  # while its breaker is open for want of answers, or it has long said "too many"
    proven: bool = False  # something was delivered with the settings and credentials that it has now
    created_at: datetime

    @property
    def budget(self) -> str:
        return budget_key(self.name)


def budget_key(name: str) -> str:
    return f"channel/{name}"


def insert(tx: Tx, row: ChannelRow) -> bool:
    """Add one; False if the name is taken."""
    names = ("name", "kind", *_WRITTEN, "created_at")
    added = tx.run(
        f"""INSERT INTO channels ({", ".join(names)}) VALUES ({", ".join(f":{each}" for each in names)})
            ON CONFLICT DO NOTHING""",
        name=row.name,
        kind=row.kind,
        created_at=row.created_at,
        **_values(row),
    )
    return added == 1


def save(tx: Tx, before: ChannelRow, **changes: Any) -> ChannelRow:
    """Write what people decide about it, as the next version; how it stands has statements of its own."""
    after = replace(before, version=before.version + 1, **changes)
    same = (after.settings, after.credentials) == (before.settings, before.credentials)
    after = replace(after, proven=before.proven and same)
    changed = tx.run(
        f"""UPDATE channels SET {", ".join(f"{each} = :{each}" for each in _WRITTEN)}, proven = :proven
             WHERE name = :name AND version = :was""",
        name=before.name,
        was=before.version,
        proven=int(after.proven),
        **_values(after),
    )
    if not changed:
        raise TxConflict(f"channel {before.name} was changed meanwhile")
    return after


def delete(tx: Tx, name: str) -> bool:
    return tx.run("DELETE FROM channels WHERE name = :name", name=name) == 1


def stands(tx: Tx, name: str, breaker: Breaker, down_since: datetime | None) -> None:
    tx.run(
        """UPDATE channels SET breaker_failures = :failures, breaker_until = :until, breaker_probe = :probe,
                  breaker_probe_until = :probe_until, breaker_error = :error, breaker_limits = :limits,
                  down_since = :down_since
            WHERE name = :name""",
        name=name,
        failures=breaker.failures,
        until=breaker.until,
        probe=breaker.probe,
        probe_until=breaker.probe_until,
        error=breaker.error,
        limits=breaker.limits,
        down_since=down_since,
    )


def proved(tx: Tx, row: ChannelRow) -> None:
    tx.run("UPDATE channels SET proven = 1 WHERE name = :name", name=row.name)


def beaten(tx: Tx, row: ChannelRow, now: datetime) -> None:
    """The next one is due an interval after this one was, not after it was sent; what was missed is missed."""
    every = row.heartbeat_every or timedelta(0)
    due = now if row.heartbeat_at is None else row.heartbeat_at + every
    at = due if due > now - every else now
    tx.run("UPDATE channels SET heartbeat_at = :at WHERE name = :name", name=row.name, at=at)


def get(tx: Tx, name: str, *, lock: bool = False) -> ChannelRow | None:
    row = tx.row(f"SELECT {_COLUMNS} FROM channels WHERE name = :name {'/* FOR UPDATE */' if lock else ''}", name=name)
    return None if row is None else _row(row)


def all_channels(tx: Tx) -> list[ChannelRow]:
    return [_row(row) for row in tx.rows(f"SELECT {_COLUMNS} FROM channels ORDER BY name")]


def with_heartbeat(tx: Tx, now: datetime) -> list[ChannelRow]:
    """Those whose next sign of life is due."""
    rows = tx.rows(
        f"""SELECT {_COLUMNS} FROM channels
             WHERE state = 'active' AND heartbeat_every IS NOT NULL
               AND (heartbeat_at IS NULL OR heartbeat_at + heartbeat_every <= :soon) ORDER BY name""",
        soon=now + BEAT_EARLY,
    )
    return [_row(row) for row in rows]


def _values(row: ChannelRow) -> dict[str, Any]:
    return {
        "settings": json.dumps(dict(row.settings)),
        "credentials": json.dumps(dict(row.credentials)),
        "severities": json.dumps(sorted(row.routing.severities)),
        "owners": json.dumps(list(row.routing.owners)),
        "labels": json.dumps(dict(row.routing.labels)),
        "fallback": row.fallback,
        "digest_every": row.digest_every,
        "heartbeat_every": row.heartbeat_every,
        "rate_burst": row.limit.burst,
        "rate_every": row.limit.every,
        "state": row.state,
        "version": row.version,
    }


def _row(row: Row) -> ChannelRow:
    return ChannelRow(
        name=row["name"],
        kind=row["kind"],
        settings=json.loads(row["settings"]),
        credentials=json.loads(row["credentials"]),
        routing=Routing(
            severities=frozenset(Severity(each) for each in json.loads(row["severities"])),
            owners=tuple(json.loads(row["owners"])),
            labels=json.loads(row["labels"]),
        ),
        fallback=row["fallback"],
        digest_every=_span(row["digest_every"]),
        heartbeat_every=_span(row["heartbeat_every"]),
        heartbeat_at=instant(row["heartbeat_at"]),
        limit=Limit(burst=row["rate_burst"], every=timedelta(microseconds=row["rate_every"])),
        state=row["state"],
        version=row["version"],
        breaker=Breaker(
            failures=row["breaker_failures"],
            until=instant(row["breaker_until"]),
            probe=row["breaker_probe"],
            probe_until=instant(row["breaker_probe_until"]),
            error=row["breaker_error"],
            limits=row["breaker_limits"],
        ),
        down_since=instant(row["down_since"]),
        proven=bool(row["proven"]),
        created_at=from_micros(row["created_at"]),
    )


def _span(micros: int | None) -> timedelta | None:
    return None if micros is None else timedelta(microseconds=micros)
