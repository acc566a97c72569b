"""The rows of a database as lines, in one consistent view; and a database made from such lines, whole or not at all.

One format for both stores: what was saved from SQLite can be restored on PostgreSQL, and the other way round.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from holdfast.core.backup import BackupRefused
from holdfast.ports import Points
from holdfast.store import migrate
from holdfast.store.migrate import Migration
from holdfast.store.tx import Session, Tx, value_list

PAGE: Final = 500  # rows read at a time
LOT: Final = 60  # rows written by one statement
# The schema is made by its steps; nonces and replicas are of processes that are gone.
LEFT_OUT: Final = frozenset({"schema_lock", "schema_migrations", "replicas", "acme_nonces", "acme_nonce_keys"})


def tables(tx: Tx, engine: str) -> list[str]:
    """Each after those that it refers to."""
    if engine == "sqlite":
        rows = tx.rows("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name")
        names = [row["name"] for row in rows]
        refers = {name: {row["table"] for row in tx.rows(f"PRAGMA foreign_key_list({name})")} for name in names}
    else:
        rows = tx.rows(
            """SELECT c.oid::bigint AS oid, c.relname AS name FROM pg_class c
                WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND c.relnamespace = current_schema()::regnamespace
                ORDER BY c.relname"""
        )
        by_oid = {row["oid"]: row["name"] for row in rows}
        names, refers = list(by_oid.values()), {name: set[str]() for name in by_oid.values()}
        for row in tx.rows(
            "SELECT conrelid::bigint AS own, confrelid::bigint AS other FROM pg_constraint WHERE contype = 'f'"
        ):
            if row["own"] in by_oid and row["other"] in by_oid:
                refers[by_oid[row["own"]]].add(by_oid[row["other"]])
    return _sorted([name for name in names if name not in LEFT_OUT], refers)


def _sorted(names: list[str], refers: Mapping[str, set[str]]) -> list[str]:
    done: list[str] = []
    while left := [name for name in names if name not in done]:
        free = [name for name in left if not (refers[name] & set(left)) - {name}]
        done += free or left  # a circle: whoever loads it has no references to check, or says so
    return done


def counts(tx: Tx, engine: str) -> dict[str, int]:
    return {name: int(tx.rows(f"SELECT COUNT(*) AS n FROM {name}")[0]["n"]) for name in tables(tx, engine)}


def dump(tx: Tx, session: Session, engine: str) -> Iterator[bytes]:
    """A line for each table with its columns, and then one for each row."""
    for name in tables(tx, engine):
        begun = False
        for page in _pages(session, engine, name):
            if not begun:
                yield json.dumps({"table": name, "columns": [key for key in page[0] if key != "_r"]}).encode() + b"\n"
                begun = True
            for row in page:
                yield row_line(tuple(value for key, value in row.items() if key != "_r"))


def _pages(session: Session, engine: str, name: str) -> Iterator[list[Mapping[str, Any]]]:
    if engine == "sqlite":
        last = -(2**63)
        sql = f"SELECT rowid AS _r, * FROM {name} WHERE rowid > :last ORDER BY rowid LIMIT {PAGE}"
        while page := session.query(sql, {"last": last}):
            yield page
            last = page[-1]["_r"]
        return
    cursor = f"saved_{name}"  # of its own: what a statement returns is remembered by its text
    session.execute(f"DECLARE {cursor} NO SCROLL CURSOR FOR SELECT * FROM {name}", {})
    while page := session.query(f"FETCH {PAGE} FROM {cursor}", {}):
        yield page
    session.execute(f"CLOSE {cursor}", {})


# ── Making a database from it ──


def refuse_used(tx: Tx, engine: str) -> None:
    """Only an empty database is restored into: what is there is never overwritten."""
    if engine == "sqlite":
        found = tx.row("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 1")
    else:
        found = tx.row("SELECT tablename AS name FROM pg_tables WHERE schemaname = current_schema() LIMIT 1")
    if found is not None:
        hint = "Make an empty database and name it in store.url, such as: createdb holdfast_restored"
        raise BackupRefused(f"The database is not empty: it has a table {found['name']!r}.", hint)


def make_schema(tx: Tx, engine: str, steps: Iterable[str], points: Points) -> None:
    """The schema as it was when the backup was made; migrate adds the later steps."""
    wanted, known = set(steps), migrate.bundled()
    migrate.prepare(tx)
    migrate.migrate(tx, engine, [each for each in known if step(each) in wanted], points)


def step(migration: Migration) -> str:
    return f"{migration.version:04d}_{migration.name}"


def load(tx: Tx, engine: str, lines: Iterable[bytes], points: Points) -> dict[str, int]:
    """Insert the rows; how many each table got."""
    done: dict[str, int] = {}
    triggers = _without_triggers(tx, engine)
    name, columns, flags, lot = "", list[str](), list[bool](), list[tuple[Any, ...]]()

    def put() -> None:
        if lot:
            text, values = value_list(lot)
            tx.run(f"INSERT INTO {name} ({', '.join(columns)}) {text}", **values)
            done[name] = done.get(name, 0) + len(lot)
            lot.clear()

    for line in lines:
        if line.startswith(b"{"):
            put()
            points("restore.table")
            told = json.loads(line)
            name, columns = told["table"], told["columns"]
            tx.run(f"DELETE FROM {name}")  # rows that the schema begins with
            flags = _flags(tx, engine, name, columns)
            continue
        values = row_of(line)
        lot.append(tuple(bool(v) if flag and v is not None else v for v, flag in zip(values, flags, strict=True)))
        if len(lot) == LOT:
            put()
    put()
    for again in triggers:
        tx.run(again)
    return done


def _flags(tx: Tx, engine: str, name: str, columns: list[str]) -> list[bool]:
    """Which columns are of type boolean, where that is another type than a number."""
    if engine == "sqlite":
        return [False] * len(columns)
    rows = tx.rows(
        """SELECT column_name AS name FROM information_schema.columns
            WHERE table_schema = current_schema() AND table_name = :name AND data_type = 'boolean'""",
        name=name,
    )
    found = {row["name"] for row in rows}
    return [column in found for column in columns]


def _without_triggers(tx: Tx, engine: str) -> list[str]:
    """Rows are put back as they were, and not as if they were made now; what to run when all are there."""
    if engine == "sqlite":
        tx.run("PRAGMA defer_foreign_keys = ON")
        rows = tx.rows("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        for row in rows:
            tx.run(f"DROP TRIGGER {row['name']}")
        return [row["sql"] for row in rows]
    names = tables(tx, engine)
    for each in names:
        tx.run(f"ALTER TABLE {each} DISABLE TRIGGER USER")
    return [f"ALTER TABLE {each} ENABLE TRIGGER USER" for each in names]


# ── Rows as lines of JSON ──


def row_line(values: tuple[Any, ...]) -> bytes:
    return json.dumps(values, separators=(",", ":"), default=_bytes).encode() + b"\n"


def _bytes(value: Any) -> dict[str, str]:
    return {"b": b64encode(bytes(value)).decode()}


def row_of(line: bytes) -> list[Any]:
    return [b64decode(value["b"]) if isinstance(value, dict) else value for value in json.loads(line)]
