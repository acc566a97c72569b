"""The table of policies, and who holds a name already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from holdfast.core.certificate import Certificate, in_common_with
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.policy import Policy
from holdfast.errors import TxConflict
from holdfast.store import certificates
from holdfast.store.rows import Table, assignments
from holdfast.store.tx import Tx, value_list

TABLE: Final = Table(Policy, "policies")


def insert(tx: Tx, policy: Policy) -> bool:
    """Add one; False if the name is taken."""
    return tx.run(f"{TABLE.insert} ON CONFLICT DO NOTHING", **TABLE.values(policy)) == 1


def save(tx: Tx, before: Policy, **changes: Any) -> Policy:
    """Write what changed, as the next version; TxConflict if it was changed since it was read."""
    written = TABLE.changes({**changes, "version": before.version + 1})
    changed = tx.run(
        f"UPDATE policies SET {assignments(written)} WHERE name = :key AND version = :was",
        key=before.name,
        was=before.version,
        **written,
    )
    if not changed:
        raise TxConflict(f"policy {before.name} was changed meanwhile")
    return replace(before, version=before.version + 1, **changes)


def delete(tx: Tx, name: str) -> bool:
    return tx.run("DELETE FROM policies WHERE name = :name", name=name) == 1


def get(tx: Tx, name: str) -> Policy | None:
    row = tx.row(f"SELECT {TABLE.columns} FROM policies WHERE name = :name", name=name)
    return None if row is None else TABLE.read(row)


def everything(tx: Tx) -> list[Policy]:
    return [TABLE.read(row) for row in tx.rows(f"SELECT {TABLE.columns} FROM policies ORDER BY name")]


def holders(tx: Tx, identifiers: Sequence[Identifier]) -> list[Certificate]:
    """The certificates in use that are good for one of these names, or for a name that one of these is good for."""
    exact = {each.value for each in identifiers} | {f"*.{each.value.partition('.')[2]}" for each in identifiers}
    text, values = value_list([(each,) for each in sorted(exact)])
    below = {f"below{n}": f"%{each.value[1:]}" for n, each in enumerate(identifiers) if each.value.startswith("*.")}
    likes = "".join(f" OR text LIKE :{each}" for each in below)
    rows = tx.rows(
        f"""SELECT {certificates.TABLE.of("certificates")} FROM certificates
             WHERE state <> 'archived'
               AND id IN (SELECT certificate FROM certificate_names WHERE text IN ({text}){likes})
             ORDER BY id""",
        **values,
        **below,
    )
    shared = in_common_with(identifiers)
    found = [certificates.TABLE.read(row) for row in rows]
    return [each for each in found if shared(each.wanted.identifiers) is not None]
