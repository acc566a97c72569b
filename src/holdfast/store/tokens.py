"""Tokens of the API: who they stand for, what they may do, and the hash by which one is known; never the token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from holdfast.store.tx import Row, Tx, from_micros, instant

PAGE: Final = 200
SHORTEST_PREFIX: Final = 8
_COLUMNS = """id, hash, name, kind, role, rights, owners, labels, created_by, created_at, expires_at, last_used_at,
              revoked_at"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    id: str  # its public part, by which people name it
    hash: str = field(repr=False)
    name: str  # who uses it
    kind: str
    role: str
    rights: frozenset[str] = frozenset()
    owners: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    created_by: str
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None

    def good_at(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def insert(tx: Tx, token: TokenRow) -> bool:
    """False if there is one like it: another replica made the first token."""
    added = tx.run(
        f"""INSERT INTO tokens ({_COLUMNS})
            VALUES (:id, :hash, :name, :kind, :role, :rights, :owners, :labels, :created_by, :created_at, :expires_at,
                    NULL, NULL) ON CONFLICT DO NOTHING""",
        id=token.id,
        hash=token.hash,
        name=token.name,
        kind=token.kind,
        role=token.role,
        rights=json.dumps(sorted(token.rights)),
        owners=json.dumps(list(token.owners)),
        labels=json.dumps(dict(token.labels), sort_keys=True),
        created_by=token.created_by,
        created_at=token.created_at,
        expires_at=token.expires_at,
    )
    return added == 1


def get(tx: Tx, token: str) -> TokenRow | None:
    row = tx.row(f"SELECT {_COLUMNS} FROM tokens WHERE id = :id", id=token)
    return None if row is None else _token(row)


def by_prefix(tx: Tx, beginning: str) -> TokenRow | None:
    """The only one whose id begins so; too short a beginning is a slip of the hand."""
    if len(beginning) < SHORTEST_PREFIX:
        return None
    rows = tx.rows(
        f"SELECT {_COLUMNS} FROM tokens WHERE id >= :low AND id < :high ORDER BY id LIMIT 2",
        low=beginning,
        high=beginning + "\uffff",
    )
    return _token(rows[0]) if len(rows) == 1 else None


def page(tx: Tx, *, after: str = "", limit: int = PAGE) -> list[TokenRow]:
    """In the order in which they were made."""
    rows = tx.rows(
        f"SELECT {_COLUMNS} FROM tokens WHERE id > :after ORDER BY id LIMIT :limit", after=after, limit=limit
    )
    return [_token(row) for row in rows]


def any_made(tx: Tx) -> bool:
    """Whether somebody was let in already, by whatever token but the first."""
    return tx.row("SELECT id FROM tokens WHERE role <> 'first' LIMIT 1") is not None


def revoke(tx: Tx, token: str) -> bool:
    """False if it was revoked before."""
    changed = tx.run("UPDATE tokens SET revoked_at = now_us() WHERE id = :id AND revoked_at IS NULL", id=token)
    return changed == 1


def revoke_first(tx: Tx) -> int:
    return tx.run("UPDATE tokens SET revoked_at = now_us() WHERE role = 'first' AND revoked_at IS NULL")


def used(tx: Tx, token: str, at: datetime) -> None:
    tx.run("UPDATE tokens SET last_used_at = :at WHERE id = :id", id=token, at=at)


def _token(row: Row) -> TokenRow:
    return TokenRow(
        id=row["id"],
        hash=row["hash"],
        name=row["name"],
        kind=row["kind"],
        role=row["role"],
        rights=frozenset(json.loads(row["rights"])),
        owners=tuple(json.loads(row["owners"])),
        labels=json.loads(row["labels"]),
        created_by=row["created_by"],
        created_at=from_micros(row["created_at"]),
        expires_at=instant(row["expires_at"]),
        last_used_at=instant(row["last_used_at"]),
        revoked_at=instant(row["revoked_at"]),
    )
