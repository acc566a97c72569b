"""Schema steps: each whole or not at all, one replica at a time, and never on a database that is not ours to change."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args

import pytest
from tests.support.jobs import opened, update
from tests.support.postgres import Cluster
from tests.support.reaper import PATIENCE

from holdfast.core import certificate, installation, issuance
from holdfast.core.access import ApprovalState, Role, TokenKind
from holdfast.core.agents.agent import AgentState
from holdfast.core.agents.item import ItemState
from holdfast.core.deployment import DeploymentState
from holdfast.core.discovery import discovery, find
from holdfast.core.issuers.issuer import IssuerAccountState, IssuerState
from holdfast.core.key_kind import KeyKind
from holdfast.core.notifications import notification
from holdfast.core.notifications.channel import ChannelState
from holdfast.core.own_ca import acme
from holdfast.core.own_ca.ca import CaState, DeliveryLevel
from holdfast.core.people import PERSON_ROLES, LoginMethod
from holdfast.core.revocation_reason import RevocationReason
from holdfast.core.solver import SolverState
from holdfast.core.target import TargetState
from holdfast.core.work import job
from holdfast.core.work.job import QueuedState
from holdfast.errors import StoreRefused, StoreUnavailable
from holdfast.ports import no_points
from holdfast.secret import Secret
from holdfast.store import migrate
from holdfast.store.database import Database
from holdfast.store.migrate import Migration
from holdfast.store.postgres import PostgresEngine
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio

BOOKKEEPING = {"schema_lock", "schema_migrations"}


@pytest.fixture
def empty(postgres: Cluster) -> Iterator[str]:
    """A PostgreSQL database with nothing in it."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


def replica(url: str) -> PostgresEngine:
    return PostgresEngine(Secret(url), connections=2)


@pytest.fixture(params=["sqlite", "postgresql"])
async def bare(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """A store without a schema."""
    if request.param == "sqlite":
        engine: Any = SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())
    else:
        engine = replica(request.getfixturevalue("empty"))
    async with opened(engine) as db:
        yield db


def schema(tx: Tx, engine: str) -> dict[str, str]:
    """Name and shape of everything there is, as the database itself tells it."""
    if engine == "sqlite":
        rows = tx.rows("SELECT name, sql AS shape FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")
    else:
        rows = tx.rows(
            """SELECT table_name AS name, string_agg(column_name || ' ' || data_type || ' ' || is_nullable, ', '
                                                     ORDER BY ordinal_position) AS shape
                 FROM information_schema.columns WHERE table_schema = 'public' GROUP BY table_name
               UNION ALL SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
               UNION ALL SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
               UNION ALL SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace
               UNION ALL SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
                          WHERE connamespace = 'public'::regnamespace"""
        )
    return {row["name"]: row["shape"] for row in rows}


async def shape(db: Database) -> dict[str, str]:
    return await db.read(lambda tx: schema(tx, db.engine.name))


class KilledError(BaseException):
    """The process ends here, as far as the store can tell."""


class KillAt:
    """Ends the process at the n-th statement of a migration."""

    def __init__(self, nth: int) -> None:
        self._left = nth

    def __call__(self, name: str) -> None:
        assert name == "store.migrating"
        self._left -= 1
        if self._left == 0:
            raise KilledError


async def test_an_empty_database_gets_the_whole_schema_once(bare: Database) -> None:
    names = [f"{each.version:04d}_{each.name}" for each in migrate.bundled()]
    assert await migrate.bring_up(bare, points=no_points) == names
    assert await bare.read(lambda tx: migrate.current(tx, migrate.bundled()))
    before = await shape(bare)
    assert {"jobs", "leases", "budgets", "audit", "events"} <= before.keys()
    assert await migrate.bring_up(bare, points=no_points) == []
    assert await shape(bare) == before


async def test_killed_at_any_statement_it_leaves_nothing_behind_and_the_next_start_completes(bare: Database) -> None:
    await bare.run_long(migrate.prepare, deadline=migrate.PATIENCE)
    nothing = await shape(bare)
    nth = 0
    while True:
        nth += 1
        try:
            applied = await migrate.bring_up(bare, points=KillAt(nth))
            break
        except KilledError:
            assert await shape(bare) == nothing
            assert await bare.read(lambda tx: tx.rows("SELECT version FROM schema_migrations")) == []
    statements = [sql for each in migrate.bundled() for only, sql in each.statements if only in ("", bare.engine.name)]
    assert nth == len(statements) + 1 > 20
    assert len(applied) == len(migrate.bundled())
    assert await bare.read(lambda tx: migrate.current(tx, migrate.bundled()))


