"""Jobs: list them, run one now, give a dead one its attempts back, or take one out of the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field

from holdfast.core.work.job import Job as JobRow
from holdfast.core.work.job import JobState
from holdfast.errors import Duplicate, UserError
from holdfast.operations.access import Action
from holdfast.operations.context import Context
from holdfast.operations.inputs import Input, NoteText, Option, Page, Paged, from_row, paged
from holdfast.operations.operation import operation
from holdfast.operations.own_ca import root_crls
from holdfast.operations.scopes import INSTALLATION
from holdfast.store import inventory, journal, subjects
from holdfast.store.tx import Tx
from holdfast.store.work import jobs
from holdfast.store.work.budgets import WAITING


class NoSuchJob(UserError):
    status, code = 404, "no-such-job"

    def __init__(self, job: str) -> None:
        super().__init__(f"There is no job {job}.")
        self.hint = "List unfinished jobs: holdfast jobs ls. Finished ones are kept for engine.history_for."


class JobNotIn(UserError):
    status, code = 409, "job-state"

    def __init__(self, job: str, state: JobState, wanted: str, hint: str) -> None:
        super().__init__(f"Job {job} is {state}, not {wanted}.")
        self.hint = hint


class HasItsTurn(UserError):
    status, code = 409, "job-waits-for-budget"

    def __init__(self, job: str, turn: datetime) -> None:
        super().__init__(f"Job {job} waits for what the CA allows; its turn is at {turn:%Y-%m-%dT%H:%M:%SZ}.")
        self.hint = "Asking again would lose that turn. See the issuer's budgets: holdfast issuer budget NAME"


class TwinAlive(UserError):
    status, code = 409, "job-twin"

    def __init__(self, job: str) -> None:
        super().__init__(f"Job {job} cannot be requeued: a newer job does the same work already.")
        self.hint = "Follow that one, or cancel it first."


# ── Inputs and results ──


class JobRef(Input):
    job: Annotated[str, Option(metavar="JOB")] = Field(max_length=100, description="The job's id.")


class JobList(Paged):
    kind: Annotated[str, Field(max_length=60)] | None = Field(default=None, description="Only jobs of this kind.")
    state: Literal["ready", "running", "failed", "dead"] | None = Field(
        default=None, description="Only jobs in this state."
    )


class JobCancellation(JobRef):
    why: NoteText = Field(min_length=1, description="The reason, for the audit log.")


class JobView(BaseModel):
    id: str
    kind: str
    subject: str
    about: str = Field(default="", description="The name of the certificate or CA, or else the subject.")
    state: str
    priority: int
    due_at: datetime
    attempt: int
    max_attempts: int
    crashes: int
    holder: str | None
    lease_until: datetime | None
    reason_code: str | None
    last_error: str | None
    last_attempt_at: datetime | None
    next_attempt_at: datetime | None = Field(description="null while it runs, and once it is over or given up.")
    finished_at: datetime | None = Field(description="When it was done or cancelled.")


NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})


def shown(row: JobRow, names: Mapping[str, str] = NO_NAMES) -> JobView:
    return from_row(
        JobView,
        row,
        about=names.get(row.subject, row.subject),
        priority=int(row.priority),
        attempt=row.attempts,
        reason_code=row.reason,
        last_attempt_at=row.started_at,
        next_attempt_at=row.due_at if row.state in ("ready", "failed") else None,
    )


# ── Looking ──


@operation("jobs.list", "GET /jobs", command="jobs ls", action=Action.SEE_JOBS, scope=INSTALLATION)
def list_jobs(tx: Tx, ctx: Context, asked: JobList) -> Page[JobView]:
    """List the jobs that are not finished, in the order in which they were made."""

    names: dict[str, str] = {}

    def read(after: str, limit: int) -> list[JobRow]:
        rows = inventory.job_page(tx, kind=asked.kind, state=asked.state, after=after, limit=limit)
        names.update(names_of(tx, rows))
        return rows

    return paged(asked, read, lambda row: row.id, lambda row: shown(row, names))


@operation("jobs.get", "GET /jobs/{job}", command="jobs show", action=Action.SEE_JOBS, scope=INSTALLATION)
def get(tx: Tx, ctx: Context, asked: JobRef) -> JobView:
    """Show one job: its state, when it is due, and why it waits."""
    found = jobs.found(tx, asked.job) or jobs.ended(tx, asked.job)
    if found is None:
        raise NoSuchJob(asked.job)
    return shown(found, names_of(tx, [found]))


def names_of(tx: Tx, rows: Sequence[JobRow]) -> dict[str, str]:
    """What people call the subjects of these jobs. The subject of a root's CRL is a hash: it is called by its CA."""
    roots = {row.subject: root_crls.under(tx, row.subject) for row in rows if row.kind == root_crls.ROOT_CRL}
    named = subjects.names_of(tx, [row.subject for row in rows])
    return named | {root: under[0].id for root, under in roots.items() if under}


