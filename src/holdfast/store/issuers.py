"""The CAs that we get certificates from, by name; our accounts there, and the breaker of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal

from holdfast.core.breaker import Breaker
from holdfast.errors import TxConflict
from holdfast.store.tx import Row, Tx, from_micros, instant, value_list

State = Literal["active", "paused"]
_COLUMNS = """name, kind, settings, credentials, state, version, breaker_failures, breaker_until, breaker_probe,
              breaker_probe_until, breaker_error, breaker_limits, created_at"""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerRow:
    name: str
    kind: str  # acme, local, …
    settings: Mapping[str, Any] = field(default_factory=dict)
    credentials: Mapping[str, str] = field(default_factory=dict)  # purpose → id of a secret
    state: State = "active"
    version: int = 1
    breaker: Breaker = field(default_factory=Breaker)
    created_at: datetime


def insert(tx: Tx, row: IssuerRow) -> bool:
    """Add one; False if the name is taken."""
    added = tx.run(
        """INSERT INTO issuers (name, kind, settings, credentials, state, version, created_at)
           VALUES (:name, :kind, :settings, :credentials, :state, :version, :created_at) ON CONFLICT DO NOTHING""",
        name=row.name,
        kind=row.kind,
        settings=json.dumps(dict(row.settings)),
        credentials=json.dumps(dict(row.credentials)),
        state=row.state,
        version=row.version,
        created_at=row.created_at,
    )
    return added == 1


def save(tx: Tx, before: IssuerRow, **changes: Any) -> IssuerRow:
    """Write settings, credentials or state, as the next version; the breaker has its own statement."""
    after = replace(before, version=before.version + 1, **changes)
    changed = tx.run(
        """UPDATE issuers SET settings = :settings, credentials = :credentials, state = :state, version = :version
            WHERE name = :name AND version = :was""",
        name=before.name,
        settings=json.dumps(dict(after.settings)),
        credentials=json.dumps(dict(after.credentials)),
        state=after.state,
        version=after.version,
        was=before.version,
    )
    if not changed:
        raise TxConflict(f"CA {before.name} was changed meanwhile")
    return after


def save_breaker(tx: Tx, name: str, breaker: Breaker) -> None:
    tx.run(
        """UPDATE issuers SET breaker_failures = :failures, breaker_until = :until, breaker_probe = :probe,
                  breaker_probe_until = :probe_until, breaker_error = :error, breaker_limits = :limits
            WHERE name = :name""",
        name=name,
        failures=breaker.failures,
        until=breaker.until,
        probe=breaker.probe,
        probe_until=breaker.probe_until,
        error=breaker.error,
        limits=breaker.limits,
    )


def get(tx: Tx, name: str, *, lock: bool = False) -> IssuerRow | None:
    row = tx.row(f"SELECT {_COLUMNS} FROM issuers WHERE name = :name {'/* FOR UPDATE */' if lock else ''}", name=name)
    return None if row is None else _row(row)


def named(tx: Tx, names: Sequence[str]) -> dict[str, IssuerRow]:
    if not names:
        return {}
    text, values = value_list([(name,) for name in names])
    rows = tx.rows(f"SELECT {_COLUMNS} FROM issuers WHERE name IN ({text})", **values)
    return {row["name"]: _row(row) for row in rows}


def all_issuers(tx: Tx) -> list[IssuerRow]:
    return [_row(row) for row in tx.rows(f"SELECT {_COLUMNS} FROM issuers ORDER BY name")]


def page(tx: Tx, *, after: str = "", limit: int) -> list[IssuerRow]:
    """In the order of their names."""
    rows = tx.rows(
        f"SELECT {_COLUMNS} FROM issuers WHERE name > :after ORDER BY name LIMIT :limit", after=after, limit=limit
    )
    return [_row(row) for row in rows]


def needed_by(tx: Tx, name: str, limit: int) -> list[str]:
    """Names of certificates that may come from it, or about which it is yet to be asked or told something."""
    rows = tx.rows(
        """SELECT name FROM certificates
            WHERE state <> 'archived' AND issuers LIKE :quoted
               OR id IN (SELECT certificate FROM issuances
                          WHERE issuer = :name
                            AND (ended_at IS NULL OR EXISTS (SELECT 1 FROM jobs WHERE jobs.kind = 'withdraw'
                                                                AND jobs.subject = issuances.id AND state <> 'dead')))
               OR id IN (SELECT certificate FROM certificate_versions
                          WHERE issuer = :name AND EXISTS (SELECT 1 FROM jobs WHERE jobs.kind = 'revoke'
                                                              AND jobs.subject = certificate_versions.id
                                                              AND jobs.state <> 'dead'))
            ORDER BY name LIMIT :limit""",
        name=name,
        quoted=f"%{json.dumps(name)}%",
        limit=limit,
    )
    return [row["name"] for row in rows]


def delete(tx: Tx, name: str) -> None:
    tx.run("DELETE FROM issuers WHERE name = :name", name=name)


@lru_cache(maxsize=256)
def _read(text: str) -> Mapping[str, Any]:
    """There are few CAs, and each attempt reads the row of its own: whoever has such a value does not change it."""
    found: Mapping[str, Any] = json.loads(text)
    return found


def _row(row: Row) -> IssuerRow:
    return IssuerRow(
        name=row["name"],
        kind=row["kind"],
        settings=_read(row["settings"]),
        credentials=_read(row["credentials"]),
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
        created_at=from_micros(row["created_at"]),
    )
