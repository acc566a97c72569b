"""Finds and their places: certificates that were seen somewhere, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core.discovery.find import HERE, CertificateFacts, Find, FindPlace, FindState
from holdfast.errors import TxConflict
from holdfast.store.rows import Part, Table, assignments
from holdfast.store.tx import Tx, from_micros, value_list

PAGE: Final = 200
TABLE: Final = Table(Find, "finds", parts={"facts": Part(Table(CertificateFacts))})
PLACES: Final = Table(FindPlace, "find_places")
_ELSEWHERE: Final = f"manager NOT IN ({', '.join(repr(each.value) for each in sorted(HERE))})"
OPEN: Final = f"state = 'new' AND {_ELSEWHERE}"  # a person must decide


def insert(tx: Tx, row: Find) -> None:
    tx.run(TABLE.insert, **TABLE.values(row))


def save(tx: Tx, before: Find, **changes: Any) -> Find:
    """Write what changed, as the next version; TxConflict if it was changed since it was read."""
    written = TABLE.changes({**changes, "version": before.version + 1})
    changed = tx.run(
        f"UPDATE finds SET {assignments(written)} WHERE id = :id AND version = :was",
        id=before.id,
        was=before.version,
        **written,
    )
    if not changed:
        raise TxConflict(f"find {before.id} was changed meanwhile")
    return replace(before, version=before.version + 1, **changes)


def get(tx: Tx, find: str) -> Find | None:
    return _one(tx, "id = :value", find)


def by_key(tx: Tx, key: str) -> Find | None:
    return _one(tx, "key = :value", key)


def by_serial_key(tx: Tx, serial_key: str) -> Find | None:
    """Of a CA that never gives one serial twice."""
    return _one(tx, "serial_key = :value AND self_signed = FALSE", serial_key)


def _one(tx: Tx, clause: str, value: str) -> Find | None:
    row = tx.row(f"SELECT {TABLE.columns} FROM finds WHERE {clause} ORDER BY id LIMIT 1", value=value)
    return None if row is None else TABLE.read(row)


def by_fingerprint(tx: Tx, beginning: str, limit: int = 2) -> list[Find]:
    """Those whose fingerprint begins so."""
    rows = tx.rows(
        f"SELECT {TABLE.columns} FROM finds WHERE key >= :low AND key < :high ORDER BY key LIMIT :limit",
        low=beginning,
        high=beginning + "g",  # after every digit
        limit=limit,
    )
    return [TABLE.read(row) for row in rows]


def page(
    tx: Tx,
    *,
    after: str = "",
    limit: int,
    states: Sequence[FindState] = (),
    unmanaged_only: bool = False,
    served: bool = False,
    text: str | None = None,
    ends_before: datetime | None = None,
) -> list[Find]:
    """In the order of their ids."""
    clauses, values = ["id > :after"], dict[str, object]({"after": after, "limit": limit})
    if states:
        clauses.append(f"state IN ({', '.join(f':state_{number}' for number in range(len(states)))})")
        values |= {f"state_{number}": each for number, each in enumerate(states)}
    if unmanaged_only:
        clauses.append(OPEN)
    if served:
        clauses.append("served = TRUE")
    if text is not None:
        clauses.append("(LOWER(names) LIKE :text ESCAPE '!' OR fingerprint LIKE :text ESCAPE '!')")
        values["text"] = f"%{_escaped(text.lower())}%"
    if ends_before is not None:
        clauses.append("not_after < :ends_before")
        values["ends_before"] = ends_before
    rows = tx.rows(
        f"SELECT {TABLE.columns} FROM finds WHERE {' AND '.join(clauses)} ORDER BY id LIMIT :limit", **values
    )
    return [TABLE.read(row) for row in rows]


def _escaped(text: str) -> str:
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def unmanaged(tx: Tx, limit: int) -> list[Find]:
    """Served, not managed here, and not decided about; those first that expire first."""
    rows = tx.rows(
        f"SELECT {TABLE.columns} FROM finds WHERE {OPEN} AND served = TRUE ORDER BY not_after, id LIMIT :limit",
        limit=limit,
    )
    return [TABLE.read(row) for row in rows]


def count_unmanaged(tx: Tx) -> int:
    row = tx.row(f"SELECT COUNT(*) AS n FROM finds WHERE {OPEN} AND served = TRUE")
    return 0 if row is None else int(row["n"])


def counts(tx: Tx) -> dict[tuple[str, str], int]:
    """How many there are, by state and manager."""
    rows = tx.rows("SELECT state, manager, COUNT(*) AS n FROM finds GROUP BY state, manager")
    return {(row["state"], row["manager"]): int(row["n"]) for row in rows}


def ending(tx: Tx, before: datetime, limit: int) -> list[Find]:
    """Not gone, not ignored, not managed here, and expiring by then; those first that expire first."""
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM finds
             WHERE state IN ('new', 'adopted') AND {_ELSEWHERE} AND places > 0 AND not_after < :before
               AND (told_days IS NULL OR told_days > 0)
             ORDER BY not_after, id LIMIT :limit""",
        before=before,
        limit=limit,
    )
    return [TABLE.read(row) for row in rows]


