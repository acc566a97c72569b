"""Jobs on both stores: who gets one, who may still write about it, and what becomes of it."""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.support.jobs import (
    LONG_AGO,
    ON_POSTGRES,
    TTL,
    claim,
    claimed,
    enqueue,
    expire,
    found,
    get,
    history,
    make_due,
    opened,
    put,
    raw,
    spec,
    update,
)  # fmt: skip
from tests.support.reaper import PATIENCE

from holdfast.core.work.job import Again, Claim, Done, JobFailed, JobState, Outcome, Priority
from holdfast.errors import Duplicate, LeaseLost
from holdfast.store import journal
from holdfast.store.database import Database, Engine
from holdfast.store.tx import Row, Session, Tx, from_micros
from holdfast.store.work import jobs, sweeps

pytestmark = pytest.mark.anyio

BROKEN = JobFailed(error="it broke", reason="BROKEN")


async def settle(db: Database, taken: Claim, outcome: Outcome) -> None:
    await db.write(lambda tx: jobs.settle(tx, taken, outcome))


async def retry(db: Database) -> int:
    await make_due(db)
    return await db.write(sweeps.retry_failed)


async def take_back(db: Database) -> tuple[int, int]:
    return await db.write(lambda tx: sweeps.take_back_expired(tx, TTL))


# ── asking for work ──


async def test_a_second_request_for_the_same_work_returns_the_live_job(db: Database) -> None:
    first = await enqueue(db, "s")
    assert await enqueue(db, "s") == first
    assert await db.read(jobs.counts) == {("k", "ready"): 1}


@pytest.mark.parametrize("state", ["running", "failed"])
async def test_a_job_blocks_a_second_one_until_it_is_over(db: Database, state: str) -> None:
    taken = await claimed(db, "s")
    if state == "failed":
        await settle(db, taken, BROKEN)
    assert (await get(db, taken.id)).state == state
    assert await enqueue(db, "s") == taken.id


async def test_other_kinds_and_other_subjects_are_other_work(db: Database) -> None:
    ids = {await enqueue(db, "s"), await enqueue(db, "t"), await enqueue(db, "s", kind="other")}
    assert len(ids) == 3


async def test_a_finished_job_leaves_the_queue_for_the_history_and_blocks_nobody(db: Database) -> None:
    taken = await claimed(db, "s")
    await settle(db, taken, Done())
    assert await db.read(jobs.counts) == {}
    assert await history(db) == {taken.id: "done"}
    assert await enqueue(db, "s") != taken.id


async def test_a_dead_job_blocks_nobody(db: Database) -> None:
    taken = await claimed(db, "s", max_attempts=1)
    await settle(db, taken, BROKEN)
    assert (await get(db, taken.id)).state is JobState.DEAD
    assert await enqueue(db, "s") != taken.id


async def test_ten_requests_at_once_make_one_job(db: Database) -> None:
    ids = await asyncio.gather(*(enqueue(db, "s") for _ in range(10)))
    assert len(set(ids)) == 1
    assert await db.read(jobs.counts) == {("k", "ready"): 1}


async def test_the_live_job_and_any_known_one_can_be_asked_for(db: Database) -> None:
    taken = await claimed(db, "s")
    live = await db.read(lambda tx: jobs.live(tx, "k", "s"))
    assert live is not None
    assert (live.id, live.state, live.holder) == (taken.id, JobState.RUNNING, "a")
    await settle(db, taken, replace(BROKEN, final=True))
    assert await db.read(lambda tx: jobs.live(tx, "k", "s")) is None
    assert await db.read(lambda tx: jobs.known(tx, "k", "s"))  # a person decides about a dead one
    assert not await db.read(lambda tx: jobs.known(tx, "k", "t"))
    assert await db.read(lambda tx: jobs.get(tx, "job_unknown")) is None


async def test_a_job_keeps_its_payload_and_its_subject_whatever_is_in_them(db: Database) -> None:
    payload = {"names": ["*.例え.test", 'a"b\\c'], "n": 2**53, "none": None, "percent": "100 %s"}
    taken = await claimed(db, "a:b %(c)s 'd'", payload=payload, budgets=("le:account",))
    assert (taken.subject, taken.payload, taken.budgets) == ("a:b %(c)s 'd'", payload, ("le:account",))


# ── claiming ──


async def test_nothing_is_claimed_before_it_is_due(db: Database) -> None:
    now = await db.read(lambda tx: tx.now())
    await enqueue(db, "later", due_at=now + timedelta(hours=1))
    assert await claim(db) == []
    await make_due(db)
    assert [taken.subject for taken in await claim(db)] == ["later"]