# ── Acting ──


@operation(
    "jobs.retry",
    "POST /jobs/{job}/retry",
    command="retry",
    action=Action.CHANGE_JOBS,
    scope=INSTALLATION,
)
def retry_job(tx: Tx, ctx: Context, asked: JobRef) -> JobView:
    """Run a job now. A dead job gets all its attempts back; a waiting one waits no longer. Budgets hold."""
    return shown(retry(tx, asked.job, actor=ctx.actor))


def retry(tx: Tx, job: str, *, actor: str) -> JobRow:
    found = _found(tx, job)
    if found.state is JobState.DEAD:
        _requeue(tx, found, actor)
    elif found.state is JobState.RUNNING:
        raise JobNotIn(job, found.state, "waiting", "It runs already: follow it with 'holdfast events -f'.")
    elif found.state is JobState.READY and found.reason in WAITING:
        raise HasItsTurn(job, found.due_at)
    elif jobs.hasten(tx, found.id):
        _tell(tx, found, "hastened", actor)
    return _found(tx, found.id)


def _requeue(tx: Tx, found: JobRow, actor: str) -> None:
    try:
        jobs.requeue(tx, found.id)
    except Duplicate:
        raise TwinAlive(found.id) from None
    _tell(tx, found, "requeued", actor)


def _tell(tx: Tx, was: JobRow, word: str, actor: str, **why: str) -> None:
    facts = {"job": was.id, "kind": was.kind, "reason": was.reason, **why}
    states = {"before": _state(was), "after": _state(jobs.get(tx, was.id))}
    journal.audit(tx, f"job_{word}", was.subject, actor=actor, **states, **facts)
    journal.event(tx, f"job.{word}", was.subject, job=was.id)


def _state(job: JobRow | None) -> dict[str, object]:
    """None: it left the queue."""
    return {"state": "gone"} if job is None else {"state": job.state, "due": job.due_at, "attempts": job.attempts}


@operation(
    "jobs.cancel",
    "POST /jobs/{job}/cancel",
    command="cancel",
    action=Action.CHANGE_JOBS,
    scope=INSTALLATION,
    destructive=True,
    done="Job {job} is cancelled.",
)
def cancel_job(tx: Tx, ctx: Context, asked: JobCancellation) -> None:
    """Take a job that does not run out of the queue, for good."""
    cancel(tx, asked.job, actor=ctx.actor, why=asked.why)


def cancel(tx: Tx, job: str, *, actor: str, why: str) -> None:
    found = _found(tx, job)
    if not jobs.cancel(tx, found.id):
        raise JobNotIn(job, found.state, "waiting", "Wait until this attempt has ended, then cancel it.")
    _tell(tx, found, "cancelled", actor, why=why)


def _found(tx: Tx, job: str) -> JobRow:
    found = jobs.found(tx, job)
    if found is None:
        if (over := jobs.ended(tx, job)) is not None:
            raise JobNotIn(job, over.state, "waiting", "It is over: nothing is left to be done about it.")
        raise NoSuchJob(job)
    return found
