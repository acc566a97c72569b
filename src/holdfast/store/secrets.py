"""Sealed secrets, and the check values that tell the right key-encryption key (KEK) from a wrong one.

A secret is written once and never changed: a new value is a new row. Only a rotation changes its wrap.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypedDict

from holdfast.errors import KeyMissing
from holdfast.keyring import Sealed
from holdfast.store.tx import Row, Tx, from_micros


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSecret:
    """A sealed secret and the id it is kept under: `bound_…`."""

    id: str
    sealed: Sealed


@dataclass(frozen=True, slots=True, kw_only=True)
class KekCheck:
    """What the database knows about a KEK."""

    kek_id: str
    current: bool  # new secrets are sealed under it
    salt: bytes | None  # scrypt's; None: the KEK is in the key file
    box: bytes
    created_at: datetime


class Place(TypedDict):
    table: str
    row: str
    column: str


BOUND: Final = "bound"  # how the ids begin of those that say whose they are; the id is authenticated with the box


def place(secret_id: str) -> Place:
    """Where a secret belongs; it does not open anywhere else."""
    return {"table": "secrets", "row": secret_id, "column": "box"}


# ── Secrets ──


def put(tx: Tx, kept: KeptSecret) -> None:
    """Add a secret. KeyMissing if its KEK is not the current one any more: it must be sealed again.

    So a rotation has an end, however many are put meanwhile by replicas that have not noticed it.
    """
    added = tx.run(
        """INSERT INTO secrets (id, kek_id, wrapped, box, binding, created_at)
           SELECT :id, kek_id, :wrapped, :box, :binding, now_us() FROM key_checks
            WHERE kek_id = :kek_id AND is_current""",
        id=kept.id,
        kek_id=kept.sealed.kek_id,
        wrapped=kept.sealed.wrapped,
        box=kept.sealed.box,
        binding=kept.sealed.binding,
    )
    if not added:
        raise KeyMissing(kept.sealed.kek_id)


def get(tx: Tx, secret_id: str) -> Sealed | None:
    row = tx.row("SELECT id, kek_id, wrapped, box, binding FROM secrets WHERE id = :id", id=secret_id)
    return None if row is None else _kept(row).sealed


def delete(tx: Tx, secret_id: str) -> bool:
    return tx.run("DELETE FROM secrets WHERE id = :id", id=secret_id) == 1


def under(tx: Tx, kek_id: str, *, after: str, limit: int) -> list[KeptSecret]:
    """A page of the secrets under a KEK, in order of id."""
    rows = tx.rows(
        """SELECT id, kek_id, wrapped, box, binding FROM secrets
            WHERE kek_id = :kek_id AND id > :after ORDER BY id LIMIT :limit""",
        kek_id=kek_id,
        after=after,
        limit=limit,
    )
    return [_kept(row) for row in rows]


def rewrap(tx: Tx, before: KeptSecret, after: Sealed) -> bool:
    """Replace the wrap of one secret; False if it is no longer as it was read."""
    changed = tx.run(
        """UPDATE secrets SET kek_id = :kek_id, wrapped = :wrapped
            WHERE id = :id AND kek_id = :old_kek_id AND wrapped = :old_wrapped""",
        id=before.id,
        kek_id=after.kek_id,
        wrapped=after.wrapped,
        old_kek_id=before.sealed.kek_id,
        old_wrapped=before.sealed.wrapped,
    )
    return changed == 1


def counts(tx: Tx) -> dict[str, int]:
    """How many secrets are under each KEK."""
    rows = tx.rows("SELECT kek_id, COUNT(*) AS number FROM secrets GROUP BY kek_id")
    return {row["kek_id"]: row["number"] for row in rows}


def _kept(row: Row) -> KeptSecret:
    binding = None if row["binding"] is None else bytes(row["binding"])
    sealed = Sealed(kek_id=row["kek_id"], wrapped=bytes(row["wrapped"]), box=bytes(row["box"]), binding=binding)
    return KeptSecret(id=row["id"], sealed=sealed)


# ── Checks ──


def checks(tx: Tx) -> list[KekCheck]:
    """Every KEK in use, the current one first; none before the first start."""
    rows = tx.rows(
        """SELECT kek_id, is_current, salt, check_box, created_at FROM key_checks
            ORDER BY is_current DESC, created_at DESC, kek_id DESC"""
    )
    return [
        KekCheck(
            kek_id=row["kek_id"],
            current=bool(row["is_current"]),
            salt=None if row["salt"] is None else bytes(row["salt"]),
            box=bytes(row["check_box"]),
            created_at=from_micros(row["created_at"]),
        )
        for row in rows
    ]


def add_current(tx: Tx, check: KekCheck) -> None:
    """Make a KEK the current one. Duplicate if there is one that did not step down first."""
    tx.run(
        """INSERT INTO key_checks (kek_id, is_current, salt, check_box, created_at)
           VALUES (:kek_id, TRUE, :salt, :box, :created_at)""",
        kek_id=check.kek_id,
        salt=check.salt,
        box=check.box,
        created_at=check.created_at,
    )


def step_down(tx: Tx, kek_id: str) -> None:
    """Make room for another current KEK. Secrets that are being sealed with this one now are found by the rotation."""
    tx.run("UPDATE key_checks SET is_current = FALSE WHERE kek_id = :kek_id", kek_id=kek_id)


def retire(tx: Tx, kek_id: str) -> bool:
    """Forget a KEK that nothing needs any more; False if a secret is still under it.

    The lock waits for secrets that are being put under it; only a later statement sees them on PostgreSQL.
    """
    tx.rows("SELECT kek_id FROM key_checks WHERE kek_id = :kek_id /* FOR UPDATE */", kek_id=kek_id)
    changed = tx.run(
        """DELETE FROM key_checks WHERE kek_id = :kek_id AND NOT is_current
              AND NOT EXISTS (SELECT 1 FROM secrets WHERE secrets.kek_id = :kek_id)""",
        kek_id=kek_id,
    )
    return changed == 1
