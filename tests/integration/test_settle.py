"""Writing down what became of a job, on both stores: once, whatever the store does meanwhile, by its holder only."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.engine import Moody, eventually, row
from tests.support.jobs import TTL, MovableClock, audits, claim, claimed, enqueue, expire, found, history, put
from tests.support.reaper import PATIENCE

from holdfast.core.work.job import Again, Claim, Done, JobFailed, Outcome
from holdfast.engine.settle import Settler
from holdfast.errors import OutcomeUnknown, StoreError, StoreUnavailable, TxConflict
from holdfast.store.database import Database
from holdfast.store.tx import Tx
from holdfast.store.work import sweeps

pytestmark = pytest.mark.anyio


def write(tx: Tx) -> None:
    """What an outcome asks to be written with it; a second time is an error."""
    put(tx, "written")


OUTCOMES = [
    pytest.param(Done(), id="done"),
    pytest.param(Done(write=write), id="done-and-written"),
    pytest.param(Again(write=write), id="again"),
    pytest.param(JobFailed(error="it broke", reason="BROKEN", write=write), id="failed"),
]


@pytest.fixture
async def moody(db: Database) -> Moody:
    return Moody(db)


@pytest.fixture
async def settler(moody: Moody) -> AsyncIterator[Settler]:
    settler = Settler(moody, MovableClock())  # a clock whose waits are over at once
    yield settler
    await settler.close()


async def settled_as(db: Database, taken: Claim, outcome: Outcome) -> bool:
    """Whether the job is where this outcome sends it, and its write was done exactly once."""
    job = await row(db, taken.id)
    where = job.get("state", (await history(db)).get(taken.id))
    expected = {Done: "done", Again: "ready", JobFailed: "failed"}[type(outcome)]
    return where == expected and await db.read(found) == (["written"] if outcome.write else [])


async def stolen(db: Database, taken: Claim) -> Claim:
    """Let the lease run out and another worker have the job."""
    await expire(db)
    await db.write(lambda tx: sweeps.take_back_expired(tx, TTL))
    [now_theirs] = await claim(db, "b")
    assert now_theirs.id == taken.id
    return now_theirs


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_an_outcome_is_written_with_what_it_changes(db: Database, settler: Settler, outcome: Outcome) -> None:
    taken = await claimed(db)
    assert await settler.settle(taken, outcome)
    assert await settled_as(db, taken, outcome)


@pytest.mark.parametrize("problem", [StoreUnavailable("down"), TxConflict("busy")])
@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_an_outcome_is_kept_and_tried_again_while_the_store_is_away(
    db: Database, moody: Moody, settler: Settler, outcome: Outcome, problem: Exception
) -> None:
    taken = await claimed(db)
    moody.before = problem
    settling = asyncio.create_task(settler.settle(taken, outcome))
    await eventually(lambda: moody.tried >= 5)
    assert not await settled_as(db, taken, outcome)
    moody.before = None
    assert await settling
    assert await settled_as(db, taken, outcome)


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_an_outcome_whose_commit_was_not_answered_is_not_written_twice(
    db: Database, moody: Moody, settler: Settler, outcome: Outcome
) -> None:
    taken = await claimed(db)
    moody.after = OutcomeUnknown("lost")
    settling = asyncio.create_task(settler.settle(taken, outcome))
    await eventually(lambda: moody.tried >= 3)
    moody.after = None
    assert await settling  # it was written, and the worker is told so
    assert await settled_as(db, taken, outcome)
    assert len([action for _, action, _ in await audits(db) if action == "job_failed"]) == isinstance(
        outcome, JobFailed
    )


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_an_outcome_whose_commit_was_not_answered_and_did_not_happen_is_written(
    db: Database, moody: Moody, settler: Settler, outcome: Outcome
) -> None:
    taken = await claimed(db)
    moody.before = OutcomeUnknown("lost on the way there")
    settling = asyncio.create_task(settler.settle(taken, outcome))
    await eventually(lambda: moody.tried >= 3)
    moody.before = None
    assert await settling
    assert await settled_as(db, taken, outcome)


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_a_zombie_writes_nothing_and_is_told_so(db: Database, settler: Settler, outcome: Outcome) -> None:
    taken = await claimed(db)
    theirs = await stolen(db, taken)
    before = await row(db, taken.id)
    assert not await settler.settle(taken, outcome)
    assert await row(db, taken.id) == before
    assert await db.read(found) == []
    assert await settler.settle(theirs, Done())


@pytest.mark.parametrize("problem", [StoreUnavailable("down"), OutcomeUnknown("lost")])
@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_one_that_becomes_a_zombie_while_the_store_is_away_writes_nothing(
    db: Database, moody: Moody, settler: Settler, outcome: Outcome, problem: Exception
) -> None:
    taken = await claimed(db)
    moody.before = problem
    settling = asyncio.create_task(settler.settle(taken, outcome))
    await eventually(lambda: moody.tried >= 2)
    await stolen(db, taken)
    before = await row(db, taken.id)
    moody.before = None
    written = await settling
    assert await row(db, taken.id) == before
    assert await db.read(found) == []
    if isinstance(problem, StoreUnavailable):
        assert not written  # nothing was unknown: it is certain that none of it counted


async def test_finishes_that_come_together_are_written_together(db: Database, moody: Moody, settler: Settler) -> None:
    for n in range(20):
        await enqueue(db, str(n))
    taken = await claim(db)
    assert await asyncio.gather(*(settler.settle(one, Done()) for one in taken)) == [True] * 20
    assert len(await history(db)) == 20
    assert moody.tried <= 2


async def test_a_zombie_among_finishes_that_come_together_spoils_none_of_them(db: Database, settler: Settler) -> None:
    zombie = await claimed(db, "lost")
    await stolen(db, zombie)
    others = [await claimed(db, str(n)) for n in range(3)]
    answers = await asyncio.gather(*(settler.settle(one, Done()) for one in [others[0], zombie, *others[1:]]))
    assert answers == [True, False, True, True]
    assert set(await history(db)) == {one.id for one in others}


async def test_a_finish_that_comes_while_others_are_being_written_has_its_turn(
    db: Database, moody: Moody, settler: Settler
) -> None:
    first, second = await claimed(db, "1"), await claimed(db, "2")
    moody.hangs = asyncio.Event()
    one = asyncio.create_task(settler.settle(first, Done()))
    await eventually(lambda: moody.tried)
    two = asyncio.create_task(settler.settle(second, Done()))
    await asyncio.sleep(0)
    moody.hangs.set()
    assert await one
    assert await two
    assert len(await history(db)) == 2


async def test_a_group_that_cannot_be_written_tells_each_of_it_and_strands_nobody_behind_it(
    db: Database, moody: Moody, settler: Settler
) -> None:
    first, second = await claimed(db, "1"), await claimed(db, "2")
    moody.hangs, moody.before = asyncio.Event(), StoreError("a bug")
    one = asyncio.create_task(settler.settle(first, Done()))
    await eventually(lambda: moody.tried)
    two = asyncio.create_task(settler.settle(second, Done()))
    await asyncio.sleep(0)
    moody.hangs.set()
    with pytest.raises(StoreError, match="a bug"):
        await one
    moody.before = None
    with pytest.raises(StoreError, match="a bug"):
        async with asyncio.timeout(PATIENCE):
            await two
    assert await settler.settle(second, Done())


async def test_a_write_with_a_bug_is_the_callers_to_know_and_changes_nothing(db: Database, settler: Settler) -> None:
    def broken(tx: Tx) -> None:
        write(tx)
        raise ValueError("a bug")

    taken = await claimed(db)
    with pytest.raises(ValueError, match="a bug"):
        await settler.settle(taken, Again(write=broken))
    assert (await row(db, taken.id))["state"] == "running"
    assert await db.read(found) == []


async def test_a_settler_that_is_closed_stops_trying(db: Database, moody: Moody, settler: Settler) -> None:
    taken = await claimed(db)
    moody.before = StoreUnavailable("down")
    settling = asyncio.create_task(settler.settle(taken, Done()))
    await eventually(lambda: moody.tried)
    await settler.close()
    with pytest.raises(asyncio.CancelledError):
        await settling
    assert "settle" not in {task.get_name() for task in asyncio.all_tasks()}
