"""The statements that all tables of named remotes share: issuers, channels, solvers and targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from holdfast.core.issuers.breaker import Breaker
from holdfast.errors import TxConflict
from holdfast.store.rows import Table, assignments
from holdfast.store.tx import Tx, value_list

BREAKER: Final = Table(Breaker, prefix="breaker_")


class NamedRow(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...


R = TypeVar("R", bound=NamedRow)


@dataclass(frozen=True, slots=True)
class RemoteRows(Generic[R]):
    """One table of remotes. A row is saved as its next version; breakers have a statement of their own."""

    table: Table[R]
    decided: tuple[str, ...]  # the fields that people change
    derived: Callable[[R, R], R] = lambda before, after: after  # fields that follow of a change

    def insert(self, tx: Tx, row: R) -> bool:
        """Add one; False if the name is taken."""
        return tx.run(f"{self.table.insert} ON CONFLICT DO NOTHING", **self.table.values(row)) == 1

    def save(self, tx: Tx, before: R, **changes: object) -> R:
        """Write the fields that people change, unless another transaction has changed the row meanwhile."""
        after = self.derived(before, replace(before, version=before.version + 1, **changes))
        written = self.table.changes({name: getattr(after, name) for name in (*self.decided, "version")})
        changed = tx.run(
            f"UPDATE {self.table.name} SET {assignments(written)} WHERE name = :name AND version = :was",
            name=before.name,
            was=before.version,
            **written,
        )
        if not changed:
            raise TxConflict(f"{before.name} of {self.table.name} was changed meanwhile")
        return after

    def save_breaker(self, tx: Tx, name: str, breaker: Breaker) -> None:
        tx.run(
            f"UPDATE {self.table.name} SET {assignments(BREAKER.names)} WHERE name = :name",
            name=name,
            **BREAKER.values(breaker),
        )

    def get(self, tx: Tx, name: str, *, lock: bool = False) -> R | None:
        locked = "/* FOR UPDATE */" if lock else ""
        text = f"SELECT {self.table.columns} FROM {self.table.name} WHERE name = :name {locked}"
        row = tx.row(text, name=name)
        return None if row is None else self.table.read(row)

    def named(self, tx: Tx, names: Sequence[str]) -> dict[str, R]:
        if not names:
            return {}
        text, values = value_list([(name,) for name in names])
        rows = tx.rows(f"SELECT {self.table.columns} FROM {self.table.name} WHERE name IN ({text})", **values)
        return {row.name: row for row in map(self.table.read, rows)}

    def all(self, tx: Tx, order: str = "name") -> list[R]:
        rows = tx.rows(f"SELECT {self.table.columns} FROM {self.table.name} ORDER BY {order}")
        return [self.table.read(row) for row in rows]

    def delete(self, tx: Tx, name: str) -> None:
        tx.run(f"DELETE FROM {self.table.name} WHERE name = :name", name=name)
