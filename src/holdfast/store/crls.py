"""Certificate revocation lists: the newest of each shard of each CA, and what was listed on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.store.tx import Row, Tx, from_micros, value_list

PAGE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Crl:
    ca: str
    shard: int
    number: int
    this_update: datetime
    next_update: datetime
    der: bytes


def get(tx: Tx, ca: str, shard: int) -> Crl | None:
    row = tx.row(
        """SELECT ca, shard, number, this_update, next_update, der FROM crls WHERE ca = :ca AND shard = :shard""",
        ca=ca,
        shard=shard,
    )
    return None if row is None else _crl(row)


def ends(tx: Tx) -> dict[str, datetime]:
    """When the first of the lists of each CA ends."""
    rows = tx.rows("SELECT ca, MIN(next_update) AS ends FROM crls GROUP BY ca ORDER BY ca")
    return {row["ca"]: from_micros(row["ends"]) for row in rows}


def begun_after(tx: Tx, at: datetime) -> set[tuple[str, int]]:
    """The CA and shard of each list that begins only after this time."""
    rows = tx.rows("SELECT ca, shard FROM crls WHERE this_update > :at ORDER BY ca, shard", at=at)
    return {(row["ca"], row["shard"]) for row in rows}


def put(tx: Tx, crl: Crl) -> bool:
    """Replace the list of a shard by a later one; False if there is one of this number already, or a later one."""
    changed = tx.run(
        """INSERT INTO crls (ca, shard, number, this_update, next_update, der)
           VALUES (:ca, :shard, :number, :this_update, :next_update, :der)
           ON CONFLICT (ca, shard) DO UPDATE SET number = excluded.number, this_update = excluded.this_update,
                  next_update = excluded.next_update, der = excluded.der
            WHERE crls.number < excluded.number""",
        ca=crl.ca,
        shard=crl.shard,
        number=crl.number,
        this_update=crl.this_update,
        next_update=crl.next_update,
        der=crl.der,
    )
    return changed == 1


def listed(tx: Tx, certificates: Iterable[str], at: datetime) -> None:
    """Note that these certificates are on a list of this time."""
    ids = sorted(certificates)
    for start in range(0, len(ids), PAGE):
        text, values = value_list([(each,) for each in ids[start : start + PAGE]])
        tx.run(f"UPDATE ca_certificates SET listed_at = :at WHERE id IN ({text})", at=at, **values)


def unlisted_since(tx: Tx, ca: str, shard: int) -> datetime | None:
    """Since when a revoked certificate of this shard waits for its first list; None if none does."""
    row = tx.row(
        """SELECT MIN(revoked_at) AS since FROM ca_certificates
            WHERE ca = :ca AND shard = :shard AND revoked_at IS NOT NULL AND listed_at IS NULL""",
        ca=ca,
        shard=shard,
    )
    return None if row is None or row["since"] is None else from_micros(row["since"])


def _crl(row: Row) -> Crl:
    return Crl(
        ca=row["ca"],
        shard=row["shard"],
        number=row["number"],
        this_update=from_micros(row["this_update"]),
        next_update=from_micros(row["next_update"]),
        der=bytes(row["der"]),
    )
