"""What a person may do about a job: run it now, give it back its attempts, or take it out of the queue."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from holdfast.core.job import State
from holdfast.errors import Duplicate, UserError
from holdfast.store import job_lookup, jobs, journal
from holdfast.store.budgets import WAITING
from holdfast.store.database import Store
from holdfast.store.tx import Tx


class NoSuchJob(UserError):
    status, code = 404, "no-such-job"

    def __init__(self, job: str) -> None:
        super().__init__(f"There is no job {job}.")
        self.hint = "See those that are not finished: holdfast jobs ls. Finished ones are kept for engine.history_for."


class JobNotIn(UserError):
    status, code = 409, "job-state"

    def __init__(self, job: str, state: State, wanted: str, hint: str) -> None:
        super().__init__(f"Job {job} is {state}, not {wanted}.")
        self.hint = hint


class HasItsTurn(UserError):
    status, code = 409, "job-waits-for-budget"

    def __init__(self, job: str, turn: datetime) -> None:
        super().__init__(f"Job {job} waits for what the CA allows; its turn is at {turn:%Y-%m-%dT%H:%M:%SZ}.")
        self.hint = "Asking again would lose that turn. See what is left: holdfast issuer budget NAME"


class TwinAlive(UserError):
    status, code = 409, "job-twin"

    def __init__(self, job: str) -> None:
        super().__init__(f"Job {job} cannot be requeued: a newer job does the same work already.")
        self.hint = "Follow that one, or cancel it first."


async def retry(db: Store, job: str, *, actor: str) -> jobs.Job:
    """Run it now: a dead job with all its attempts, one that waits without waiting longer. Budgets hold."""

    def write(tx: Tx) -> jobs.Job:
        found = _found(tx, job)
        if found.state is State.DEAD:
            _requeue(tx, found, actor)
        elif found.state is State.RUNNING:
            raise JobNotIn(job, found.state, "waiting", "It runs already: follow it with 'holdfast events -f'.")
        elif found.state is State.READY and found.reason in WAITING:
            raise HasItsTurn(job, found.due_at)
        elif jobs.hasten(tx, found.id):
            _tell(tx, found, "hastened", actor)
        return _found(tx, found.id)

    try:
        return await db.write(write)
    except Duplicate:
        raise TwinAlive(job) from None


def _requeue(tx: Tx, found: jobs.Job, actor: str) -> None:
    jobs.requeue(tx, found.id)
    _tell(tx, found, "requeued", actor)


def _tell(tx: Tx, was: jobs.Job, word: str, actor: str, **why: str) -> None:
    facts = {"job": was.id, "kind": was.kind, "reason": was.reason, **why}
    states = {"before": _state(was), "after": _state(jobs.get(tx, was.id))}
    journal.audit(tx, f"job_{word}", was.subject, actor=actor, **states, **facts)
    journal.event(tx, f"job.{word}", was.subject, job=was.id)


def _state(job: jobs.Job | None) -> dict[str, Any]:
    """None: it left the queue."""
    return {"state": "gone"} if job is None else {"state": job.state, "due": job.due_at, "attempts": job.attempts}


async def cancel(db: Store, job: str, *, actor: str, why: str) -> None:
    """Take a job that nobody runs out of the queue, for good; audited with the reason."""

    def write(tx: Tx) -> None:
        found = _found(tx, job)
        if not jobs.cancel(tx, found.id):
            raise JobNotIn(job, found.state, "waiting", "Wait until this attempt has ended, then cancel it.")
        _tell(tx, found, "cancelled", actor, why=why)

    await db.write(write)


def _found(tx: Tx, job: str) -> jobs.Job:
    found = job_lookup.found(tx, job)
    if found is None:
        if (over := job_lookup.ended(tx, job)) is not None:
            raise JobNotIn(job, over.state, "waiting", "It is over: nothing is left to be done about it.")
        raise NoSuchJob(job)
    return found
