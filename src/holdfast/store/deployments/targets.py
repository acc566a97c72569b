"""Targets with their breakers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from holdfast.core.issuers.breaker import Breaker
from holdfast.core.target import TargetRow
from holdfast.errors import TxConflict
from holdfast.store.rows import LABELS, SETTINGS, Part, Table, assignments
from holdfast.store.tx import Tx, value_list

BREAKER: Final = Table(Breaker, prefix="breaker_")
TABLE: Final = Table(
    TargetRow,
    "targets",
    codecs={"settings": SETTINGS, "credentials": SETTINGS, "labels": LABELS},
    parts={"breaker": Part(BREAKER)},
)
# The columns that people change; the breaker has a statement of its own.
_DECIDED: Final = (
    "settings", "credentials", "owner", "labels", "endpoints", "windows", "domain", "host", "rollout", "state",
    "version",
)  # fmt: skip


def insert(tx: Tx, row: TargetRow) -> bool:
    """Add one; False if the name is taken."""
    return tx.run(f"{TABLE.insert} ON CONFLICT DO NOTHING", **TABLE.values(row)) == 1


def save(tx: Tx, before: TargetRow, **changes: Any) -> TargetRow:
    """Write the columns that people change, as the next version."""
    after = replace(before, version=before.version + 1, **changes)
    written = TABLE.changes({name: getattr(after, name) for name in _DECIDED})
    changed = tx.run(
        f"UPDATE targets SET {assignments(written)} WHERE name = :name AND version = :was",
        name=before.name,
        was=before.version,
        **written,
    )
    if not changed:
        raise TxConflict(f"target {before.name} was changed meanwhile")
    return after


def save_breaker(tx: Tx, name: str, breaker: Breaker) -> None:
    tx.run(f"UPDATE targets SET {assignments(BREAKER.names)} WHERE name = :name", name=name, **BREAKER.values(breaker))


def delete(tx: Tx, name: str) -> bool:
    return tx.run("DELETE FROM targets WHERE name = :name", name=name) == 1


def get(tx: Tx, name: str, *, lock: bool = False) -> TargetRow | None:
    row = tx.row(
        f"SELECT {TABLE.columns} FROM targets WHERE name = :name {'/* FOR UPDATE */' if lock else ''}", name=name
    )
    return None if row is None else TABLE.read(row)


def named(tx: Tx, names: Sequence[str]) -> dict[str, TargetRow]:
    if not names:
        return {}
    text, values = value_list([(name,) for name in names])
    rows = tx.rows(f"SELECT {TABLE.columns} FROM targets WHERE name IN ({text})", **values)
    return {row["name"]: TABLE.read(row) for row in rows}


def all_targets(tx: Tx) -> list[TargetRow]:
    return [TABLE.read(row) for row in tx.rows(f"SELECT {TABLE.columns} FROM targets ORDER BY name")]


def names_at(tx: Tx, name: str, limit: int = 1000) -> list[str]:
    """The names of certificates that name this target, and are not archived."""
    rows = tx.rows(
        "SELECT name FROM certificates WHERE state <> 'archived' AND targets LIKE :quoted ORDER BY name LIMIT :limit",
        quoted=f"%{json.dumps(name)}%",
        limit=limit,
    )
    return [row["name"] for row in rows]


def certificates_at(tx: Tx, name: str, limit: int = 1000) -> list[str]:
    """The ids of certificates that name this target, and are not archived."""
    rows = tx.rows(
        """SELECT id FROM certificates WHERE state <> 'archived' AND targets LIKE :quoted ORDER BY name LIMIT :limit""",
        quoted=f"%{json.dumps(name)}%",
        limit=limit,
    )
    return [row["id"] for row in rows]
