"""Endpoints: where certificates are seen served, and what was seen there last."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from holdfast.core.endpoint import Endpoint
from holdfast.core.endpoint_watch import LastLook, WatchedEndpoint
from holdfast.errors import TxConflict
from holdfast.store.inventory import holds
from holdfast.store.rows import LABELS, Part, Table, assignments, codec_of
from holdfast.store.tx import Tx, value_list

PAGE: Final = 200
LAST: Final = Table(LastLook, prefix="last_")
TABLE: Final = Table(
    WatchedEndpoint,
    "endpoints",
    codecs={"labels": LABELS},
    parts={
        "place": Part(Table(Endpoint, codecs={"keys": codec_of(tuple[str, ...])})),
        "last": Part(LAST, absent="last_at"),
    },
)


def insert(tx: Tx, row: WatchedEndpoint) -> bool:
    """Add one; False if the name is taken."""
    return tx.run(f"{TABLE.insert} ON CONFLICT DO NOTHING", **TABLE.values(row)) == 1


def save(tx: Tx, before: WatchedEndpoint, **changes: Any) -> WatchedEndpoint:
    """Write what changed, as the next version; TxConflict if it was changed since it was read."""
    written = TABLE.changes({**changes, "version": before.version + 1})
    changed = tx.run(
        f"UPDATE endpoints SET {assignments(written)} WHERE id = :id AND version = :was",
        id=before.id,
        was=before.version,
        **written,
    )
    if not changed:
        raise TxConflict(f"endpoint {before.name} was changed meanwhile")
    return replace(before, version=before.version + 1, **changes)


def save_look(tx: Tx, row: WatchedEndpoint, last: LastLook) -> bool:
    """Remember a look; False if the endpoint was changed or deleted since, so that it looked at something else."""
    return (
        tx.run(
            f"UPDATE endpoints SET {assignments(LAST.names)} WHERE id = :id AND version = :was",
            id=row.id,
            was=row.version,
            **LAST.values(last),
        )
        == 1
    )


def delete(tx: Tx, endpoint: str) -> bool:
    return tx.run("DELETE FROM endpoints WHERE id = :id", id=endpoint) == 1


def get(tx: Tx, endpoint: str) -> WatchedEndpoint | None:
    return _one(tx, "id = :ref", endpoint)


def by_name(tx: Tx, name: str) -> WatchedEndpoint | None:
    return _one(tx, "name = :ref", name)


def _one(tx: Tx, clause: str, ref: str) -> WatchedEndpoint | None:
    row = tx.row(f"SELECT {TABLE.columns} FROM endpoints WHERE {clause}", ref=ref)
    return None if row is None else TABLE.read(row)


def page(
    tx: Tx,
    *,
    after: str = "",
    limit: int,
    owners: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    reasons: Mapping[str, int] | None = None,
) -> list[WatchedEndpoint]:
    """In the order of their names: of one of these owners, with all of these labels, and a last look with one of these
    reasons, so many times in a row."""
    clauses, values = ["name > :after"], dict[str, object]({"after": after, "limit": limit})
    if owners:
        names = {f"owner_{number}": each for number, each in enumerate(owners)}
        clauses.append(f"owner IN (:{', :'.join(names)})")
        values |= names
    if reasons:
        each = [f"last_reason = :reason_{n} AND last_times >= :times_{n}" for n in range(len(reasons))]
        clauses.append(f"({' OR '.join(each)})")
        values |= {f"reason_{n}": reason for n, reason in enumerate(reasons)}
        values |= {f"times_{n}": times for n, times in enumerate(reasons.values())}
    for number, (name, value) in enumerate((labels or {}).items()):
        clauses.append(holds("labels", f"label_{number}"))
        values[f"label_{number}"] = f"{json.dumps(name)}: {json.dumps(value)}"
    rows = tx.rows(
        f"SELECT {TABLE.columns} FROM endpoints WHERE {' AND '.join(clauses)} ORDER BY name LIMIT :limit", **values
    )
    return [TABLE.read(row) for row in rows]


def of_certificates(tx: Tx, ids: Sequence[str]) -> list[WatchedEndpoint]:
    """Where these certificates should be seen, in the order of names."""
    if not ids:
        return []
    text, values = value_list([(each,) for each in ids])
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM endpoints WHERE certificate IN ({text})
             UNION ALL SELECT {TABLE.columns} FROM endpoints WHERE twin IN ({text})""",
        **values,
    )
    found = {row["id"]: TABLE.read(row) for row in rows}  # one may name a certificate and its twin
    return sorted(found.values(), key=lambda each: each.name)


def of_target(tx: Tx, target: str) -> list[WatchedEndpoint]:
    rows = tx.rows(f"SELECT {TABLE.columns} FROM endpoints WHERE target = :target ORDER BY name", target=target)
    return [TABLE.read(row) for row in rows]


def targets(tx: Tx) -> set[str]:
    """The targets that endpoints belong to; some may be gone."""
    return {row["target"] for row in tx.rows("SELECT DISTINCT target FROM endpoints WHERE target <> ''")}


def without_job(tx: Tx, kind: str) -> list[str]:
    """Endpoints that are not looked at any more; at most a page."""
    rows = tx.rows(
        """SELECT id FROM endpoints
            WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.kind = :kind AND jobs.subject = endpoints.id)
            ORDER BY id LIMIT :limit""",
        kind=kind,
        limit=PAGE,
    )
    return [row["id"] for row in rows]


def counts(tx: Tx) -> dict[str, int]:
    """How many there are, by the reason of the last look; empty: not looked at yet."""
    rows = tx.rows("SELECT COALESCE(last_reason, '') AS reason, COUNT(*) AS n FROM endpoints GROUP BY last_reason")
    return {row["reason"]: int(row["n"]) for row in rows}
