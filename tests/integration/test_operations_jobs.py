"""What a person may do about a job."""

from datetime import timedelta
from typing import Any, cast

import pytest
from tests.support.running import run, services_of

from holdfast.core.work.job import JobFailed, JobState, Spec
from holdfast.operations.installation import jobs as operations
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.store import journal
from holdfast.store.database import Database
from holdfast.store.work import jobs
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio
TTL = timedelta(seconds=30)


async def a_dead_job(db: Database) -> str:
    await db.write(lambda tx: jobs.enqueue(tx, Spec(id="job_1", kind="k", subject="s")))
    [claim] = await db.write(lambda tx: jobs.claim(tx, holder="a", free={"k": 1}, ttl=TTL))
    await db.write(lambda tx: jobs.settle(tx, claim, JobFailed(error="no", reason="REFUSED", final=True)))
    return claim.id


async def test_a_requeued_job_has_all_its_attempts_and_an_audit_row_with_the_actor(db: Database) -> None:
    job = await a_dead_job(db)
    await db.write(lambda tx: operations.retry(tx, job, actor="alex"))
    found = await db.read(lambda tx: jobs.get(tx, job))
    assert found is not None
    assert (found.state, found.attempts, found.last_error) == (JobState.READY, 0, "no")
    entries = await db.read(lambda tx: journal.audit_page(tx, 0))
    assert [(entry.actor, entry.action) for entry in entries][-1] == ("alex", "job_requeued")


async def test_a_running_job_is_not_retried_and_the_answer_says_so(db: Database) -> None:
    await db.write(lambda tx: jobs.enqueue(tx, Spec(id="job_1", kind="k", subject="s")))
    await db.write(lambda tx: jobs.claim(tx, holder="a", free={"k": 1}, ttl=TTL))
    with pytest.raises(operations.JobNotIn, match="Job job_1 is running, not waiting"):
        await db.write(lambda tx: operations.retry(tx, "job_1", actor="alex"))
    with pytest.raises(operations.NoSuchJob):
        await db.write(lambda tx: operations.retry(tx, "job_2", actor="alex"))


async def test_a_dead_job_whose_work_a_newer_one_does_is_not_requeued(db: Database) -> None:
    job = await a_dead_job(db)
    await db.write(lambda tx: jobs.enqueue(tx, Spec(id="job_2", kind="k", subject="s")))
    with pytest.raises(operations.TwinAlive):
        await run(
            services_of(CertificateContext(db=db, random=SystemRandom(), secret_store=cast(Any, None))),
            operations.retry_job,
            job=job,
        )


async def test_a_waiting_job_is_cancelled_into_the_history_with_the_reason(db: Database) -> None:
    await db.write(lambda tx: jobs.enqueue(tx, Spec(id="job_1", kind="k", subject="s")))
    await db.write(lambda tx: operations.cancel(tx, "job_1", actor="alex", why="not wanted any more"))
    assert await db.read(lambda tx: jobs.get(tx, "job_1")) is None
    [row] = await db.read(lambda tx: tx.rows("SELECT state FROM job_history"))
    assert row["state"] == JobState.CANCELLED
    [entry] = await db.read(lambda tx: journal.audit_page(tx, 0))
    assert "not wanted any more" in entry.details


async def test_a_running_job_is_not_cancelled(db: Database) -> None:
    await db.write(lambda tx: jobs.enqueue(tx, Spec(id="job_1", kind="k", subject="s")))
    await db.write(lambda tx: jobs.claim(tx, holder="a", free={"k": 1}, ttl=TTL))
    with pytest.raises(operations.JobNotIn, match="is running"):
        await db.write(lambda tx: operations.cancel(tx, "job_1", actor="alex", why=""))