async def test_urgent_work_goes_first_and_equals_go_by_their_time(db: Database) -> None:
    for subject, priority, days in [
        ("background", Priority.BACKGROUND, 0),
        ("normal, later", Priority.NORMAL, 2),
        ("normal, earlier", Priority.NORMAL, 1),
        ("urgent", Priority.URGENT, 3),
    ]:
        await enqueue(db, subject, priority=priority, due_at=LONG_AGO + timedelta(days=days))
    order = [taken.subject for _ in range(4) for taken in await claim(db, limit=1)]
    assert order == ["urgent", "normal, earlier", "normal, later", "background"]


async def test_one_claim_fills_its_slots_across_priorities(db: Database) -> None:
    for n, priority in enumerate([Priority.URGENT, Priority.NORMAL, Priority.NORMAL, Priority.BACKGROUND]):
        await enqueue(db, f"s{n}", priority=priority, due_at=LONG_AGO + timedelta(days=n))
    assert [taken.subject for taken in await claim(db, limit=3)] == ["s0", "s1", "s2"]


async def test_each_kind_is_claimed_up_to_its_own_slots(db: Database) -> None:
    for n in range(5):
        await enqueue(db, f"s{n}", kind="slow")
        await enqueue(db, f"s{n}", kind="quick")
        await enqueue(db, f"s{n}", kind="full")
        await enqueue(db, f"s{n}", kind="not ours")
    taken = await db.write(
        lambda tx: jobs.claim(tx, holder="a", free={"slow": 2, "quick": 9, "full": 0, "idle": 3}, ttl=TTL)
    )
    kinds = [each.kind for each in taken]
    assert {kind: kinds.count(kind) for kind in kinds} == {"slow": 2, "quick": 5}
    assert await db.write(lambda tx: jobs.claim(tx, holder="a", free={}, ttl=TTL)) == []


async def test_an_attempt_is_counted_when_it_begins(db: Database) -> None:
    taken = await claimed(db)
    job = await get(db, taken.id)
    assert (taken.attempt, job.attempts, job.state, job.holder) == (1, 1, JobState.RUNNING, "a")


async def test_a_lease_ends_a_ttl_after_the_databases_now(db: Database) -> None:
    before = await db.read(lambda tx: tx.now())
    taken = await claimed(db)
    after = await db.read(lambda tx: tx.now())
    until = (await get(db, taken.id)).lease_until
    assert until is not None
    assert before + TTL <= until <= after + TTL


async def test_the_fence_grows_with_every_claim_and_with_every_way_back(db: Database) -> None:
    job_id = await enqueue(db)
    seen = [0]

    async def note() -> None:
        seen.append((await raw(db, job_id))["fence"])

    async def claim_it() -> Claim:
        await make_due(db)
        [taken] = await claim(db)
        await note()
        assert taken.fence == seen[-1]
        return taken

    await claim_it()
    await expire(db)
    await take_back(db)
    await note()
    taken = await claim_it()
    await db.write(lambda tx: jobs.release(tx, [taken]))
    await note()
    await claim_it()
    await db.write(sweeps.take_back_all)
    await note()
    await settle(db, await claim_it(), Again(reason="WAITING"))
    await settle(db, await claim_it(), replace(BROKEN, final=True))
    await db.write(lambda tx: jobs.requeue(tx, job_id))
    await note()
    await claim_it()
    assert seen == sorted(set(seen))
    assert len(seen) == 11


async def test_parallel_claimers_share_the_work_and_never_a_job(db: Database) -> None:
    """On SQLite the tasks of one process; the PostgreSQL twin with two replicas is below."""
    await db.write(lambda tx: [jobs.enqueue(tx, spec(f"s{n}")) for n in range(2000)])
    taken = await drain([db] * 8)
    assert len(taken) == len(set(taken)) == 2000


@ON_POSTGRES
async def test_two_replicas_share_the_work_and_never_a_job(make_engine: Callable[[], Engine]) -> None:
    async with opened(make_engine()) as one, opened(make_engine()) as two:
        await one.write(lambda tx: [jobs.enqueue(tx, spec(f"s{n}")) for n in range(2000)])
        taken = await drain([one, two] * 4)
    assert len(taken) == len(set(taken)) == 2000


async def drain(stores: list[Database]) -> list[str]:
    """Claim in parallel, one task for each entry, until nothing is left; the ids as claimed."""

    async def worker(db: Database, holder: str) -> list[str]:
        mine: list[str] = []
        while batch := await claim(db, holder, limit=25):
            mine += [taken.id for taken in batch]
        return mine

    shares = await asyncio.gather(*(worker(db, f"w{n}") for n, db in enumerate(stores)))
    return [job_id for share in shares for job_id in share]


# ── what a stale claim may do: nothing ──


async def stale(db: Database) -> tuple[Claim, Claim]:
    """A claim whose job went to another worker, and that worker's claim."""
    old = await claimed(db, holder="zombie")
    await expire(db)
    assert await take_back(db) == (1, 0)
    [new] = await claim(db, "b")
    assert new.id == old.id
    return old, new


