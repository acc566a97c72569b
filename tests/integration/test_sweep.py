"""The sweeps on both stores: what is owed is done in one round, page by page, once, and with its audit row."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import pytest
from tests.simulation import errands
from tests.support.engine import row
from tests.support.jobs import LONG_AGO, audits, claimed, enqueue, history, spec, update

from holdfast.core.work.job import Done, Spec
from holdfast.engine import sweep
from holdfast.ports import no_points
from holdfast.store import journal
from holdfast.store.database import Database
from holdfast.store.tx import Tx
from holdfast.store.work import cluster, jobs
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio

PAGE = 500  # of the retry sweep


class Passed:
    """Points that only count."""

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()

    def __call__(self, name: str) -> None:
        self.names[name] += 1


async def many(db: Database, count: int, *, state: str, due: str, name: str) -> None:
    """Put rows there as they are after a bad night."""

    def write(tx: Tx) -> None:
        for n in range(count):
            jobs.enqueue(tx, spec(f"{name}-{n}"))
        tx.run(
            f"""UPDATE jobs SET state = :state, due_at = now_us() + {due}, attempts = 1, last_error = 'it broke'
                 WHERE subject LIKE :name""",
            state=state,
            name=f"{name}-%",
        )

    await db.write(write)


# ── retry ──


async def test_every_failed_job_whose_wait_is_over_comes_back_in_one_round(db: Database) -> None:
    points = Passed()
    await many(db, 2 * PAGE + 1, state="failed", due="-1", name="due")
    assert await sweep.retry_failed(db, points) == 2 * PAGE + 1
    assert await db.read(jobs.counts) == {("k", "ready"): 2 * PAGE + 1}
    assert points.names == {"sweep.retried": 3}


async def test_pages_of_rows_that_cannot_go_hide_no_row_that_can(db: Database) -> None:
    await many(db, PAGE + 50, state="dead", due="-1000000", name="dead")
    await many(db, PAGE + 50, state="failed", due="3600000000", name="later")
    await many(db, 1, state="failed", due="-1", name="due")
    assert await sweep.retry_failed(db, no_points) == 1
    assert await db.read(lambda tx: jobs.live(tx, "k", "due-0").state) == "ready"  # type: ignore[union-attr]


async def test_a_retry_is_audited_with_what_it_changed(db: Database) -> None:
    await many(db, 1, state="failed", due="-1", name="due")
    await sweep.retry_failed(db, no_points)
    [entry] = await db.read(lambda tx: journal.audit_page(tx, 0))
    assert (entry.actor, entry.action, entry.subject) == ("system", "job_retry", "due-0")
    for fact in ('"old_status":"failed"', '"new_status":"ready"', '"attempts":1', '"max_attempts":3'):
        assert fact in entry.details


# ── reconcile ──


async def under_way(db: Database, *names: str, with_job: bool) -> None:
    """Errands that were asked for; somebody deletes their jobs by hand."""
    await db.write(errands.set_up)
    for name in names:
        await db.write(lambda tx, name=name: errands.ask(tx, name, f"job_{name}"))  # type: ignore[misc]
    if not with_job:
        await update(db, "DELETE FROM jobs")


def family() -> list[sweep.Owed]:
    return [errands.owed(SystemRandom())]


async def restored(db: Database) -> list[str]:
    return [subject for _, action, subject in await audits(db) if action == "job_restored"]


async def test_a_subject_under_way_without_a_job_gets_its_job_back_once_and_audited(db: Database) -> None:
    points = Passed()
    await under_way(db, "e1", "e2", with_job=False)
    assert await sweep.reconcile(db, family(), points) == 2
    assert await sweep.reconcile(db, family(), points) == 0
    assert await db.read(jobs.counts) == {("errand", "ready"): 2}
    assert sorted(await restored(db)) == ["e1", "e2"]
    assert points.names == {"sweep.reconciled": 1}


@pytest.mark.parametrize("state", ["ready", "running", "failed", "dead"])
async def test_a_subject_with_a_job_in_any_state_is_left_alone(db: Database, state: str) -> None:
    """A dead one, too: a person decides about those, not the reconciler."""
    await under_way(db, "e1", with_job=True)
    await update(db, "UPDATE jobs SET state = :state", state=state)
    assert await sweep.reconcile(db, family(), no_points) == 0
    assert await db.read(jobs.counts) == {("errand", state): 1}
    assert await restored(db) == []


async def test_a_subject_that_is_done_gets_no_job(db: Database) -> None:
    await under_way(db, "e1", with_job=False)
    await update(db, "UPDATE errands SET state = 'issued'")
    assert await sweep.reconcile(db, family(), no_points) == 0


async def test_more_than_a_page_of_lost_jobs_comes_back_in_one_round(db: Database) -> None:
    points = Passed()
    await db.write(errands.set_up)

    def vanished(tx: Tx) -> None:
        for n in range(501):
            tx.run("INSERT INTO errands (id, state, asked_at) VALUES (:id, 'asked', now_us())", id=f"e{n:03d}")

    await db.write(vanished)
    assert await sweep.reconcile(db, family(), points) == 501
    assert points.names["sweep.reconciled"] == 2


async def test_a_job_that_came_back_by_itself_meanwhile_is_not_said_to_be_restored(db: Database) -> None:
    """On several replicas two may look at once: the one that comes second must not tell a story of its own."""
    await enqueue(db, "s")

    def saw_it_missing(tx: Tx) -> Sequence[Spec]:
        return [spec("s")]

    assert await sweep.reconcile(db, [saw_it_missing], no_points) == 0
    assert await restored(db) == []


async def test_every_family_has_its_turn(db: Database) -> None:
    def owes(name: str) -> sweep.Owed:
        wanted = spec(name)
        return lambda tx: () if jobs.known(tx, "k", name) else (wanted,)

    assert await sweep.reconcile(db, [owes("a"), owes("b")], no_points) == 2


# ── time out, clean up ──


async def test_a_job_not_begun_in_time_is_dead_and_visible(db: Database) -> None:
    late = await enqueue(db, "late", expires_at=LONG_AGO)
    await enqueue(db, "soon")
    assert await sweep.time_out(db) == 1
    job = await row(db, late)
    assert (job["state"], job["reason"], job["last_error"]) == ("dead", "TIMED_OUT", "not begun in time")
    assert ("system", "job_expired", "late") in await audits(db)


async def test_a_job_that_was_begun_is_not_timed_out(db: Database) -> None:
    taken = await claimed(db, expires_at=LONG_AGO)
    assert await sweep.time_out(db) == 0
    assert (await row(db, taken.id))["state"] == "running"


async def test_old_history_and_replicas_long_gone_are_forgotten(db: Database) -> None:
    old, new = await claimed(db, "old"), await claimed(db, "new")
    for one in (old, new):
        await db.write(lambda tx, one=one: jobs.settle(tx, one, Done()))  # type: ignore[misc]
    await update(db, "UPDATE job_history SET finished_at = 0 WHERE id = :id", id=old.id)
    for holder in ("gone", "alive"):
        await db.write(lambda tx, holder=holder: cluster.replica_seen(tx, holder, holder, "1", draining=False))  # type: ignore[misc]
    await update(db, "UPDATE replicas SET seen_at = now_us() - 4000000000 WHERE holder = 'gone'")
    assert await sweep.clean_up(db, timedelta(days=90)) == 1
    assert list(await history(db)) == [new.id]
    assert [replica.holder for replica in await db.read(cluster.all_replicas)] == ["alive"]
