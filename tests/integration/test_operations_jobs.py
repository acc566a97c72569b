"""What a person may do about a job."""

from datetime import timedelta

import pytest

from holdfast.core.job import Failed, Spec, State
from holdfast.operations import jobs as operations
from holdfast.store import jobs, journal
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
TTL = timedelta(seconds=30)


async def a_dead_job(db: Database) -> str:
    await db.write(lambda tx: jobs.enqueue(tx, Spec(id="job_1", kind="k", subject="s")))
    [claim] = await db.write(lambda tx: jobs.claim(tx, holder="a", free={"k": 1}, ttl=TTL))
    await db.write(lambda tx: jobs.settle(tx, claim, Failed(error="no", reason="REFUSED", final=True)))
    return claim.id


async def test_a_requeued_job_has_all_its_attempts_and_an_audit_row_with_the_actor(db: Database) -> None:
    job = await a_dead_job(db)
    await operations.retry(db, job, actor="alex")
    found = await db.read(lambda tx: jobs.get(tx, job))
    assert found is not None
    assert (found.state, found.attempts, found.last_error) == (State.READY, 0, "no")
    entries = await db.read(lambda tx: journal.audit_page(tx, 0))
    assert [(entry.actor, entry.action) for entry in entries][-1] == ("alex", "job_requeued")


async def test_a_running_job_is_not_retried_and_the_answer_says_so(db: Database) -> None:
    await db.write(lambda tx: jobs.enqueue(tx, Spec(id="job_1", kind="k", subject="s")))
    await db.write(lambda tx: jobs.claim(tx, holder="a", free={"k": 1}, ttl=TTL))
    with pytest.raises(operations.JobNotIn, match="Job job_1 is running, not waiting"):
        await operations.retry(db, "job_1", actor="alex")
    with pytest.raises(operations.NoSuchJob):
        await operations.retry(db, "job_2", actor="alex")


async def test_a_dead_job_whose_work_a_newer_one_does_is_not_requeued(db: Database) -> None:
    job = await a_dead_job(db)
    await db.write(lambda tx: jobs.enqueue(tx, Spec(id="job_2", kind="k", subject="s")))
    with pytest.raises(operations.TwinAlive):
        await operations.retry(db, job, actor="alex")


async def test_a_waiting_job_is_cancelled_into_the_history_with_the_reason(db: Database) -> None:
    await db.write(lambda tx: jobs.enqueue(tx, Spec(id="job_1", kind="k", subject="s")))
    await operations.cancel(db, "job_1", actor="alex", why="not wanted any more")
    assert await db.read(lambda tx: jobs.get(tx, "job_1")) is None
    [row] = await db.read(lambda tx: tx.rows("SELECT state FROM job_history"))
    assert row["state"] == State.CANCELLED
    [entry] = await db.read(lambda tx: journal.audit_page(tx, 0))
    assert "not wanted any more" in entry.details


async def test_a_running_job_is_not_cancelled(db: Database) -> None:
    await db.write(lambda tx: jobs.enqueue(tx, Spec(id="job_1", kind="k", subject="s")))
    await db.write(lambda tx: jobs.claim(tx, holder="a", free={"k": 1}, ttl=TTL))
    with pytest.raises(operations.JobNotIn, match="is running"):
        await operations.cancel(db, "job_1", actor="alex", why="")