@pytest.mark.parametrize(
    "outcome",
    [Done(), Again(after=timedelta(0)), BROKEN, replace(BROKEN, final=True)],
    ids=lambda it: type(it).__name__,
)
async def test_a_stale_claim_settles_nothing_and_what_it_changed_is_undone(db: Database, outcome: Any) -> None:
    old, new = await stale(db)
    before = await raw(db, new.id)
    with pytest.raises(LeaseLost):
        await settle(db, old, replace(outcome, write=lambda tx: put(tx, "written by a zombie")))
    assert await raw(db, new.id) == before
    assert await db.read(found) == []
    assert await history(db) == {}
    await settle(db, new, Done())  # the rightful holder is not disturbed


async def test_a_stale_claim_can_neither_finish_nor_beat_nor_release(db: Database) -> None:
    old, new = await stale(db)
    before = await raw(db, new.id)
    assert await db.write(lambda tx: jobs.finish(tx, [old])) == set()
    assert await db.write(lambda tx: jobs.beat(tx, "zombie", [old], TTL)) == set()
    assert await db.write(lambda tx: jobs.beat(tx, "b", [old], TTL)) == set()
    assert await db.write(lambda tx: jobs.release(tx, [old])) == 0
    assert not await db.read(lambda tx: jobs.still_ours(tx, old))
    assert await raw(db, new.id) == before


async def test_a_claim_is_stale_even_before_somebody_else_has_the_job(db: Database) -> None:
    old = await claimed(db)
    await expire(db)
    await take_back(db)
    with pytest.raises(LeaseLost):
        await settle(db, old, Done())
    assert (await get(db, old.id)).state is JobState.READY


async def test_of_a_batch_only_what_is_still_ours_is_finished(db: Database) -> None:
    old, new = await stale(db)
    mine = await claimed(db, "t", holder="zombie")
    assert await db.write(lambda tx: jobs.finish(tx, [old, mine])) == {mine.id}
    assert await history(db) == {mine.id: "done"}
    assert await db.read(lambda tx: jobs.finished(tx, [old, mine, new])) == {mine.id}


async def test_what_an_outcome_changes_is_committed_with_it(db: Database) -> None:
    await settle(db, await claimed(db, "s"), Done(write=lambda tx: put(tx, "done")))
    await settle(db, await claimed(db, "t"), Again(after=TTL, write=lambda tx: put(tx, "again")))
    await settle(db, await claimed(db, "u"), replace(BROKEN, write=lambda tx: put(tx, "failed")))
    assert await db.read(found) == ["again", "done", "failed"]


async def test_an_outcome_whose_change_fails_is_not_written_either(db: Database) -> None:
    taken = await claimed(db)

    def fails(tx: Tx) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await settle(db, taken, Done(write=fails))
    assert await db.read(lambda tx: jobs.still_ours(tx, taken))
    assert await history(db) == {}


# ── beating ──


async def test_a_beat_moves_the_end_of_every_lease_that_is_still_ours(db: Database) -> None:
    for subject in "stu":
        await enqueue(db, subject)
    mine = await claim(db, "a")
    await update(db, "UPDATE jobs SET lease_until = now_us() + 1000000")
    await db.write(lambda tx: jobs.settle(tx, mine[0], Done()))
    kept = await db.write(lambda tx: jobs.beat(tx, "a", mine, TTL))
    assert kept == {mine[1].id, mine[2].id}
    now = await db.read(lambda tx: tx.now())
    for job_id in kept:
        until = (await get(db, job_id)).lease_until
        assert until is not None
        assert until > now + TTL / 2
    assert await db.write(lambda tx: jobs.beat(tx, "a", [], TTL)) == set()


async def test_an_expired_lease_cannot_be_revived_by_a_beat(db: Database) -> None:
    taken = await claimed(db)
    await expire(db)
    assert await db.write(lambda tx: jobs.beat(tx, "a", [taken], TTL)) == set()


# ── settling ──


async def test_looking_again_later_costs_no_attempt_and_clears_the_crashes(db: Database) -> None:
    job_id = await enqueue(db)
    for _ in range(2):
        await claim(db)
        await expire(db)
        await take_back(db)
    [taken] = await claim(db)
    assert taken.attempt == 3
    at = LONG_AGO + timedelta(days=7)
    await settle(db, taken, Again(at=at, reason="CA_STILL_PENDING"))
    job = await get(db, job_id)
    assert (job.state, job.attempts, job.crashes) == (JobState.READY, 0, 0)  # it outlived them
    assert (job.due_at, job.reason, job.holder, job.lease_until) == (at, "CA_STILL_PENDING", None, None)


