"""The table of solvers, in the order in which they were added: the first that fits a name publishes for it."""

from __future__ import annotations

from typing import Final

from holdfast.core.solver import SolverRow
from holdfast.store.remote_rows import BREAKER, RemoteRows
from holdfast.store.rows import SETTINGS, Part, Table
from holdfast.store.tx import Tx

TABLE: Final = Table(
    SolverRow, "solvers", codecs={"settings": SETTINGS, "credentials": SETTINGS}, parts={"breaker": Part(BREAKER)}
)
ROWS: Final = RemoteRows(TABLE, decided=("names", "settings", "credentials", "state"))
insert, save, get, delete = ROWS.insert, ROWS.save, ROWS.get, ROWS.delete


def in_order(tx: Tx) -> list[SolverRow]:
    return ROWS.all(tx, "created_at, name")
