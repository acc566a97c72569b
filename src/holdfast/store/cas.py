"""Our CAs: their certificates, where their keys are, and what their operator decided."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from holdfast.core.ca import CaOptions
from holdfast.errors import TxConflict
from holdfast.store.tx import Row, Tx, from_micros

State = Literal["active", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaRow:
    """One CA as it is kept. Its key is a sealed secret or is in a device, never both."""

    id: str
    state: State = "active"
    certificate: bytes  # the issuer's, in DER
    above: str = ""  # PEM: what stands between the issuer and its root
    root: str = ""  # PEM
    alternates: tuple[str, ...] = ()  # PEM: other chains from the issuer to other roots
    key_secret: str | None = None
    key_device: str | None = None  # a PKCS#11 address (RFC 7512)
    root_secret: str | None = None  # the root's key, if it was made here; opened for lists and the next issuer alone
    options: CaOptions
    version: int = 1
    created_at: datetime


def insert(tx: Tx, row: CaRow) -> None:
    """Duplicate if there is a CA of this id."""
    tx.run(
        """INSERT INTO cas (id, state, certificate, above, root, alternates, key_secret, key_device, root_secret,
                            options, version, created_at)
           VALUES (:id, :state, :certificate, :above, :root, :alternates, :key_secret, :key_device, :root_secret,
                   :options, :version, :created_at)""",
        **_values(row),
        id=row.id,
        version=row.version,
        created_at=row.created_at,
    )


def save(tx: Tx, row: CaRow) -> CaRow:
    """Write what was changed since it was read, as its next version; TxConflict if somebody else changed it."""
    changed = tx.run(
        """UPDATE cas SET state = :state, certificate = :certificate, above = :above, root = :root,
                  alternates = :alternates, key_secret = :key_secret, key_device = :key_device,
                  root_secret = :root_secret, options = :options, version = version + 1
            WHERE id = :id AND version = :version""",
        **_values(row),
        id=row.id,
        version=row.version,
    )
    if not changed:
        raise TxConflict(f"CA {row.id} was changed meanwhile")
    return get(tx, row.id) or row


def get(tx: Tx, ca: str) -> CaRow | None:
    row = tx.row(f"SELECT {_COLUMNS} FROM cas WHERE id = :id", id=ca)
    return None if row is None else _ca(row)


def everything(tx: Tx) -> list[CaRow]:
    return [_ca(row) for row in tx.rows(f"SELECT {_COLUMNS} FROM cas ORDER BY id")]


def versions(tx: Tx) -> dict[str, int]:
    """What to compare with what is held in memory: cheap enough to ask every few seconds."""
    return {row["id"]: row["version"] for row in tx.rows("SELECT id, version FROM cas ORDER BY id")}


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


_COLUMNS: Final = """id, state, certificate, above, root, alternates, key_secret, key_device, root_secret, options,
                     version, created_at"""


def _values(row: CaRow) -> dict[str, Any]:
    return {
        "state": row.state,
        "certificate": row.certificate,
        "above": row.above,
        "root": row.root,
        "alternates": json.dumps(row.alternates),
        "key_secret": row.key_secret,
        "key_device": row.key_device,
        "root_secret": row.root_secret,
        "options": json.dumps(row.options.to_json()),
    }


def _ca(row: Row) -> CaRow:
    return CaRow(
        id=row["id"],
        state=row["state"],
        certificate=bytes(row["certificate"]),
        above=row["above"],
        root=row["root"],
        alternates=tuple(json.loads(row["alternates"])),
        key_secret=row["key_secret"],
        key_device=row["key_device"],
        root_secret=row["root_secret"],
        options=CaOptions.from_json(json.loads(row["options"])),
        version=row["version"],
        created_at=from_micros(row["created_at"]),
    )