# ── long steps ──

ROWS = 250
LONG = [
    Migration(version=1, name="table", digest="", statements=(("", "CREATE TABLE many (id INTEGER, done INTEGER)"),)),
    migrate._parse(
        "0002_fill.sql",
        "-- batched\nUPDATE many SET done = 1 WHERE id IN (SELECT id FROM many WHERE done = 0 ORDER BY id LIMIT 100)",
    ),
    Migration(version=3, name="after", digest="", statements=(("", "CREATE TABLE after_it (id INTEGER)"),)),
]


async def filled(db: Database) -> None:
    await migrate.bring_up(db, points=no_points, steps=LONG[:1])
    rows = ", ".join(f"({n}, 0)" for n in range(ROWS))
    await update(db, f"INSERT INTO many (id, done) VALUES {rows}")


async def left(db: Database) -> int:
    return int((await db.read(lambda tx: tx.rows("SELECT COUNT(*) AS n FROM many WHERE done = 0")))[0]["n"])


async def test_a_step_in_batches_says_how_far_it_is_and_comes_before_the_next(bare: Database) -> None:
    await filled(bare)
    told = list[tuple[str, int]]()
    applied = await migrate.bring_up(bare, points=no_points, progress=lambda *seen: told.append(seen), steps=LONG)
    assert applied == ["0002_fill", "0003_after"]
    assert told == [("0002_fill", 100), ("0002_fill", 200), ("0002_fill", 250)]
    assert await left(bare) == 0
    assert await migrate.bring_up(bare, points=no_points, steps=LONG) == []


async def test_a_step_in_batches_keeps_what_it_did_when_killed_and_goes_on_at_the_next_start(bare: Database) -> None:
    await filled(bare)
    with pytest.raises(KilledError):
        await migrate.bring_up(bare, points=KillAt(2), steps=LONG)
    assert await left(bare) == ROWS - 200
    assert not await bare.read(lambda tx: migrate.current(tx, LONG)), "an installation is not ready in the middle"
    assert await migrate.bring_up(bare, points=no_points, steps=LONG) == ["0002_fill", "0003_after"]


async def test_two_replicas_share_a_step_in_batches(bare: Database) -> None:
    await filled(bare)
    both = await asyncio.gather(*(migrate.bring_up(bare, points=no_points, steps=LONG) for _ in range(2)))
    assert sorted({name for each in both for name in each}) == ["0002_fill", "0003_after"]
    assert await left(bare) == 0


def test_a_step_is_whole_or_in_batches() -> None:
    with pytest.raises(AssertionError, match="whole or in batches"):
        migrate._parse("0009_both.sql", "CREATE TABLE x (id INTEGER);\n\n-- batched\nUPDATE x SET id = 1")


async def test_killed_before_it_began_it_has_at_most_its_own_two_tables(bare: Database) -> None:
    def killed(tx: Tx) -> None:
        migrate.prepare(tx)
        raise KilledError

    with pytest.raises(KilledError):
        await bare.write(killed)
    assert await shape(bare) == {}
    await bare.run_long(migrate.prepare, deadline=migrate.PATIENCE)
    tables = [name for name in await shape(bare) if name in BOOKKEEPING]
    assert sorted(tables) == sorted(BOOKKEEPING)
    assert await migrate.bring_up(bare, points=no_points)


async def test_a_database_that_a_newer_version_took_something_from_is_refused_and_left_alone(bare: Database) -> None:
    await migrate.bring_up(bare, points=no_points)
    await update(bare, "INSERT INTO schema_migrations (version, name, digest) VALUES (9999, 'drop_contract', 'x')")
    before = await shape(bare)
    with pytest.raises(StoreRefused, match=r"step 9999 \(drop_contract\), which this Holdfast does not know") as no:
        await migrate.bring_up(bare, points=no_points)
    assert "written by a newer version" in no.value.hint
    assert await shape(bare) == before
    assert not await bare.read(lambda tx: migrate.current(tx, migrate.bundled()))


