"""CRLs of our CAs, shard by shard, and CRLs of roots."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from holdfast.core.own_ca.ca import Crl, RootCrl
from holdfast.core.witness import PublishedRootCrl, published
from holdfast.store.rows import Table
from holdfast.store.tx import Tx, from_micros, value_list

PAGE: Final = 500
TABLE: Final = Table(Crl, "crls")


def get(tx: Tx, ca: str, shard: int) -> Crl | None:
    row = tx.row(
        f"SELECT {TABLE.columns} FROM crls WHERE ca = :ca AND shard = :shard",
        ca=ca,
        shard=shard,
    )
    return None if row is None else TABLE.read(row)


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
        f"""{TABLE.insert}
           ON CONFLICT (ca, shard) DO UPDATE SET number = excluded.number, this_update = excluded.this_update,
                  next_update = excluded.next_update, der = excluded.der
            WHERE crls.number < excluded.number""",
        **TABLE.values(crl),
    )
    if changed == 1:
        tx.facts.append(published(crl))
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


ROOT_TABLE: Final = Table(RootCrl, "root_crls")


def get_root_crl(tx: Tx, root: str) -> RootCrl | None:
    row = tx.row(f"SELECT {ROOT_TABLE.columns} FROM root_crls WHERE root = :root", root=root)
    return None if row is None else ROOT_TABLE.read(row)


def all_root_crls(tx: Tx) -> list[RootCrl]:
    return [ROOT_TABLE.read(row) for row in tx.rows(f"SELECT {ROOT_TABLE.columns} FROM root_crls ORDER BY root")]


def put_root_crl(tx: Tx, crl: RootCrl, *, told: bool = True) -> bool:
    """Replace the list of a root by a later one; False if there is one of this number already, or a later one."""
    changed = tx.run(
        f"""{ROOT_TABLE.insert}
            ON CONFLICT (root) DO UPDATE SET number = excluded.number, this_update = excluded.this_update,
                   next_update = excluded.next_update, der = excluded.der
             WHERE root_crls.number < excluded.number""",
        **ROOT_TABLE.values(crl),
    )
    if changed == 1 and told:
        tx.facts.append(PublishedRootCrl(crl=crl))
    return changed == 1