# ── Who manages them ──


def with_a_version(tx: Tx, limit: int = PAGE) -> list[Find]:
    """Those not known to be managed here, though a version here, or a certificate of our CA, has their serial."""
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM finds
             WHERE state <> 'gone' AND {_ELSEWHERE}
               AND (EXISTS (SELECT 1 FROM certificate_versions WHERE certificate_versions.serial = finds.serial)
                    OR EXISTS (SELECT 1 FROM ca_certificates WHERE ca_certificates.serial = finds.serial))
             ORDER BY id LIMIT :limit""",
        limit=limit,
    )
    return [TABLE.read(row) for row in rows]


def of_archived(tx: Tx, limit: int = PAGE) -> list[Find]:
    """Those that were managed here, by a certificate that is archived by now."""
    names = ", ".join(f"finds.{name}" for name in TABLE.names)
    rows = tx.rows(
        f"""SELECT {names} FROM finds JOIN certificates ON certificates.id = finds.certificate
             WHERE finds.manager = 'holdfast' AND certificates.state = 'archived' AND finds.state <> 'gone'
             ORDER BY finds.id LIMIT :limit""",
        limit=limit,
    )
    return [TABLE.read(row) for row in rows]


# ── Places ──


def put_place(tx: Tx, place: FindPlace) -> bool:
    """Remember that a find is seen there; False if that was known."""
    changed = tx.run(
        """UPDATE find_places SET discovery = :discovery, served = :served, program = :program, notes = :notes,
                  last_seen_at = :last_seen_at, gone_at = NULL
            WHERE find = :find AND source = :source AND place = :place""",
        **{name: value for name, value in PLACES.values(place).items() if name not in ("first_seen_at", "gone_at")},
    )
    if not changed:
        tx.run(PLACES.insert, **PLACES.values(place))
    return not changed


def places_of(tx: Tx, find: str, limit: int) -> list[FindPlace]:
    """Those where it is seen now first, then those where it was."""
    rows = tx.rows(
        f"""SELECT {PLACES.columns} FROM find_places WHERE find = :find
             ORDER BY CASE WHEN gone_at IS NULL THEN 0 ELSE 1 END, source, place LIMIT :limit""",
        find=find,
        limit=limit,
    )
    return [PLACES.read(row) for row in rows]


def first_places(tx: Tx, ids: Sequence[str]) -> dict[str, str]:
    """One place of each, the served ones first."""
    if not ids:
        return {}
    text, values = value_list([(each,) for each in ids])
    rows = tx.rows(
        f"""SELECT find, place FROM find_places WHERE find IN ({text}) AND gone_at IS NULL
             ORDER BY find, CASE WHEN served THEN 0 ELSE 1 END, place""",
        **values,
    )
    return {row["find"]: row["place"] for row in reversed(rows)}


def standing(tx: Tx, find: str) -> tuple[int, bool]:
    """In how many places it is seen now, and whether it is served at one of them."""
    row = tx.row(
        """SELECT COUNT(*) AS n, COALESCE(SUM(CASE WHEN served THEN 1 ELSE 0 END), 0) AS served
             FROM find_places WHERE find = :find AND gone_at IS NULL""",
        find=find,
    )
    return (0, False) if row is None else (int(row["n"]), bool(row["served"]))


def left(tx: Tx, discovery: str, before: datetime, limit: int = PAGE) -> list[str]:
    """Say of the places that this discovery did not see since then that they are gone; the finds they were of.

    Fewer than the limit: there are no more.
    """
    rows = tx.rows(
        """SELECT find, source, place FROM find_places
            WHERE discovery = :discovery AND gone_at IS NULL AND last_seen_at < :before
            ORDER BY last_seen_at LIMIT :limit""",
        discovery=discovery,
        before=before,
        limit=limit,
    )
    for row in rows:
        tx.run(
            "UPDATE find_places SET gone_at = now_us() WHERE find = :find AND source = :source AND place = :place",
            **row,
        )
    return [row["find"] for row in rows]


def forget_gone(tx: Tx, kept_for: timedelta, limit: int = PAGE) -> int:
    """Delete finds that are gone for so long, with their places."""
    rows = tx.rows(
        "SELECT id FROM finds WHERE state = 'gone' AND last_seen_at < :before ORDER BY id LIMIT :limit",
        before=tx.now() - kept_for,
        limit=limit,
    )
    for row in rows:
        tx.run("DELETE FROM find_places WHERE find = :find", find=row["id"])
        tx.run("DELETE FROM finds WHERE id = :find", find=row["id"])
    return len(rows)


def last_seen_by(tx: Tx, discovery: str) -> datetime | None:
    row = tx.row("SELECT MAX(last_seen_at) AS at FROM find_places WHERE discovery = :discovery", discovery=discovery)
    return None if row is None or row["at"] is None else from_micros(row["at"])
