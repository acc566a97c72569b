"""Alerts are routed by a hook that the composer of a store gives to it: every composer does, and it is one act."""

import ast
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
from tests.simulation.clockwork import VirtualLoop
from tests.simulation.truth import Truth
from tests.support.notifications import in_virtual_time
from tests.support.stores import migrated, open_store

from holdfast import from_settings as stores
from holdfast.cli.opening import opened
from holdfast.config import Settings, StoreSettings
from holdfast.ports import no_points
from holdfast.store import journal, migrate
from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio

ROOT: Final = Path(__file__).parents[2]
OWED: Final = [("store.failover", "dead", "NO_CHANNEL")]  # no channel wants it: visible as a dead letter


def happen(tx: Tx) -> None:
    journal.event(tx, "store.failover", "db")


def owed(tx: Tx) -> list[tuple[str, str, str]]:
    rows = tx.rows("SELECT event, state, why FROM notifications ORDER BY id")
    return [(row["event"], row["state"], row["why"]) for row in rows]


def happened(tx: Tx) -> list[str]:
    return [each.name for each in journal.events_after(tx, 0, subject="db")]


# ── Every composer ──


def settings_of(folder: Path) -> Settings:
    return Settings(store=StoreSettings(data_dir=folder))


@asynccontextmanager
async def of_the_server(folder: Path) -> AsyncIterator[Database]:
    db = stores.open_store(settings_of(folder), SystemClock(), no_points)
    try:
        yield await migrated(db)
    finally:
        await db.close()


@asynccontextmanager
async def of_a_command(folder: Path) -> AsyncIterator[Database]:
    async with of_the_server(folder):
        pass  # a command never makes a database
    async with opened(settings_of(folder)) as db:
        yield db


@asynccontextmanager
async def of_the_tests(folder: Path) -> AsyncIterator[Database]:
    db = await migrated(open_store(SqliteEngine(folder / "holdfast.sqlite", SystemClock())))
    try:
        yield db
    finally:
        await db.close()


@pytest.mark.parametrize("composer", [of_the_server, of_a_command, of_the_tests])
async def test_every_store_routes_alerts(composer: Callable[[Path], object], tmp_path: Path) -> None:
    async with composer(tmp_path) as db:  # type: ignore[attr-defined]
        await db.write(happen)
        assert await db.read(owed) == OWED


def test_the_simulators_database_routes_alerts() -> None:
    loop = VirtualLoop()
    try:
        truth = Truth(loop, timedelta(seconds=30), lambda *_: True)
        truth.transact(migrate.prepare)
        truth.transact(lambda tx: migrate.migrate(tx, "sqlite", migrate.bundled(), no_points))
        truth.transact(happen)
        assert truth.look(owed) == OWED
    finally:
        loop.close()


def test_the_store_in_virtual_time_routes_alerts() -> None:
    async def story(room: object) -> list[tuple[str, str, str]]:
        await room.db.write(happen)  # type: ignore[attr-defined]
        found: list[tuple[str, str, str]] = await room.db.read(owed)  # type: ignore[attr-defined]
        return found

    assert in_virtual_time(story) == OWED


def composed_in(name: str) -> set[str]:
    """The files that call a function or class of this name."""
    files = [path for folder in ("src", "tests", "bench") for path in (ROOT / folder).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix() for path in files if any(calls(path.read_text(), name))}


def calls(source: str, name: str) -> list[ast.Call]:
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [node for node in found if isinstance(node.func, ast.Name) and node.func.id == name]


def test_no_store_is_composed_anywhere_else() -> None:
    """A second composer must be named here, and tested above."""
    here = Path(__file__).relative_to(ROOT).as_posix()
    assert composed_in("Database") - {here} == {"src/holdfast/from_settings.py"}
    assert composed_in("conclude") == {
        "src/holdfast/store/database.py", "tests/simulation/truth.py", "tests/support/notifications.py",
        "tests/integration/test_notifications.py", "src/holdfast/backups.py",
    }  # fmt: skip


# ── One act with its cause ──


@asynccontextmanager
async def hooked(engine: Engine, hook: Callable[[Tx], None]) -> AsyncIterator[Database]:
    clock, deadline = SystemClock(), timedelta(seconds=10)
    db = Database(engine, clock=clock, points=no_points, deadline=deadline, before_commit=hook)
    try:
        yield db
    finally:
        await db.close()


async def test_if_routing_fails_its_cause_did_not_happen(tmp_path: Path) -> None:
    def fails(tx: Tx) -> None:
        if tx.alerts:
            raise ValueError("no routing today")

    async with hooked(SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock()), fails) as db:
        await migrated(db)
        with pytest.raises(ValueError, match="no routing today"):
            await db.write(happen)
        assert await db.read(happened) == []


async def test_in_a_group_that_is_run_again_each_alert_is_owed_once(db: Database) -> None:
    """The failing write undoes the group after its alerts may have been routed; then each write runs alone."""

    def broken(tx: Tx) -> None:
        happen(tx)
        raise ValueError("this write fails")

    wrote = await asyncio.gather(db.write(happen), db.write(broken), db.write(happen), return_exceptions=True)
    assert [type(each) for each in wrote] == [type(None), ValueError, type(None)]
    assert await db.read(owed) == 2 * OWED
    assert await db.read(happened) == ["store.failover", "store.failover"]


async def test_a_transaction_that_is_rolled_back_owes_nothing(db: Database) -> None:
    class Back(Exception):
        pass

    def dry(tx: Tx) -> None:
        happen(tx)
        raise Back

    with pytest.raises(Back):
        await db.write(dry)
    assert await db.read(owed) == []