async def test_looking_again_after_a_while_counts_from_the_databases_now(db: Database) -> None:
    taken = await claimed(db)
    before = await db.read(lambda tx: tx.now())
    await settle(db, taken, Again(after=timedelta(minutes=5)))
    after = await db.read(lambda tx: tx.now())
    assert before + timedelta(minutes=5) <= (await get(db, taken.id)).due_at <= after + timedelta(minutes=5)


async def test_a_failed_attempt_waits_for_the_retry_sweep(db: Database) -> None:
    taken = await claimed(db, "s")
    await settle(db, taken, replace(BROKEN, wait=timedelta(hours=2)))
    job = await get(db, taken.id)
    assert (job.state, job.attempts, job.reason, job.last_error) == (JobState.FAILED, 1, "BROKEN", "it broke")
    assert job.due_at >= await db.read(lambda tx: tx.now()) + timedelta(hours=1, minutes=59)
    assert await db.write(sweeps.retry_failed) == 0  # not yet
    assert await claim(db) == []

    assert await retry(db) == 1
    job = await get(db, taken.id)
    assert (job.state, job.attempts, job.reason, job.last_error) == (JobState.READY, 1, "RETRY", "it broke")
    [again] = await claim(db)
    assert again.attempt == 2


async def test_a_retry_is_audited_as_the_systems_doing(db: Database) -> None:
    taken = await claimed(db, "s")
    await settle(db, taken, BROKEN)
    await retry(db)
    row = (await db.read(lambda tx: journal.audit_page(tx, 0)))[-1]
    assert (row.actor, row.action, row.subject) == ("system", "job_retry", "s")
    assert row.details == (
        f'{{"attempts":1,"job":"{taken.id}","max_attempts":3,"new_status":"ready","old_status":"failed"}}'
    )


async def test_when_its_attempts_are_used_up_a_job_is_dead_and_keeps_its_last_error(db: Database) -> None:
    job_id = await enqueue(db, "s", max_attempts=2)
    for n in (1, 2):
        [taken] = await claim(db)
        await settle(db, taken, JobFailed(error=f"failure {n}", reason="BROKEN"))
        await retry(db)
    job = await get(db, job_id)
    assert (job.state, job.attempts, job.last_error) == (JobState.DEAD, 2, "failure 2")
    assert (job.reason, job.holder, job.lease_until) == ("BROKEN", None, None)
    assert await claim(db) == []
    actions = [row.action for row in await db.read(lambda tx: journal.audit_page(tx, 0))]
    assert actions == ["job_failed", "job_retry", "job_dead"]
    names = [event.name for event in await db.read(lambda tx: journal.events_after(tx, 0, subject="s"))]
    assert names == ["job.failed", "job.dead"]


async def test_a_final_failure_is_the_end_at_the_first_attempt(db: Database) -> None:
    taken = await claimed(db)
    await settle(db, taken, replace(BROKEN, final=True))
    job = await get(db, taken.id)
    assert (job.state, job.attempts) == (JobState.DEAD, 1)


async def test_an_error_text_is_kept_whatever_is_in_it(db: Database) -> None:
    """A remote's words may hold what a database refuses; the outcome must be written all the same."""
    taken = await claimed(db)
    await settle(db, taken, JobFailed(error="nul \0, half \udc80, whole ü" + "!" * 5000, reason="BROKEN"))
    error = (await get(db, taken.id)).last_error
    assert error is not None
    assert re.match("nul ., half ., whole ü!!!", error)
    assert len(error) == 2000


# ── taking back ──


async def test_a_silent_workers_job_is_taken_back_and_said_to_be_so(db: Database) -> None:
    taken = await claimed(db, "s", holder="gone")
    assert await take_back(db) == (0, 0)  # its lease still runs
    await expire(db)
    assert await take_back(db) == (1, 0)
    job = await get(db, taken.id)
    assert (job.state, job.attempts, job.crashes) == (JobState.READY, 1, 1)
    assert (job.reason, job.holder, job.lease_until) == ("LEASE_EXPIRED", None, None)
    assert "gone went silent" in str(job.last_error)
    assert [row.action for row in await db.read(lambda tx: journal.audit_page(tx, 0))] == ["job_taken_back"]


async def test_a_job_that_silences_three_workers_running_is_quarantined_and_harms_no_other(
    db: Database,
) -> None:
    poison = await enqueue(db, "poison", max_attempts=99)
    for round_ in range(3):
        other = await enqueue(db, f"other{round_}")
        taken = {each.id: each for each in await claim(db)}
        assert taken.keys() == {poison, other}
        await settle(db, taken[other], Done())
        await expire(db)
        assert await take_back(db) == ((0, 1) if round_ == 2 else (1, 0))
    job = await get(db, poison)
    assert (job.state, job.reason, job.crashes) == (JobState.DEAD, "POISON", 3)
    assert await claim(db) == []
    assert (await db.read(lambda tx: journal.audit_page(tx, 0)))[-1].action == "job_quarantined"
    assert len(await history(db)) == 3


