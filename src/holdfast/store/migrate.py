"""Schema steps: numbered SQL files, forward only, each whole or not at all, one replica at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import resources
from typing import Final, NamedTuple

from holdfast.core.upgrade import CONTRACTS
from holdfast.errors import StoreRefused
from holdfast.ports import Points
from holdfast.store.database import Database
from holdfast.store.tx import Row, Tx

PATIENCE: Final = timedelta(minutes=10)


BATCHED: Final = "-- batched"  # above a statement that changes some thousand rows at a time (LIMIT) until none is left
Progress = Callable[[str, int], None]  # the step, and how many rows it has changed so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    version: int
    name: str
    digest: str
    statements: tuple[tuple[str, str], ...]  # engine ("" = both), SQL
    batches: tuple[tuple[str, str], ...] = ()  # likewise: each is repeated, and committed, until it changes nothing

    def __str__(self) -> str:
        return f"{self.version:04d}_{self.name}"


def bundled() -> list[Migration]:
    """The migrations this build knows, in order."""
    folder = resources.files("holdfast.store") / "migrations"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [_parse(name, (folder / name).read_text(encoding="utf-8")) for name in names]


def _parse(name: str, text: str) -> Migration:
    number, _, title = name.removesuffix(".sql").partition("_")
    statements, batches = list[tuple[str, str]](), list[tuple[str, str]]()
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.strip()]
        engine = next((line.removeprefix("-- only: ") for line in lines if line.startswith("-- only: ")), "")
        sql = "\n".join(line for line in lines if not line.startswith("--")).rstrip().removesuffix(";")
        if sql:
            into = batches if BATCHED in lines else statements
            into.append((engine, sql + (";" if sql.upper().endswith("END") else "")))
    if statements and batches:
        raise AssertionError(f"{name}: a step is whole or in batches; what begins it is a step of its own")
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Migration(
        version=int(number), name=title, digest=digest, statements=tuple(statements), batches=tuple(batches)
    )


def _unseen(step: str, rows: int) -> None:
    """Nobody looks at the progress."""


async def bring_up(
    db: Database, *, points: Points, progress: Progress = _unseen, steps: Sequence[Migration] | None = None
) -> list[str]:
    """Make the schema what this build needs; on several replicas at once one does it and the others wait.

    A step in batches may be cut off by the end of the process, and goes on at the next start: each batch is committed,
    and the step is done when a batch finds nothing left. Replicas that start together take turns at its batches.
    """
    known, engine = bundled() if steps is None else list(steps), db.engine.name

    def begin(tx: Tx) -> None:
        _take_time(tx, engine)
        prepare(tx)

    def apply(tx: Tx) -> Applied:
        _take_time(tx, engine)
        return migrate(tx, engine, known, points)

    await db.run_long(begin, deadline=PATIENCE)
    applied = list[str]()
    while True:
        done = await db.run_long(apply, deadline=PATIENCE)
        applied += done.applied
        if done.waits is None:
            return applied
        await _in_batches(db, done.waits, points, progress)
        applied.append(str(done.waits))


async def _in_batches(db: Database, step: Migration, points: Points, progress: Progress) -> None:
    total, engine = 0, db.engine.name
    for only, sql in step.batches:
        while only in ("", engine) and (changed := await db.run_long(_batch(sql, engine), deadline=PATIENCE)):
            points("store.migrating")
            total += changed
            progress(str(step), total)
    await db.run_long(lambda tx: _note(tx, step), deadline=PATIENCE)


def _batch(sql: str, engine: str) -> Callable[[Tx], int]:
    def run(tx: Tx) -> int:
        _take_time(tx, engine)
        tx.run("UPDATE schema_lock SET version = version WHERE only_one = 1")
        return tx.run(sql)

    return run


def _take_time(tx: Tx, engine: str) -> None:
    """A step, or waiting for another replica's, may take longer than the server grants any other statement."""
    if engine == "postgresql":
        tx.run(f"SET LOCAL statement_timeout = {PATIENCE // timedelta(milliseconds=1)}")


