"""Budgets in the claim: what a remote allows is counted over all replicas, and a denied job is told its turn."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from tests.support.jobs import (
    LONG_AGO,
    ON_POSTGRES,
    TTL,
    Gate,
    claim,
    enqueue,
    get,
    make_due,
    opened,
    raw,
    spec,
    update,
)
from tests.support.reaper import PATIENCE

from holdfast.core.issuers.budget import Budget, Limit
from holdfast.core.work.job import Again, Claim, JobState, Priority
from holdfast.store.database import Database, Engine
from holdfast.store.tx import Tx
from holdfast.store.work import budgets, jobs

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
MOMENT = timedelta(minutes=5)  # far more than a test takes, far less than an hour


async def define(db: Database, key: str, burst: int, *, every: timedelta = HOUR) -> None:
    limit = Limit(burst=burst, every=every)
    await db.write(lambda tx: budgets.define(tx, key, limit))


async def now(db: Database) -> datetime:
    return await db.read(lambda tx: tx.now())


async def budget(db: Database, key: str) -> Budget:
    [found] = [each for each in await db.read(budgets.all_budgets) if each.key == key]
    return found


async def used(db: Database, key: str) -> int:
    """How many requests are not yet paid off."""
    held = await budget(db, key)
    return max(0, round((held.tat - await now(db)) / held.limit.every))


def subjects(claims: list[Claim]) -> list[str]:
    return [each.subject for each in claims]


async def test_a_job_without_budgets_needs_none(db: Database) -> None:
    await define(db, "le", 1)
    await enqueue(db, "free")
    assert subjects(await claim(db)) == ["free"]
    assert await used(db, "le") == 0


async def test_a_denied_job_is_not_claimed_and_is_told_its_turn_and_the_reason(db: Database) -> None:
    await define(db, "le", 2)
    for n in range(4):
        await enqueue(db, f"s{n}", budgets=("le",), due_at=LONG_AGO + timedelta(days=n))
    assert subjects(await claim(db)) == ["s0", "s1"]
    assert await used(db, "le") == 2
    waiting = await db.read(lambda tx: [jobs.live(tx, "k", "s2"), jobs.live(tx, "k", "s3")])
    turns = []
    for job in waiting:
        assert job is not None
        assert (job.state, job.reason, job.attempts, job.holder) == (JobState.READY, "BUDGET", 0, None)
        turns.append(job.due_at)
    assert abs(turns[0] - (await now(db) + HOUR)) < MOMENT
    assert turns[1] - turns[0] == HOUR  # each has a turn of its own
    assert await claim(db) == []


async def test_a_claimed_job_no_longer_says_that_it_waits_for_its_budget(db: Database) -> None:
    await define(db, "le", 1)
    await enqueue(db, "s0", budgets=("le",))
    await claim(db)
    denied = await enqueue(db, "s1", budgets=("le",))
    assert await claim(db) == []
    assert (await get(db, denied)).reason == "BUDGET"
    await update(db, "UPDATE budgets SET tat = now_us()")  # an hour has gone by
    await make_due(db)
    assert subjects(await claim(db)) == ["s1"]
    assert (await get(db, denied)).reason is None


async def test_jobs_turned_away_do_not_make_the_others_wait_for_the_next_poll(db: Database) -> None:
    await define(db, "le", 1)
    for n in range(40):
        await enqueue(db, f"s{n:02d}", budgets=("le",), due_at=LONG_AGO + timedelta(hours=n))
    await enqueue(db, "free", due_at=LONG_AGO + timedelta(days=9))
    woken = db.wake.subscribe()
    taken = await claim(db, limit=16)
    while woken.is_set():  # as the worker does
        woken.clear()
        taken += await claim(db, limit=16)
    assert subjects(taken) == ["s00", "free"]


async def test_a_job_that_found_its_turn_taken_goes_to_the_front(db: Database) -> None:
    await define(db, "le", 1)
    await enqueue(db, "s0", budgets=("le",))
    await claim(db)
    for n in range(1, 6):
        await enqueue(db, f"s{n}", budgets=("le",), due_at=LONG_AGO + timedelta(days=n))
    assert await claim(db) == []
    await make_due(db)  # all come back; the budget is still spent
    assert await claim(db, limit=1) == []
    first = await budget(db, "le")
    assert first.lost_tail is not None
    assert first.tail is not None
    assert first.lost_tail < first.tail


async def test_urgent_work_may_use_the_reserve_and_others_may_not(db: Database) -> None:
    await define(db, "le", 10)  # 8 for all, 2 more for urgent work
    for n in range(10):
        await enqueue(db, f"n{n}", budgets=("le",), due_at=LONG_AGO + timedelta(days=n))
    assert len(await claim(db)) == 8
    for n in range(3):
        await enqueue(db, f"u{n}", budgets=("le",), priority=Priority.URGENT, due_at=LONG_AGO + timedelta(days=n))
    assert subjects(await claim(db)) == ["u0", "u1"]
    assert await used(db, "le") == 10


async def test_a_hold_stops_everyone_until_its_time_however_urgent(db: Database) -> None:
    await define(db, "le", 10)
    until = await now(db) + timedelta(hours=3)
    await db.write(lambda tx: budgets.hold(tx, "le", until))
    ids = [
        await enqueue(db, "normal", budgets=("le",)),
        await enqueue(db, "urgent", budgets=("le",), priority=Priority.URGENT),
    ]
    free = await enqueue(db, "free")
    assert [each.id for each in await claim(db)] == [free]
    for job_id in ids:
        job = await get(db, job_id)
        assert (job.state, job.reason, job.due_at) == (JobState.READY, "NOT_BEFORE", until)
    assert await used(db, "le") == 0
    await update(db, "UPDATE budgets SET not_before = now_us()")  # three hours have gone by
    await make_due(db)
    assert subjects(await claim(db)) == ["urgent", "normal"]


async def test_a_milder_word_never_shortens_a_hold(db: Database) -> None:
    await define(db, "le", 10)
    until = await now(db) + timedelta(hours=3)
    for each in (until, until - HOUR):
        await db.write(lambda tx, each=each: budgets.hold(tx, "le", each))
    assert (await budget(db, "le")).not_before == until


async def test_a_job_that_needs_two_budgets_gets_both_or_neither(db: Database) -> None:
    await define(db, "account", 10)
    await define(db, "domain", 1)
    await enqueue(db, "s0", budgets=("account", "domain"), due_at=LONG_AGO)
    denied = await enqueue(db, "s1", budgets=("domain", "account"), due_at=LONG_AGO + timedelta(days=1))
    await enqueue(db, "s2", budgets=("account",), due_at=LONG_AGO + timedelta(days=2))
    assert subjects(await claim(db)) == ["s0", "s2"]
    assert (await used(db, "account"), await used(db, "domain")) == (2, 1)
    job = await get(db, denied)
    assert job.reason == "BUDGET"
    assert abs(job.due_at - (await now(db) + HOUR)) < MOMENT


async def test_the_longest_of_several_waits_counts_and_gives_the_reason(db: Database) -> None:
    await define(db, "short", 1)
    await define(db, "long", 1, every=24 * HOUR)
    await enqueue(db, "s0", budgets=("short", "long"))
    await claim(db)
    until = await now(db) + timedelta(minutes=30)
    await db.write(lambda tx: budgets.hold(tx, "short", until))
    job_id = await enqueue(db, "s1", budgets=("short", "long"))
    assert await claim(db) == []
    job = await get(db, job_id)
    assert job.reason == "BUDGET"
    assert abs(job.due_at - (await now(db) + 24 * HOUR)) < MOMENT


async def test_a_budget_named_twice_by_a_job_is_paid_twice(db: Database) -> None:
    await define(db, "le", 10)
    await enqueue(db, "s", budgets=("le", "le"))
    assert len(await claim(db)) == 1
    assert await used(db, "le") == 2


async def test_every_try_is_paid_for(db: Database) -> None:
    await define(db, "le", 3)
    await enqueue(db, "s", budgets=("le",))
    for _ in range(3):
        [taken] = await claim(db)
        await db.write(lambda tx, taken=taken: jobs.settle(tx, taken, Again(after=timedelta(0))))
    assert await claim(db) == []
    assert (await raw(db, taken.id))["reason"] == "BUDGET"


async def test_defining_a_budget_again_keeps_what_was_used(db: Database) -> None:
    await define(db, "le", 3)
    await enqueue(db, "s0", budgets=("le",))
    await enqueue(db, "s1", budgets=("le",))
    await claim(db)
    before = await budget(db, "le")
    await define(db, "le", 3)
    assert await budget(db, "le") == before
    await define(db, "le", 4)
    assert (await budget(db, "le")).tat == before.tat
    for n in range(2, 6):
        await enqueue(db, f"s{n}", budgets=("le",), due_at=LONG_AGO + timedelta(days=n))
    assert subjects(await claim(db)) == ["s2", "s3"]


async def test_a_new_limit_forgets_turns_promised_at_the_old_rate(db: Database) -> None:
    await define(db, "le", 1, every=24 * HOUR)
    for n in range(3):
        await enqueue(db, f"s{n}", budgets=("le",))
    await claim(db)
    assert (await budget(db, "le")).tail is not None
    await define(db, "le", 1, every=24 * HOUR)
    assert (await budget(db, "le")).tail is not None
    await define(db, "le", 1, every=HOUR)
    assert (await budget(db, "le")).tail is None


async def test_parallel_claimers_never_spend_more_than_the_budget(db: Database) -> None:
    await define(db, "le", 20)
    await db.write(lambda tx: [jobs.enqueue(tx, spec(f"s{n}", budgets=("le",))) for n in range(60)])
    batches = await asyncio.gather(*(claim(db, f"w{n}", limit=7) for n in range(10)))
    assert sum(map(len, batches)) <= 16  # a fifth is for urgent work
    await make_due(db)
    await claim(db)
    assert await used(db, "le") == 16


@ON_POSTGRES
async def test_two_replicas_together_never_spend_more_than_the_budget(make_engine: Callable[[], Engine]) -> None:
    async with opened(make_engine()) as one, opened(make_engine()) as two:
        await define(one, "le", 20)
        await define(one, "zs", 30)
        wanted = [spec(f"s{n}", budgets=("le", "zs") if n % 2 else ("zs", "le")) for n in range(100)]
        await one.write(lambda tx: [jobs.enqueue(tx, each) for each in wanted])

        async def worker(db: Database, holder: str) -> int:
            count = 0
            for _ in range(6):
                count += len(await claim(db, holder, limit=4))
            return count

        counts = await asyncio.gather(*(worker(db, f"w{n}") for n, db in enumerate([one, two] * 4)))
        assert sum(counts) == 16  # 20, less the reserve
        assert (await used(one, "le"), await used(one, "zs")) == (16, 16)
        states = await one.read(jobs.counts)
        assert states == {("k", "running"): 16, ("k", "ready"): 84}


@ON_POSTGRES
async def test_a_replica_that_counts_while_another_does_waits_for_it(make_engine: Callable[[], Engine]) -> None:
    async with opened(make_engine()) as one, opened(make_engine()) as two:
        await define(one, "le", 4)
        await one.write(lambda tx: [jobs.enqueue(tx, spec(f"s{n}", budgets=("le",))) for n in range(8)])
        gate = Gate()

        def slowly(tx: Tx) -> list[Claim]:
            taken = jobs.claim(tx, holder="a", free={"k": 4}, ttl=TTL)
            gate.wait()
            return taken

        first = asyncio.create_task(one.write(slowly))
        await gate.entered()
        second = asyncio.create_task(claim(two, "b", limit=4))
        async with asyncio.timeout(PATIENCE):
            while not second.done() and not await one.read(somebody_waits):
                await asyncio.wait([second], timeout=0.005)
        gate.open()
        assert (len(await first), len(await second)) == (4, 0)


def somebody_waits(tx: Tx) -> bool:
    """Whether a transaction of this database waits for a lock."""
    return bool(
        tx.rows("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
    )


async def test_claims_with_budgets_take_a_lease_as_any_other(db: Database) -> None:
    await define(db, "le", 5)
    await enqueue(db, "s", budgets=("le",))
    [taken] = await db.write(lambda tx: jobs.claim(tx, holder="a", free={"k": 1}, ttl=TTL))
    assert (taken.budgets, taken.attempt) == (("le",), 1)
    assert (await get(db, taken.id)).state is JobState.RUNNING