@pytest.mark.parametrize("outcome", [Again(after=timedelta(0)), BROKEN], ids=["again", "failed"])
async def test_a_clean_result_forgets_the_crashes_before_it(db: Database, outcome: Outcome) -> None:
    job_id = await enqueue(db, max_attempts=99)
    for _ in range(2):  # twice two crashes, never three in a row
        for _ in range(2):
            assert len(await claim(db)) == 1
            await expire(db)
            assert await take_back(db) == (1, 0)
        [taken] = await claim(db)
        await settle(db, taken, outcome)
        await retry(db)
    assert (await get(db, job_id)).state is JobState.READY


async def test_a_job_with_two_crashes_is_not_quarantined_for_what_a_new_one_beside_it_did(db: Database) -> None:
    innocent = await enqueue(db, "innocent", max_attempts=99)
    await update(db, "UPDATE jobs SET crashes = 2")
    for n in range(3):
        poison = await enqueue(db, f"new-{n}", max_attempts=99)
        assert len(await claim(db)) == 2
        await expire(db)
        if n < 2:
            assert await take_back(db) == (2, 0)
            await update(db, "DELETE FROM jobs WHERE id = :id", id=poison)
    assert await take_back(db) == (1, 1), "the fifth death in a row is enough, in whatever company"
    assert (await get(db, innocent)).reason == "POISON"


async def test_a_lease_that_the_process_lost_which_takes_it_back_is_no_crash(db: Database) -> None:
    """It stalled, or the clock jumped: its job is innocent, however often."""
    job_id = await enqueue(db, max_attempts=3)
    for _ in range(5):
        assert len(await claim(db)) == 1
        holder = (await get(db, job_id)).holder or ""
        await expire(db)
        assert await db.write(lambda tx, me=holder: sweeps.take_back_expired(tx, TTL, me=me)) == (1, 0)
    job = await get(db, job_id)
    assert (job.crashes, job.attempts) == (0, 0)


async def test_a_lease_that_ends_absurdly_late_counts_as_expired(db: Database) -> None:
    """It was written before the database's clock was set back."""
    taken = await claimed(db)
    await update(db, "UPDATE jobs SET lease_until = now_us() + :late", late=9 * TTL)
    assert await take_back(db) == (0, 0)
    await update(db, "UPDATE jobs SET lease_until = now_us() + :late", late=11 * TTL)
    assert await take_back(db) == (1, 0)
    assert (await get(db, taken.id)).state is JobState.READY


async def test_leases_are_taken_back_a_page_at_a_time_the_oldest_first(db: Database) -> None:
    for n in range(5):
        await enqueue(db, f"s{n}")
    for taken in await claim(db):
        ended = timedelta(seconds=60 - int(taken.subject[1:]))
        await update(db, "UPDATE jobs SET lease_until = now_us() - :ended WHERE id = :id", ended=ended, id=taken.id)
    assert await db.write(lambda tx: sweeps.take_back_expired(tx, TTL, limit=2)) == (2, 0)
    ready = await db.read(lambda tx: tx.rows("SELECT subject FROM jobs WHERE state = 'ready' ORDER BY subject"))
    assert [row["subject"] for row in ready] == ["s0", "s1"]


async def test_a_released_job_gets_its_attempt_back_and_is_due_at_once(db: Database) -> None:
    await enqueue(db, "s")
    await enqueue(db, "t")
    taken = await claim(db)
    assert await db.write(lambda tx: jobs.release(tx, taken)) == 2
    job = await get(db, taken[0].id)
    assert (job.state, job.attempts, job.crashes, job.reason) == (JobState.READY, 0, 0, "RELEASED")
    assert (job.holder, job.lease_until) == (None, None)
    assert [each.attempt for each in await claim(db, "b")] == [1, 1]
    assert await db.write(lambda tx: jobs.release(tx, [])) == 0


async def test_claims_we_never_heard_of_are_handed_back_and_no_others(db: Database) -> None:
    known = await claimed(db, "known", holder="a")
    stray = await claimed(db, "stray", holder="a")
    theirs = await claimed(db, "theirs", holder="b")
    assert await db.write(lambda tx: jobs.release_strays(tx, "a", [known])) == 1
    states = {each.id: (await get(db, each.id)).state for each in (known, stray, theirs)}
    assert states == {known.id: JobState.RUNNING, stray.id: JobState.READY, theirs.id: JobState.RUNNING}
    assert await db.write(lambda tx: jobs.release_strays(tx, "a", [])) == 1