async def test_beside_a_newer_version_that_only_added_to_the_schema_an_older_one_starts_and_is_ready(
    bare: Database,
) -> None:
    await migrate.bring_up(bare, points=no_points)
    await update(bare, "INSERT INTO schema_migrations (version, name, digest) VALUES (9999, 'tomorrow', 'x')")
    assert await migrate.bring_up(bare, points=no_points) == []
    assert await bare.read(lambda tx: migrate.current(tx, migrate.bundled()))


async def test_a_step_that_is_unknown_and_older_than_ours_is_of_another_build_and_refused(bare: Database) -> None:
    await bare.write(migrate.prepare)
    ours, others = step(1, "CREATE TABLE one (x INTEGER);"), step(2, "CREATE TABLE two (x INTEGER);")
    newer = step(3, "CREATE TABLE three (x INTEGER);")
    await apply(bare, ours, others, newer)
    assert not await bare.read(lambda tx: migrate.current(tx, [ours, newer]))
    with pytest.raises(StoreRefused, match=r"schema step 2 \(step\), which this Holdfast does not know"):
        await apply(bare, ours, newer)


async def test_a_step_that_differs_from_the_one_applied_is_refused(bare: Database) -> None:
    await migrate.bring_up(bare, points=no_points)
    await update(bare, "UPDATE schema_migrations SET digest = 'other' WHERE version = 1")
    with pytest.raises(StoreRefused, match=r"Schema step 1 \(schema\) differs") as no:
        await migrate.bring_up(bare, points=no_points)
    assert "install the released package" in no.value.hint


async def apply(db: Database, *migrations: Migration) -> list[str]:
    return (await db.write(lambda tx: migrate.migrate(tx, db.engine.name, list(migrations), no_points))).applied


def step(version: int, *statements: str) -> Migration:
    text = "\n\n".join(statements)
    return migrate._parse(f"{version:04d}_step.sql", text)


async def test_later_steps_are_added_to_earlier_ones_and_a_failing_one_changes_nothing(bare: Database) -> None:
    await bare.write(migrate.prepare)
    one, two = step(1, "CREATE TABLE one (x INTEGER);"), step(2, "CREATE TABLE two (x INTEGER);")
    wrong = step(3, "CREATE TABLE three (x INTEGER);", "ALTER TABLE nowhere ADD COLUMN y INTEGER;")
    assert await apply(bare, one) == ["0001_step"]
    assert await apply(bare, one, two) == ["0002_step"]
    with pytest.raises(Exception, match="nowhere"):
        await apply(bare, one, two, wrong)
    assert {"one", "two"} <= (await shape(bare)).keys()
    assert "three" not in await shape(bare)
    assert not await bare.read(lambda tx: migrate.current(tx, [one, two, wrong]))
    assert await apply(bare, one, two, step(3, "CREATE TABLE three (x INTEGER);")) == ["0003_step"]


async def test_a_statement_for_one_engine_is_kept_to_it(bare: Database) -> None:
    await bare.write(migrate.prepare)
    only = step(
        1,
        "-- only: sqlite\nCREATE TABLE for_sqlite (x INTEGER);",
        "-- only: postgresql\nCREATE TABLE for_postgresql (x INTEGER);",
        "-- a remark\nCREATE TABLE for_both (x INTEGER);",
    )
    await apply(bare, only)
    assert (await shape(bare)).keys() - BOOKKEEPING >= {f"for_{bare.engine.name}", "for_both"}
    assert len([name for name in await shape(bare) if name.startswith("for_")]) == 2


def test_the_bundled_steps_have_ascending_numbers_from_one_on() -> None:
    numbers = [each.version for each in migrate.bundled()]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 1


def test_a_file_is_cut_into_statements_and_its_digest_covers_every_letter() -> None:
    text = "-- about\n\nCREATE TABLE a (x INTEGER);\n\n\n-- only: sqlite\nCREATE TRIGGER t\nBEGIN SELECT 1; END;\n"
    parsed = migrate._parse("0007_add_a.sql", text)
    assert (parsed.version, parsed.name) == (7, "add_a")
    assert parsed.statements == (
        ("", "CREATE TABLE a (x INTEGER)"),
        ("sqlite", "CREATE TRIGGER t\nBEGIN SELECT 1; END;"),
    )
    assert parsed.digest != migrate._parse("0007_add_a.sql", text + " ").digest
    assert replace(parsed, digest="") == replace(migrate._parse("0007_add_a.sql", text + "\n"), digest="")


