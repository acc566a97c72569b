"""The newest list of each root whose key is kept here: which of its intermediates are revoked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.store.tx import Row, Tx, from_micros


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCrl:
    root: str  # the SHA-256 of its certificate, in hex
    number: int
    this_update: datetime
    next_update: datetime
    der: bytes


_COLUMNS = "root, number, this_update, next_update, der"


def get(tx: Tx, root: str) -> RootCrl | None:
    row = tx.row(f"SELECT {_COLUMNS} FROM root_crls WHERE root = :root", root=root)
    return None if row is None else _crl(row)


def everything(tx: Tx) -> list[RootCrl]:
    return [_crl(row) for row in tx.rows(f"SELECT {_COLUMNS} FROM root_crls ORDER BY root")]


def put(tx: Tx, crl: RootCrl) -> bool:
    """Replace the list of a root by a later one; False if there is one of this number already, or a later one."""
    changed = tx.run(
        f"""INSERT INTO root_crls ({_COLUMNS}) VALUES (:root, :number, :this_update, :next_update, :der)
            ON CONFLICT (root) DO UPDATE SET number = excluded.number, this_update = excluded.this_update,
                   next_update = excluded.next_update, der = excluded.der
             WHERE root_crls.number < excluded.number""",
        root=crl.root,
        number=crl.number,
        this_update=crl.this_update,
        next_update=crl.next_update,
        der=crl.der,
    )
    return changed == 1


def _crl(row: Row) -> RootCrl:
    return RootCrl(
        root=row["root"],
        number=row["number"],
        this_update=from_micros(row["this_update"]),
        next_update=from_micros(row["next_update"]),
        der=bytes(row["der"]),
    )