async def test_a_newer_claim_that_we_never_heard_of_is_handed_back_although_we_know_an_older_one(db: Database) -> None:
    older = await claimed(db, holder="a")
    await settle(db, older, Again(after=timedelta(0)))  # whose answer was lost, so that we still think it is ours
    [newer] = await claim(db, holder="a")
    assert await db.write(lambda tx: jobs.release_strays(tx, "a", [newer])) == 0
    assert await db.write(lambda tx: jobs.release_strays(tx, "a", [older])) == 1
    assert (await get(db, older.id)).state is JobState.READY


async def test_after_a_failover_all_running_jobs_come_back_to_be_rechecked(db: Database) -> None:
    running = await claimed(db, "running")
    failed = await claimed(db, "failed")
    await settle(db, failed, BROKEN)
    assert await db.write(sweeps.take_back_all) == 1
    job = await get(db, running.id)
    assert (job.state, job.reason, job.attempts) == (JobState.READY, "STORE_FAILOVER", 0)
    assert (await get(db, failed.id)).state is JobState.FAILED
    [again] = await claim(db)
    assert (again.id, again.recheck) == (running.id, True)
    await settle(db, again, Again(after=timedelta(0)))
    [third] = await claim(db)
    assert not third.recheck  # once its handler has answered, all is known again


async def test_a_job_that_must_be_rechecked_must_be_so_until_somebody_answers(db: Database) -> None:
    await claimed(db)
    await db.write(sweeps.take_back_all)
    [second] = await claim(db)
    await db.write(lambda tx: jobs.release(tx, [second]))
    [third] = await claim(db)
    await expire(db)
    await take_back(db)
    [fourth] = await claim(db)
    assert [each.recheck for each in (second, third, fourth)] == [True, True, True]


# ── sweeps ──


async def test_a_thousand_dead_jobs_do_not_starve_one_that_waits_for_its_retry(db: Database) -> None:
    await update(
        db,
        """WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
           INSERT INTO jobs (id, kind, subject, state, priority, due_at, attempts, max_attempts, created_at)
           SELECT 'dead' || i, 'k', 's' || i, 'dead', 1, 0, 3, 3, 0 FROM n""",
    )
    taken = await claimed(db, "alive")
    await settle(db, taken, BROKEN)
    assert await retry(db) == 1
    assert [each.subject for each in await claim(db)] == ["alive"]


async def test_retries_come_a_page_at_a_time_the_longest_waiting_first(db: Database) -> None:
    for n in range(4):
        await settle(db, await claimed(db, f"s{n}"), BROKEN)
        await update(db, "UPDATE jobs SET due_at = :at WHERE subject = :s", at=LONG_AGO - timedelta(days=n), s=f"s{n}")
    assert await db.write(lambda tx: sweeps.retry_failed(tx, limit=3)) == 3
    assert sorted(each.subject for each in await claim(db)) == ["s1", "s2", "s3"]
    assert await db.write(sweeps.retry_failed) == 1
    assert await db.write(sweeps.retry_failed) == 0


async def test_a_job_not_begun_in_time_is_dead_for_all_to_see(db: Database) -> None:
    late_ready = await enqueue(db, "late, ready", expires_at=LONG_AGO)
    late_failed = await enqueue(db, "late, failed", kind="f", expires_at=LONG_AGO)
    late_running = await enqueue(db, "late, running", kind="r", expires_at=LONG_AGO)
    early = await enqueue(db, "early", expires_at=LONG_AGO + timedelta(days=36500))
    forever = await enqueue(db, "forever")
    [taken] = await claim(db, kind="f")
    await settle(db, taken, BROKEN)
    await claim(db, kind="r")
    assert await db.write(sweeps.expire_overdue) == 2
    assert await db.write(sweeps.expire_overdue) == 0
    for job_id, state in {
        late_ready: JobState.DEAD,
        late_failed: JobState.DEAD,
        late_running: JobState.RUNNING,
        early: JobState.READY,
        forever: JobState.READY,
    }.items():
        assert (await get(db, job_id)).state is state
    assert (await get(db, late_ready)).reason == "TIMED_OUT"
    actions = [row.action for row in await db.read(lambda tx: journal.audit_page(tx, 0))]
    assert actions.count("job_expired") == 2


async def test_history_is_forgotten_by_age_a_page_at_a_time(db: Database) -> None:
    for n in range(4):
        await settle(db, await claimed(db, f"s{n}"), Done())
    await update(db, "UPDATE job_history SET finished_at = :at WHERE subject <> 's3'", at=LONG_AGO)
    before = LONG_AGO + timedelta(days=1)
    assert await db.write(lambda tx: sweeps.forget_history(tx, before, limit=2)) == 2
    assert await db.write(lambda tx: sweeps.forget_history(tx, before)) == 1
    assert await db.write(lambda tx: sweeps.forget_history(tx, before)) == 0
    [left] = await db.read(lambda tx: tx.rows("SELECT subject FROM job_history"))
    assert left["subject"] == "s3"


# ── for people ──


