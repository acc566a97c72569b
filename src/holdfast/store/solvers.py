"""The table of solvers, in the order in which they were added: the first that fits a name publishes for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from holdfast.core.solver import SolverRow
from holdfast.errors import TxConflict
from holdfast.store.issuers import BREAKER
from holdfast.store.rows import SETTINGS, Part, Table, assignments
from holdfast.store.tx import Tx

TABLE: Final = Table(
    SolverRow, "solvers", codecs={"settings": SETTINGS, "credentials": SETTINGS}, parts={"breaker": Part(BREAKER)}
)


def insert(tx: Tx, row: SolverRow) -> bool:
    """Add one; False if the name is taken."""
    return tx.run(f"{TABLE.insert} ON CONFLICT DO NOTHING", **TABLE.values(row)) == 1


def save(tx: Tx, before: SolverRow, **changes: Any) -> SolverRow:
    """Write credentials or state, as the next version."""
    after = replace(before, version=before.version + 1, **changes)
    written = TABLE.changes({name: getattr(after, name) for name in ("credentials", "state", "version")})
    changed = tx.run(
        f"UPDATE solvers SET {assignments(written)} WHERE name = :name AND version = :was",
        name=before.name,
        was=before.version,
        **written,
    )
    if not changed:
        raise TxConflict(f"solver {before.name} was changed meanwhile")
    return after


def get(tx: Tx, name: str, *, lock: bool = False) -> SolverRow | None:
    row = tx.row(
        f"SELECT {TABLE.columns} FROM solvers WHERE name = :name {'/* FOR UPDATE */' if lock else ''}", name=name
    )
    return None if row is None else TABLE.read(row)


def in_order(tx: Tx) -> list[SolverRow]:
    return [TABLE.read(row) for row in tx.rows(f"SELECT {TABLE.columns} FROM solvers ORDER BY created_at, name")]


def delete(tx: Tx, name: str) -> None:
    tx.run("DELETE FROM solvers WHERE name = :name", name=name)
