"""Our CAs: their certificates, where their keys are, and what their operator decided."""

from __future__ import annotations

from typing import Final

from holdfast.core.own_ca.ca import CaRow
from holdfast.errors import TxConflict
from holdfast.store.rows import Table, assignments
from holdfast.store.tx import Tx

TABLE: Final = Table(CaRow, "cas")


def insert(tx: Tx, row: CaRow) -> None:
    """Duplicate if there is a CA of this id."""
    tx.run(TABLE.insert, **TABLE.values(row))


def save(tx: Tx, row: CaRow) -> CaRow:
    """Write what was changed since it was read, as its next version; TxConflict if the row was changed meanwhile."""
    values = TABLE.values(row)
    written = [name for name in values if name not in ("id", "version", "created_at")]
    changed = tx.run(
        f"UPDATE cas SET {assignments(written)}, version = version + 1 WHERE id = :id AND version = :version",
        **{name: values[name] for name in (*written, "id", "version")},
    )
    if not changed:
        raise TxConflict(f"CA {row.id} was changed meanwhile")
    return get(tx, row.id) or row


def get(tx: Tx, ca: str) -> CaRow | None:
    row = tx.row(f"SELECT {TABLE.columns} FROM cas WHERE id = :id", id=ca)
    return None if row is None else TABLE.read(row)


def everything(tx: Tx) -> list[CaRow]:
    return [TABLE.read(row) for row in tx.rows(f"SELECT {TABLE.columns} FROM cas ORDER BY id")]


def trusted_roots(tx: Tx) -> str:
    """The roots of all our CAs in PEM, each once, in an order that does not change."""
    rows = tx.rows("SELECT root FROM cas WHERE root <> '' ORDER BY id")
    return "".join(dict.fromkeys(f"{row['root'].strip()}\n" for row in rows))


def versions(tx: Tx) -> dict[str, int]:
    """The versions to compare with those in memory: cheap enough to ask every few seconds."""
    return {row["id"]: row["version"] for row in tx.rows("SELECT id, version FROM cas ORDER BY id")}


def version(tx: Tx, ca: str) -> int | None:
    """None: there is no such CA any more."""
    row = tx.row("SELECT version FROM cas WHERE id = :id", id=ca)
    return None if row is None else int(row["version"])


# ── Where lists were ever to be found ──


def addresses(tx: Tx, ca: str) -> list[str]:
    """Every address that certificates of this CA may name, with "{shard}" in it; the oldest first."""
    rows = tx.rows("SELECT url FROM ca_addresses WHERE ca = :ca ORDER BY since_at, url", ca=ca)
    return [row["url"] for row in rows]


def remember_address(tx: Tx, ca: str, url: str) -> bool:
    """Before a certificate names it; False if it was known."""
    added = tx.run(
        "INSERT INTO ca_addresses (ca, url, since_at) VALUES (:ca, :url, now_us()) ON CONFLICT DO NOTHING",
        ca=ca,
        url=url,
    )
    return added == 1
