"""The self-check on both stores: it passes, it names the row that was tampered with, and it keeps saying so."""

from datetime import timedelta
from typing import Any

import pytest
from tests.support.engine import Watch, eventually, working
from tests.support.jobs import claimed, update

from holdfast.core.work.job import Again, Claim, Priority
from holdfast.engine import selfcheck, sweep
from holdfast.engine.kind import Work
from holdfast.ports import no_points
from holdfast.store import journal
from holdfast.store.database import Database
from holdfast.store.tx import Tx
from holdfast.store.work import cluster, jobs
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio

EVERY = timedelta(hours=1)
CLAIM = Claim(
    id="job_1",
    kind=selfcheck.KIND,
    subject=selfcheck.CHECK,
    payload={},
    attempt=1,
    max_attempts=3,
    fence=1,
    priority=Priority.BACKGROUND,
    budgets=(),
    recheck=False,
)


async def checked(db: Database, watch: Watch) -> bool:
    """Run the check once, and write down what it found."""
    handler = selfcheck.kind(db, EVERY, watch.telemetry).handler
    outcome = await handler(Work(claim=CLAIM, check=lambda: None, point=no_points))
    assert isinstance(outcome, Again)
    assert outcome.after == EVERY
    assert outcome.write is not None
    await db.write(outcome.write)
    last = await db.read(lambda tx: cluster.last_selfcheck(tx, selfcheck.CHECK))
    assert last is not None
    assert watch.metric("self_check_ok", name=selfcheck.CHECK) == last[0]
    return last[0]


async def audit(db: Database, count: int) -> None:
    def write(tx: Tx) -> None:
        for n in range(count):
            journal.audit(tx, "did", f"s{n}")

    await db.write(write)


async def tamper(db: Database, statement: str, **params: Any) -> None:
    """Change audit rows, which the database itself refuses: somebody with its password lifts that first."""
    for name in ("audit_is_never_changed", "audit_is_never_deleted"):
        if db.engine.name == "sqlite":
            await update(db, f"DROP TRIGGER IF EXISTS {name}")
        else:
            await update(db, f"DROP TRIGGER IF EXISTS {name} ON audit")
    assert await update(db, statement, **params) > 0


async def events(db: Database) -> list[str]:
    return [event.name for event in await db.read(lambda tx: journal.events_after(tx, 0, subject=selfcheck.CHECK))]


async def test_a_whole_chain_passes_and_the_timeline_tells_it_once(db: Database) -> None:
    watch = Watch()
    await audit(db, 5)
    assert await checked(db, watch)
    await audit(db, 5)
    assert await checked(db, watch)
    assert await events(db) == ["selfcheck.passed"]
    assert [line["rows"] for line in watch.log.told("selfcheck.passed")] == [5, 10]


async def test_an_empty_log_passes(db: Database) -> None:
    assert await checked(db, Watch())


@pytest.mark.parametrize(
    ("statement", "row", "problem"),
    [
        ("UPDATE audit SET subject = 'another' WHERE seq = 4", 4, "row 4 was altered"),
        ("UPDATE audit SET at = at + 1 WHERE seq = 1", 1, "row 1 was altered"),
        ("DELETE FROM audit WHERE seq = 3", 3, "row 3 is missing"),
        ("DELETE FROM audit WHERE seq > 3", 4, "row 4 is missing: 5 were written"),
    ],
)
async def test_a_row_that_was_tampered_with_is_named(db: Database, statement: str, row: int, problem: str) -> None:
    watch = Watch()
    await audit(db, 5)
    await tamper(db, statement)
    assert not await checked(db, watch)
    assert await events(db) == ["selfcheck.failed"]
    [line] = watch.log.told("selfcheck.failed")
    assert (line["row"], line["problem"]) == (row, problem)


async def test_a_failed_check_stays_failed_until_the_row_is_as_it_was(db: Database) -> None:
    watch = Watch()
    await audit(db, 5)
    await tamper(db, "UPDATE audit SET subject = 'another' WHERE seq = 4")
    for _ in range(3):
        assert not await checked(db, watch)
    await tamper(db, "UPDATE audit SET subject = 's3' WHERE seq = 4")
    assert await checked(db, watch)
    assert await events(db) == ["selfcheck.failed", "selfcheck.passed"]


async def test_a_bad_row_far_into_a_long_log_stays_bad(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the log: a check that begins anew after a failure would pass its first page, and so every other."""
    monkeypatch.setattr(selfcheck, "PAGE", 10)
    watch = Watch()
    await audit(db, 35)
    await tamper(db, "UPDATE audit SET subject = 'another' WHERE seq = 25")
    verdicts = [await checked(db, watch) for _ in range(6)]
    assert verdicts == [True, True, False, False, False, False]
    assert {line["row"] for line in watch.log.told("selfcheck.failed")} == {25}


async def test_a_long_log_is_walked_page_by_page_to_its_end(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "PAGE", 10)
    watch = Watch()
    await audit(db, 20)
    assert [await checked(db, watch) for _ in range(3)] == [True] * 3
    assert [line["rows"] for line in watch.log.told("selfcheck.passed")] == [10, 20, 20]


async def test_there_is_always_one_check_to_come(db: Database) -> None:
    families = [selfcheck.owed(SystemRandom(), EVERY)]
    assert await sweep.reconcile(db, families, no_points) == 1
    assert await sweep.reconcile(db, families, no_points) == 0
    watch = Watch()
    async with working(db, [selfcheck.kind(db, EVERY, watch.telemetry)]):
        await eventually(lambda: watch.log.told("selfcheck.passed"))
    job = await db.read(lambda tx: jobs.live(tx, selfcheck.KIND, selfcheck.CHECK))
    assert job is not None
    assert (job.state, job.reason, job.attempts) == ("ready", "SCHEDULED", 0)


async def test_a_check_that_died_is_a_persons_to_bring_back(db: Database) -> None:
    await claimed(db, selfcheck.CHECK, kind="k")
    await update(db, "UPDATE jobs SET kind = :kind, state = 'dead'", kind=selfcheck.KIND)
    assert await sweep.reconcile(db, [selfcheck.owed(SystemRandom(), EVERY)], no_points) == 0


async def test_a_check_that_a_fast_clock_planned_follows_the_clock_that_was_set_right(db: Database) -> None:
    owed = [selfcheck.owed(SystemRandom(), EVERY)]
    await sweep.reconcile(db, owed, no_points)
    await db.write(lambda tx: tx.run("UPDATE jobs SET due_at = now_us() + :ahead", ahead=timedelta(days=30)))
    await sweep.reconcile(db, owed, no_points)
    due, now = await db.read(lambda tx: (jobs.live(tx, selfcheck.KIND, selfcheck.CHECK), tx.now()))
    assert due is not None
    assert due.due_at <= now + EVERY
