"""Schema steps: numbered SQL files, forward only, each whole or not at all, one replica at a time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from importlib import resources
from typing import Final

from holdfast.errors import StoreRefused
from holdfast.ports import Points
from holdfast.store.database import Database
from holdfast.store.tx import Row, Tx

CONTRACTS: Final = "_contract"  # how the name of a step ends that takes away what the version before it still uses
PATIENCE: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    version: int
    name: str
    digest: str
    statements: tuple[tuple[str, str], ...]  # engine ("" = both), SQL


def bundled() -> list[Migration]:
    """The migrations this build knows, in order."""
    folder = resources.files("holdfast.store") / "migrations"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [_parse(name, (folder / name).read_text(encoding="utf-8")) for name in names]


def _parse(name: str, text: str) -> Migration:
    number, _, title = name.removesuffix(".sql").partition("_")
    statements = []
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.strip()]
        engine = next((line.removeprefix("-- only: ") for line in lines if line.startswith("-- only: ")), "")
        sql = "\n".join(line for line in lines if not line.startswith("--")).rstrip().removesuffix(";")
        if sql:
            statements.append((engine, sql + (";" if sql.upper().endswith("END") else "")))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Migration(version=int(number), name=title, digest=digest, statements=tuple(statements))


async def bring_up(db: Database, *, points: Points) -> list[str]:
    """Make the schema what this build needs; on several replicas at once one does it and the others wait."""
    known, engine = bundled(), db.engine.name

    def begin(tx: Tx) -> None:
        _take_time(tx, engine)
        prepare(tx)

    def apply(tx: Tx) -> list[str]:
        _take_time(tx, engine)
        return migrate(tx, engine, known, points)

    await db.run_long(begin, deadline=PATIENCE)
    return await db.run_long(apply, deadline=PATIENCE)


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


def migrate(tx: Tx, engine: str, migrations: list[Migration], points: Points) -> list[str]:
    """Apply the missing steps, in this one transaction; the row lock makes a second replica wait, then find it done."""
    if engine == "postgresql":
        tx.run("SET LOCAL statement_timeout = 0")  # a step may take longer than a store call; PATIENCE bounds it
    tx.run("UPDATE schema_lock SET version = version WHERE only_one = 1")
    _refuse_strangers(tx, migrations)
    done = {row["version"] for row in tx.rows("SELECT version FROM schema_migrations")}
    applied = []
    for migration in migrations:
        if migration.version in done:
            continue
        for only, sql in migration.statements:
            if only in ("", engine):
                tx.run(sql)
                points("store.migrating")
        tx.run(
            "INSERT INTO schema_migrations (version, name, digest) VALUES (:version, :name, :digest)",
            version=migration.version,
            name=migration.name,
            digest=migration.digest,
        )
        applied.append(f"{migration.version:04d}_{migration.name}")
    return applied


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