# ── several replicas ──


async def test_of_replicas_that_start_together_one_migrates_and_all_end_up_current(empty: str) -> None:
    async with opened(replica(empty)) as one, opened(replica(empty)) as two, opened(replica(empty)) as three:
        stores = [one, two, three]
        answers = await asyncio.gather(*(migrate.bring_up(db, points=no_points) for db in stores))
        assert sorted(answers) == [[], [], [f"{each.version:04d}_{each.name}" for each in migrate.bundled()]]
        for db in stores:
            assert await db.read(lambda tx: migrate.current(tx, migrate.bundled()))


async def test_a_replica_waits_for_the_one_that_migrates_longer_than_any_other_call_may_take(
    postgres: Cluster, empty: str
) -> None:
    hold, waiting = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slowly(name: str) -> None:
        loop.call_soon_threadsafe(waiting.set)
        assert hold.wait(PATIENCE)

    async with opened(replica(empty)) as slow, opened(replica(empty), deadline=0.2) as patient:
        migrating = asyncio.create_task(migrate.bring_up(slow, points=slowly))
        await waiting.wait()
        second = asyncio.create_task(insisting(lambda: migrate.bring_up(patient, points=no_points)))
        async with asyncio.timeout(PATIENCE), opened(replica(postgres.url())) as watcher:
            while not second.done() and not await watcher.read(lambda tx: waits_long(tx, empty)):
                await asyncio.wait([second], timeout=0.01)
        hold.set()
        assert len(await migrating) == len(migrate.bundled())
        assert await second == []


