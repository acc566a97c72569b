"""Discoveries: where certificates are looked for, how far each is, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from holdfast.core.discovery.discovery import Discovery
from holdfast.errors import TxConflict
from holdfast.store.rows import Table, assignments
from holdfast.store.tx import Tx

TABLE: Final = Table(Discovery, "discoveries")
PAGE: Final = 200


def insert(tx: Tx, row: Discovery) -> None:
    tx.run(TABLE.insert, **TABLE.values(row))


def save(tx: Tx, before: Discovery, **changes: Any) -> Discovery:
    """Write what changed, as the next version; TxConflict if it was changed since it was read."""
    written = TABLE.changes({**changes, "version": before.version + 1})
    changed = tx.run(
        f"UPDATE discoveries SET {assignments(written)} WHERE id = :id AND version = :was",
        id=before.id,
        was=before.version,
        **written,
    )
    if not changed:
        raise TxConflict(f"discovery {before.id} was changed meanwhile")
    return replace(before, version=before.version + 1, **changes)


def get(tx: Tx, discovery: str) -> Discovery | None:
    row = tx.row(f"SELECT {TABLE.columns} FROM discoveries WHERE id = :id", id=discovery)
    return None if row is None else TABLE.read(row)


def page(tx: Tx, *, after: str = "", limit: int) -> list[Discovery]:
    rows = tx.rows(
        f"SELECT {TABLE.columns} FROM discoveries WHERE id > :after ORDER BY id LIMIT :limit", after=after, limit=limit
    )
    return [TABLE.read(row) for row in rows]


def count(tx: Tx, states: Sequence[str]) -> int:
    named = {f"state_{number}": each for number, each in enumerate(states)}
    row = tx.row(f"SELECT COUNT(*) AS n FROM discoveries WHERE state IN (:{', :'.join(named)})", **named)
    return 0 if row is None else int(row["n"])


def delete(tx: Tx, discovery: str) -> bool:
    return tx.run("DELETE FROM discoveries WHERE id = :id", id=discovery) == 1


def without_job(tx: Tx, kind: str) -> list[str]:
    """Discoveries that should go on, and have no job; at most a page."""
    rows = tx.rows(
        """SELECT id FROM discoveries WHERE state IN ('running', 'resting')
              AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.kind = :kind AND jobs.subject = discoveries.id)
            ORDER BY id LIMIT :limit""",
        kind=kind,
        limit=PAGE,
    )
    return [row["id"] for row in rows]