async def test_a_dead_job_can_be_put_back_with_all_its_attempts(db: Database) -> None:
    taken = await claimed(db, max_attempts=1)
    await settle(db, taken, BROKEN)
    assert await db.write(lambda tx: jobs.requeue(tx, taken.id))
    job = await get(db, taken.id)
    assert (job.state, job.attempts, job.crashes, job.reason) == (JobState.READY, 0, 0, "REQUEUED")
    assert job.last_error == "it broke"  # still worth knowing
    [again] = await claim(db)
    assert again.attempt == 1


async def test_only_a_dead_job_can_be_put_back(db: Database) -> None:
    taken = await claimed(db)
    assert not await db.write(lambda tx: jobs.requeue(tx, taken.id))
    assert not await db.write(lambda tx: jobs.requeue(tx, "job_unknown"))
    assert (await get(db, taken.id)).state is JobState.RUNNING


async def test_a_dead_job_cannot_be_put_back_beside_a_live_one(db: Database) -> None:
    dead = await claimed(db, "s")
    await settle(db, dead, replace(BROKEN, final=True))
    live = await enqueue(db, "s")
    with pytest.raises(Duplicate):
        await db.write(lambda tx: jobs.requeue(tx, dead.id))
    assert (await get(db, dead.id)).state is JobState.DEAD
    [taken] = await claim(db)
    assert taken.id == live
    await settle(db, taken, Done())
    assert await db.write(lambda tx: jobs.requeue(tx, dead.id))


async def test_a_job_that_nobody_runs_can_be_cancelled(db: Database) -> None:
    running = await claimed(db, "running")
    ready = await enqueue(db, "ready")
    assert await db.write(lambda tx: jobs.cancel(tx, ready))
    assert not await db.write(lambda tx: jobs.cancel(tx, running.id))
    assert not await db.write(lambda tx: jobs.cancel(tx, ready))  # it is gone
    await settle(db, running, BROKEN)
    assert await db.write(lambda tx: jobs.cancel(tx, running.id))
    dead = await claimed(db, "dead")
    await settle(db, dead, replace(BROKEN, final=True))
    assert await db.write(lambda tx: jobs.cancel(tx, dead.id))
    assert await history(db) == dict.fromkeys([ready, running.id, dead.id], "cancelled")
    assert await db.read(jobs.counts) == {}


async def test_the_age_of_the_longest_waiting_job_is_known(db: Database) -> None:
    assert await db.read(jobs.oldest_ready_for) == timedelta(0)
    now = await db.read(lambda tx: tx.now())
    await enqueue(db, "future", due_at=now + timedelta(days=1))
    assert await db.read(jobs.oldest_ready_for) == timedelta(0)
    await enqueue(db, "past", due_at=now - timedelta(hours=3))
    assert timedelta(hours=3) <= await db.read(jobs.oldest_ready_for) < timedelta(hours=4)


async def test_new_work_wakes_the_workers_once_it_is_committed(db: Database) -> None:
    woken = db.wake.subscribe()
    await enqueue(db, "s")
    assert woken.is_set()
    woken.clear()
    await enqueue(db, "s")  # nothing new
    assert not woken.is_set()
    await claim(db)
    assert not woken.is_set()
    await expire(db)
    await take_back(db)
    assert woken.is_set()


# ── a race that only PostgreSQL can show ──


class Meddled(Tx):
    """A transaction in which somebody else commits something right before its next look-up of one row."""

    __slots__ = ("_meddle",)

    def __init__(self, session: Session, meddle: Callable[[], None]) -> None:
        super().__init__(session)
        self._meddle: Callable[[], None] | None = meddle

    def row(self, sql: str, **params: Any) -> Row | None:
        meddle, self._meddle = self._meddle, None
        if meddle is not None:
            meddle()
        return super().row(sql, **params)


@ON_POSTGRES
async def test_work_asked_for_while_the_older_job_ends_is_not_lost(make_engine: Callable[[], Engine]) -> None:
    async with opened(make_engine()) as one, opened(make_engine()) as two:
        taken = await claimed(one, "s")
        loop = asyncio.get_running_loop()

        def finish() -> None:
            asyncio.run_coroutine_threadsafe(settle(two, taken, Done()), loop).result(PATIENCE)

        new = await one.write(lambda tx: jobs.enqueue(Meddled(tx._session, finish), spec("s")))
        assert new != taken.id
        assert (await get(one, new)).state is JobState.READY


# ── the cost of a scan follows what is due ──


class Recorder:
    """A session that remembers what it was asked."""

    def __init__(self, session: Session) -> None:
        self.epoch, self.combines, self.place = session.epoch, session.combines, session.place
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self._session = session

    def begin(self, *, write: bool) -> None:
        raise AssertionError("a transaction is open")

    commit = rollback = close = begin

    def execute(self, sql: str, params: Mapping[str, Any]) -> int:
        self.asked.append((sql, params))
        return self._session.execute(sql, params)

    def query(self, sql: str, params: Mapping[str, Any]) -> list[Row]:
        self.asked.append((sql, params))
        return self._session.query(sql, params)