async def insisting(attempt: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """A deadline so short may be over on a slow machine before anything was asked; a later try will do."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(StoreUnavailable):
                return await attempt()


def waits_long(tx: Tx, url: str) -> bool:
    """Whether somebody has been waiting for a lock for longer than twice its ordinary deadline."""
    return bool(
        tx.rows(
            """SELECT pid FROM pg_stat_activity
                WHERE datname = :name AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > '0.4 s'""",
            name=url.rsplit("/", 1)[1],
        )
    )


async def test_a_replica_takes_over_from_one_that_died_while_migrating(postgres: Cluster, empty: str) -> None:
    hold, reached = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def stuck(name: str) -> None:
        loop.call_soon_threadsafe(reached.set)
        hold.wait(PATIENCE)

    async with opened(replica(empty)) as dying, opened(replica(empty)) as heir:
        migrating = asyncio.create_task(migrate.bring_up(dying, points=stuck))
        await reached.wait()
        second = asyncio.create_task(migrate.bring_up(heir, points=no_points))
        postgres.run(
            f"""SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE datname = '{empty.rsplit("/", 1)[1]}' AND state = 'idle in transaction'"""
        )
        assert len(await second) == len(migrate.bundled())
        hold.set()
        with pytest.raises(StoreUnavailable):
            await migrating


# ── kill -9, for real, on a file ──

CHILD = textwrap.dedent(
    """
    import asyncio, os, signal, sys
    from pathlib import Path
    from holdfast.store import migrate
    from holdfast.store.sqlite import SqliteEngine
    from holdfast.world import SystemClock
    from tests.support.stores import open_store

    left = int(sys.argv[2])

    def points(name):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    async def main():
        db = open_store(SqliteEngine(Path(sys.argv[1]), SystemClock()))
        await migrate.bring_up(db, points=points)
        await db.close()

    asyncio.run(main())
    """
)


def run(script: str, *arguments: object) -> int:
    """Run a script with what we import; its exit code."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=False, timeout=PATIENCE).returncode


@pytest.mark.parametrize("nth", [1, 17])
async def test_killed_for_real_on_a_file_the_next_start_completes(tmp_path: Path, nth: int) -> None:
    path = tmp_path / "holdfast.sqlite"
    assert run(CHILD, path, nth) == -signal.SIGKILL
    async with opened(SqliteEngine(path, SystemClock())) as db:
        assert (await shape(db)).keys() <= BOOKKEEPING
        assert len(await migrate.bring_up(db, points=no_points)) == len(migrate.bundled())


async def test_a_later_step_may_use_what_rows_an_earlier_one_found(bare: Database) -> None:
    """An upgrade: a step that fills a new column from rows that the version before has written."""
    await bare.write(migrate.prepare)
    first = step(1, "CREATE TABLE things (id TEXT PRIMARY KEY, word TEXT NOT NULL);")
    more = "ALTER TABLE things ADD COLUMN length INTEGER;"
    later = step(2, more, "UPDATE things SET length = LENGTH(word);")
    await apply(bare, first)
    await update(bare, "INSERT INTO things (id, word) VALUES ('a', 'four')")
    assert await apply(bare, first, later) == ["0002_step"]
    assert await bare.read(lambda tx: tx.rows("SELECT length FROM things")) == [{"length": 4}]


# ── closed lists ──

CLOSED: Final[Mapping[tuple[str, str], Iterable[object]]] = {
    ("finds", "state"): find.FindState,
    ("find_places", "source"): find.FindSource,
    ("discoveries", "source"): find.FindSource,
    ("discoveries", "state"): discovery.DiscoveryState,
    ("jobs", "state"): get_args(QueuedState),
    ("job_history", "state"): set(job.JobState) - set(get_args(QueuedState)),
    ("cas", "state"): CaState,
    ("acme_accounts", "state"): acme.AccountState,
    ("acme_orders", "state"): acme.OrderState,
    ("acme_authzs", "type"): set(get_args(acme.IdentifierType)) - {"uri"},  # no client can ask for one
    ("acme_authzs", "state"): acme.AuthzState,
    ("acme_challenges", "state"): acme.ChallengeState,
    ("ca_certificates", "reason"): {each.number for each in RevocationReason},
    ("ca_certificates", "delivery"): DeliveryLevel,
    ("issuers", "state"): IssuerState,
    ("issuer_accounts", "state"): IssuerAccountState,
    ("certificates", "key_kind"): KeyKind,
    ("certificates", "challenge"): certificate.CHALLENGES,
    ("certificates", "state"): certificate.CertificateState,
    ("certificate_versions", "state"): certificate.VersionState,
    ("certificate_versions", "revoke_reason"): {each.number for each in RevocationReason},
    ("issuances", "state"): issuance.IssuanceState,
    ("issuances", "withdrawal"): get_args(issuance.Withdrawal),
    ("approvals", "state"): ApprovalState,
    ("tokens", "kind"): TokenKind,
    ("tokens", "role"): Role,
    ("people", "role"): PERSON_ROLES,
    ("sessions", "method"): LoginMethod,
    ("channels", "state"): ChannelState,
    ("solvers", "state"): SolverState,
    ("targets", "state"): TargetState,
    ("deployments", "state"): DeploymentState,
    ("notifications", "severity"): notification.Severity,
    ("notifications", "state"): notification.NotificationState,
    ("outages", "severity"): notification.Severity,
    ("agents", "state"): AgentState,
    ("agent_items", "state"): get_args(ItemState),
    ("installation", "mode"): installation.Mode,
}


async def test_every_closed_list_of_the_schema_is_that_of_core(bare: Database) -> None:
    """As the database itself tells its CHECKs: a member that one of both lacks is found here."""
    await migrate.bring_up(bare, points=no_points)
    assert await bare.read(lambda tx: closed_lists(tx, bare.engine.name)) == {
        where: {getattr(each, "value", each) for each in members} for where, members in CLOSED.items()
    }


def test_the_priorities_of_the_schema_are_those_of_core() -> None:
    schema_step = migrate.bundled()[0]
    assert f"CHECK (priority BETWEEN {min(job.Priority)} AND {max(job.Priority)})" in str(schema_step.statements)


def closed_lists(tx: Tx, engine: str) -> dict[tuple[str, str], set[object]]:
    if engine == "sqlite":
        rows = tx.rows("SELECT name AS place, sql AS text FROM sqlite_schema WHERE type = 'table'")
        form = re.compile(r"CHECK \((\w+) IN \(([^()]*)\)\)")
    else:
        rows = tx.rows(
            """SELECT conrelid::regclass::text AS place, pg_get_constraintdef(oid) AS text FROM pg_constraint
                WHERE contype = 'c' AND connamespace = 'public'::regnamespace"""
        )
        form = re.compile(r"CHECK \(\(+(\w+)(?: = ANY \(ARRAY\[)([^]]*)\]\)")
    return {
        (row["place"], column): {_member(each) for each in listed.replace("::text", "").split(",")}
        for row in rows
        for column, listed in form.findall(row["text"])
    }


def _member(text: str) -> object:
    return text.strip().strip("'") if "'" in text else int(text)