def prepare(tx: Tx) -> None:
    """The table that remembers. Two replicas may race here on an empty database: the loser tries again."""
    tx.run(
        """CREATE TABLE IF NOT EXISTS schema_lock (
               only_one INTEGER PRIMARY KEY CHECK (only_one = 1), version INTEGER NOT NULL)"""
    )
    tx.run("INSERT INTO schema_lock (only_one, version) VALUES (1, 0) ON CONFLICT DO NOTHING")
    tx.run(
        """CREATE TABLE IF NOT EXISTS schema_migrations (
               version INTEGER PRIMARY KEY, name TEXT NOT NULL, digest TEXT NOT NULL)"""
    )


class Applied(NamedTuple):
    applied: list[str]
    waits: Migration | None = None  # the step in batches that comes next


def migrate(tx: Tx, engine: str, migrations: list[Migration], points: Points) -> Applied:
    """Apply the missing steps, in this one transaction, up to one in batches; the row lock makes a second replica wait,
    then find it done."""
    if engine == "postgresql":
        tx.run("SET LOCAL statement_timeout = 0")  # a step may take longer than a store call; PATIENCE bounds it
    tx.run("UPDATE schema_lock SET version = version WHERE only_one = 1")
    _refuse_strangers(tx, migrations)
    done = {row["version"] for row in tx.rows("SELECT version FROM schema_migrations")}
    applied = list[str]()
    for migration in migrations:
        if migration.version in done:
            continue
        if migration.batches:
            return Applied(applied, migration)
        for only, sql in migration.statements:
            if only in ("", engine):
                tx.run(sql)
                points("store.migrating")
        _note(tx, migration)
        applied.append(str(migration))
    return Applied(applied)


def _note(tx: Tx, done: Migration) -> None:
    """Two replicas that took turns at its batches may both find nothing left."""
    tx.run(
        """INSERT INTO schema_migrations (version, name, digest) VALUES (:version, :name, :digest)
           ON CONFLICT DO NOTHING""",
        version=done.version,
        name=done.name,
        digest=done.digest,
    )


def applied_steps(tx: Tx) -> dict[int, str]:
    """By their numbers, their names."""
    return {row["version"]: row["name"] for row in tx.rows("SELECT version, name FROM schema_migrations")}


def _refuse_strangers(tx: Tx, migrations: list[Migration]) -> None:
    known = {migration.version: migration for migration in migrations}
    for row in tx.rows("SELECT version, name, digest FROM schema_migrations ORDER BY version"):
        migration = known.get(row["version"])
        if migration is None and _may_ignore(row, migrations):
            continue
        if migration is None:
            raise StoreRefused(
                f"The database has schema step {row['version']} ({row['name']}), which this Holdfast does not know.",
                "It was written by a newer version: start that version, or restore a backup made before the upgrade.",
            )
        if migration.digest != row["digest"]:
            raise StoreRefused(
                f"Schema step {row['version']} ({row['name']}) differs from the one this Holdfast ships.",
                "The package was modified, or the database belongs to another build: install the released package.",
            )


def _may_ignore(row: Row, migrations: list[Migration]) -> bool:
    """A step of a newer version that only adds: this version goes on beside it, while an upgrade is under way."""
    newest = max((migration.version for migration in migrations), default=0)
    return row["version"] > newest and not row["name"].endswith(CONTRACTS)


def current(tx: Tx, migrations: list[Migration]) -> bool:
    """Whether the schema has all that this build needs; what a newer one added to it does no harm."""
    rows = tx.rows("SELECT version, name FROM schema_migrations")
    known = {migration.version for migration in migrations}
    strangers = [row for row in rows if row["version"] not in known]
    return {row["version"] for row in rows} >= known and all(_may_ignore(row, migrations) for row in strangers)
