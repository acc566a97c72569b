"""Snoozes and saved views, by the actor whose they are."""

from __future__ import annotations

from typing import Final

from holdfast.core.personal import SavedView, Snooze
from holdfast.store.rows import Table
from holdfast.store.tx import Tx

SNOOZES: Final = Table(Snooze, "snoozes")
VIEWS: Final = Table(SavedView, "saved_views")

# ── Snoozes ──


def put_snooze(tx: Tx, snooze: Snooze) -> None:
    """In place of the one before."""
    tx.run(
        f"""{SNOOZES.insert} ON CONFLICT (actor, what, name) DO UPDATE
              SET standing = excluded.standing, number = excluded.number, why = excluded.why, at = excluded.at,
                  until = excluded.until""",
        **SNOOZES.values(snooze),
    )


def drop_snooze(tx: Tx, actor: str, what: str, name: str) -> bool:
    text = "DELETE FROM snoozes WHERE actor = :actor AND what = :what AND name = :name"
    return tx.run(text, actor=actor, what=what, name=name) == 1


def snoozes_of(tx: Tx, actor: str) -> dict[tuple[str, str], Snooze]:
    """Those that are not over, by what they are about."""
    rows = tx.rows(f"SELECT {SNOOZES.columns} FROM snoozes WHERE actor = :actor AND until > now_us()", actor=actor)
    return {(each.what, each.name): each for each in map(SNOOZES.read, rows)}


def forget_snoozes(tx: Tx, limit: int = 1000) -> int:
    """Those that are over; a page at a time."""
    return tx.run(
        """DELETE FROM snoozes WHERE (actor, what, name) IN
             (SELECT actor, what, name FROM snoozes WHERE until < now_us() LIMIT :limit)""",
        limit=limit,
    )


# ── Saved views ──


def put_view(tx: Tx, view: SavedView) -> None:
    tx.run(
        f"{VIEWS.insert} ON CONFLICT (actor, name) DO UPDATE SET query = excluded.query, at = excluded.at",
        **VIEWS.values(view),
    )


def drop_view(tx: Tx, actor: str, name: str) -> bool:
    return tx.run("DELETE FROM saved_views WHERE actor = :actor AND name = :name", actor=actor, name=name) == 1


def views_of(tx: Tx, actor: str) -> list[SavedView]:
    """In the order in which they were saved."""
    rows = tx.rows(f"SELECT {VIEWS.columns} FROM saved_views WHERE actor = :actor ORDER BY at, name", actor=actor)
    return [VIEWS.read(row) for row in rows]


# ── Of an actor that is gone ──


def forget(tx: Tx, actor: str) -> None:
    for table in ("snoozes", "saved_views"):
        tx.run(f"DELETE FROM {table} WHERE actor = :actor", actor=actor)