# What is called, a part of the statement that matters, and the index it must use.
SCANS: dict[str, tuple[Callable[[Tx], Any], str, str]] = {
    "peek": (lambda tx: jobs.claim(tx, holder="a", free={"k": 9}, ttl=TTL), "WITH want", "jobs_ready"),
    "pick": (lambda tx: jobs.claim(tx, holder="a", free={"k": 9}, ttl=TTL), "ORDER BY due_at", "jobs_ready"),
    "take back": (lambda tx: sweeps.take_back_expired(tx, TTL), "ORDER BY lease_until", "jobs_running"),
    "retry": (sweeps.retry_failed, "ORDER BY due_at", "jobs_failed"),
    "expire": (sweeps.expire_overdue, "ORDER BY expires_at", "jobs_expiring"),
    "enqueue": (lambda tx: jobs.enqueue(tx, spec("s9")), "SELECT id FROM jobs", "jobs_one_live"),
    "live": (lambda tx: jobs.live(tx, "k", "s9"), "FROM jobs", "jobs_one_live"),
    "known": (lambda tx: jobs.known(tx, "k", "s9"), "UNION ALL", "jobs_dead"),
}


async def test_every_scan_uses_its_index(db: Database) -> None:
    """On a table where next to nothing is due: reading all of it is what must not happen."""
    await update(
        db,
        """WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
           INSERT INTO jobs (id, kind, subject, state, priority, due_at, max_attempts, created_at,
                             lease_until, expires_at)
           SELECT 'job' || i, 'k', 's' || i,
                  CASE WHEN i % 4 = 0 THEN 'ready' WHEN i % 4 = 1 THEN 'running' WHEN i % 4 = 2 THEN 'failed'
                       ELSE 'dead' END,
                  1, CASE WHEN i < 100 THEN 0 ELSE 4000000000000000 + i END, 3, 0,
                  CASE WHEN i < 100 THEN 0 ELSE now_us() + 1000000 + i END, 4000000000000000 + i FROM n""",
    )
    await update(db, "ANALYZE jobs")

    def plan(tx: Tx, scan: Callable[[Tx], Any], marker: str) -> str:
        recorder = Recorder(tx._session)
        scan(Tx(recorder))
        sql, params = next((sql, params) for sql, params in recorder.asked if marker in sql)
        explain = "EXPLAIN QUERY PLAN" if db.engine.name == "sqlite" else "EXPLAIN"
        rows = tx._session.query(f"{explain} {sql}", params)
        return "\n".join(str(row["detail"] if "detail" in row else row["QUERY PLAN"]) for row in rows)

    for name, (scan, marker, index) in SCANS.items():
        text = await db.write(lambda tx, scan=scan, marker=marker: plan(tx, scan, marker))
        assert index in text, f"{name}: {text}"
        assert not re.search(r"SCAN jobs(?! USING)|Seq Scan on jobs", text), f"{name}: {text}"


async def test_work_that_is_owed_is_there_when_the_transaction_is_and_not_before(db: Database) -> None:
    def write(tx: Tx) -> bool:
        jobs.owe(tx, spec("s"))
        return jobs.known(tx, "k", "s")

    assert not await db.write(write)
    assert await db.read(lambda tx: jobs.known(tx, "k", "s"))


async def test_work_owed_twice_or_done_by_an_older_job_is_one_job(db: Database) -> None:
    older = await enqueue(db, "s")
    await db.write(lambda tx: [jobs.owe(tx, spec("s")), jobs.owe(tx, spec("t")), jobs.owe(tx, spec("t"))])
    rows = await db.read(lambda tx: tx.rows("SELECT id, subject FROM jobs ORDER BY subject"))
    assert [row["subject"] for row in rows] == ["s", "t"]
    assert rows[0]["id"] == older


async def test_owed_work_keeps_its_time_its_budgets_and_its_end(db: Database) -> None:
    due, end = LONG_AGO + timedelta(days=3), LONG_AGO + timedelta(days=4)
    await db.write(lambda tx: jobs.owe(tx, spec("s", due_at=due, budgets=("a", "b"), expires_at=end)))
    [row] = await db.read(lambda tx: tx.rows("SELECT due_at, budgets, expires_at FROM jobs"))
    assert (from_micros(row["due_at"]), row["budgets"], from_micros(row["expires_at"])) == (due, "a\nb", end)


async def test_work_owed_by_a_transaction_that_fails_is_not_owed(db: Database) -> None:
    def write(tx: Tx) -> None:
        jobs.owe(tx, spec("s"))
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        await db.write(write)
    assert await db.read(lambda tx: jobs.counts(tx)) == {}
