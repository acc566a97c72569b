"""Who is alive, and what happens when the database may have lost commits."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import pytest
from tests.support.jobs import LONG_AGO, ON_POSTGRES, TTL, audits, claim, claimed, enqueue, get, opened, raw, update

from holdfast.core.work.job import Done, JobState
from holdfast.errors import LeaseLost
from holdfast.store import journal
from holdfast.store.database import Database, Engine
from holdfast.store.tx import Tx
from holdfast.store.work import cluster, jobs, sweeps

pytestmark = pytest.mark.anyio
T = TypeVar("T")


def in_epoch(epoch: int, fn: Callable[[Tx], T]) -> Callable[[Tx], T]:
    """The function as it would run on a connection of that epoch."""

    def run(tx: Tx) -> T:
        tx.epoch = epoch
        return fn(tx)

    return run


async def note(db: Database, epoch: int) -> tuple[int, bool]:
    return await db.write(in_epoch(epoch, sweeps.note_epoch))


# ── who is alive ──


async def test_a_replica_is_known_from_its_first_sign_to_its_farewell(db: Database) -> None:
    before = await db.read(lambda tx: tx.now())
    at, _ = await db.write(lambda tx: cluster.replica_seen(tx, "h1", "pod-1", "1.0", draining=False))
    assert before <= at <= await db.read(lambda tx: tx.now())
    [one] = await db.read(cluster.all_replicas)
    assert (one.holder, one.name, one.version, one.draining) == ("h1", "pod-1", "1.0", False)
    assert one.started_at <= one.seen_at == at

    later, _ = await db.write(lambda tx: cluster.replica_seen(tx, "h1", "pod-1", "1.0", draining=True))
    [same] = await db.read(cluster.all_replicas)
    assert (same.started_at, same.seen_at, same.draining) == (one.started_at, later, True)

    await db.write(lambda tx: cluster.replica_seen(tx, "h2", "pod-2", "1.0", draining=False))
    await db.write(lambda tx: cluster.remove_replica(tx, "h1"))
    assert [each.holder for each in await db.read(cluster.all_replicas)] == ["h2"]


async def test_a_replica_that_fell_silent_is_forgotten(db: Database) -> None:
    for holder in ("silent", "alive"):
        await db.write(lambda tx, holder=holder: cluster.replica_seen(tx, holder, holder, "1.0", draining=False))
    await update(db, "UPDATE replicas SET seen_at = :at WHERE holder = 'silent'", at=LONG_AGO)
    assert await db.write(lambda tx: cluster.forget_silent_replicas(tx, timedelta(hours=1))) == 1
    assert [each.holder for each in await db.read(cluster.all_replicas)] == ["alive"]


# ── the store's epoch ──


async def test_the_first_epoch_of_a_new_database_is_no_failover(db: Database) -> None:
    assert await note(db, 7) == (7, False)
    assert await note(db, 7) == (7, False)
    assert await audits(db) == []


async def test_a_raised_epoch_drops_leases_and_takes_jobs_back_to_be_rechecked(db: Database) -> None:
    await note(db, 1)
    running = await claimed(db, "running")
    waiting = await enqueue(db, "waiting", due_at=LONG_AGO + timedelta(days=36500))
    lease = await db.write(lambda tx: cluster.take_lease(tx, "leader", "a", TTL))
    assert lease is not None

    assert await note(db, 2) == (2, True)
    assert await db.read(cluster.held_leases) == []
    job, row = await get(db, running.id), await raw(db, running.id)
    assert (job.state, job.reason, bool(row["recheck"])) == (JobState.READY, "STORE_FAILOVER", True)
    row = await raw(db, waiting)
    assert (row["state"], bool(row["recheck"])) == ("ready", False)
    [entry] = await db.read(lambda tx: journal.audit_page(tx, 0))
    assert (entry.actor, entry.action, entry.subject) == ("system", "store_failover", "store")
    assert entry.details == '{"jobs":1,"leases":1,"new_epoch":2,"old_epoch":1}'
    [event] = await db.read(lambda tx: journal.events_after(tx, 0))
    assert event.name == "store.failover"

    assert await note(db, 2) == (2, False)  # said once
    assert len(await audits(db)) == 1


async def test_what_was_claimed_before_a_failover_counts_for_nothing_after_it(db: Database) -> None:
    await note(db, 1)
    old = await claimed(db)
    lease = await db.write(lambda tx: cluster.take_lease(tx, "leader", "a", TTL))
    assert lease is not None
    await note(db, 2)
    with pytest.raises(LeaseLost):
        await db.write(lambda tx: jobs.settle(tx, old, Done()))
    with pytest.raises(LeaseLost):
        await db.write(lambda tx: cluster.renew_lease(tx, lease, TTL))
    [new] = await db.write(in_epoch(2, lambda tx: jobs.claim(tx, holder="b", free={"k": 1}, ttl=TTL)))
    assert (new.id, new.recheck) == (old.id, True)
    with pytest.raises(LeaseLost):
        await db.write(lambda tx: jobs.settle(tx, old, Done()))
    await db.write(lambda tx: jobs.settle(tx, new, Done()))


@pytest.mark.parametrize("lost", ["the last claim", "all claims", "the job"])
async def test_fences_after_a_failover_are_above_all_before_even_if_commits_were_lost(db: Database, lost: str) -> None:
    await note(db, 1)
    job_id = await enqueue(db, "s")
    before = []
    for _ in range(3):
        taken = (await claim(db))[0]
        before.append(taken)
        await db.write(lambda tx, taken=taken: jobs.release(tx, [taken]))
    before += await claim(db)

    # What the promoted standby has not heard of.
    if lost == "the last claim":
        await update(db, "UPDATE jobs SET state = 'ready', fence = fence - 1, holder = NULL, lease_until = NULL")
    elif lost == "all claims":
        await update(db, "UPDATE jobs SET state = 'ready', fence = 0, holder = NULL, lease_until = NULL")
    else:
        await update(db, "DELETE FROM jobs")
    assert await note(db, 2) == (2, True)
    if lost == "the job":
        assert await enqueue(db, "s", id=job_id) == job_id  # the reconciler finds that it is owed

    [new] = await db.write(in_epoch(2, lambda tx: jobs.claim(tx, holder="b", free={"k": 1}, ttl=TTL)))
    assert new.fence > max(taken.fence for taken in before)
    for taken in before:
        with pytest.raises(LeaseLost):
            await db.write(lambda tx, taken=taken: jobs.settle(tx, taken, Done()))


async def test_a_lower_epoch_is_reported_and_changes_nothing(db: Database) -> None:
    await note(db, 5)
    taken = await claimed(db)
    assert await note(db, 4) == (5, False)  # an old primary: the caller must not work there
    assert (await get(db, taken.id)).state is JobState.RUNNING
    assert await note(db, 5) == (5, False)


@ON_POSTGRES
async def test_of_replicas_that_notice_together_one_takes_back(make_engine: Callable[[], Engine]) -> None:
    async with opened(make_engine()) as one, opened(make_engine()) as two:
        await note(one, 1)
        await claimed(one)
        answers = await asyncio.gather(*(note(db, 2) for db in (one, two, one, two)))
        assert sorted(answers) == [(2, False)] * 3 + [(2, True)]
        assert [action for _, action, _ in await audits(one)] == ["store_failover"]
