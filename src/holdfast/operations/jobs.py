"""What a person may do about a job: give it back its attempts, or take it out of the queue."""

from __future__ import annotations

from holdfast.core.job import State
from holdfast.errors import Duplicate, UserError
from holdfast.store import jobs, journal
from holdfast.store.database import Store
from holdfast.store.tx import Tx


class NoSuchJob(UserError):
    status, code = 404, "no-such-job"

    def __init__(self, job: str) -> None:
        super().__init__(f"There is no job {job}.")
        self.hint = "It may have finished: finished jobs are kept in the history."


class JobNotIn(UserError):
    status, code = 409, "job-state"

    def __init__(self, job: str, state: State, wanted: str, hint: str) -> None:
        super().__init__(f"Job {job} is {state}, not {wanted}.")
        self.hint = hint


class TwinAlive(UserError):
    status, code = 409, "job-twin"

    def __init__(self, job: str) -> None:
        super().__init__(f"Job {job} cannot be requeued: a newer job does the same work already.")
        self.hint = "Follow that one, or cancel it first."


async def requeue(db: Store, job: str, *, actor: str) -> None:
    """dead → ready, with all its attempts; audited."""

    def write(tx: Tx) -> None:
        found = _found(tx, job)
        if not jobs.requeue(tx, job):
            raise JobNotIn(job, found.state, "dead", "Only a dead job can be requeued; the others go on by themselves.")
        journal.audit(tx, "job_requeued", found.subject, actor=actor, job=job, kind=found.kind, reason=found.reason)
        journal.event(tx, "job.requeued", found.subject, job=job)

    try:
        await db.write(write)
    except Duplicate:
        raise TwinAlive(job) from None


async def cancel(db: Store, job: str, *, actor: str, why: str) -> None:
    """Take a job that nobody runs out of the queue, for good; audited with the reason."""

    def write(tx: Tx) -> None:
        found = _found(tx, job)
        if not jobs.cancel(tx, job):
            raise JobNotIn(job, found.state, "waiting", "Wait until this attempt has ended, then cancel it.")
        journal.audit(tx, "job_cancelled", found.subject, actor=actor, job=job, kind=found.kind, why=why)
        journal.event(tx, "job.cancelled", found.subject, job=job)

    await db.write(write)


def _found(tx: Tx, job: str) -> jobs.Job:
    found = jobs.get(tx, job)
    if found is None:
        raise NoSuchJob(job)
    return found
