"""A job: a leased hint that points at the truth. Its machine, and what a worker may answer about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, Final, Literal, TypeVar

from holdfast.core.backoff import JOB, Ladder
from holdfast.errors import IllegalMove

CRASHES_TO_QUARANTINE: Final = 3
CRASHES_IN_COMPANY: Final = 5  # where other jobs died with it each time, and any of them may be the guilty one
CRASHES_TO_SUSPECT: Final = 2  # one more, and it is quarantined: until then no other suspect is run beside it
DEFAULT_MAX_ATTEMPTS: Final = 3


class JobState(StrEnum):
    READY = "ready"  # waits for its time, or for a worker
    RUNNING = "running"  # leased by a worker
    FAILED = "failed"  # waits for the retry sweep
    DEAD = "dead"  # a person must look; never deleted, never in the way of others
    DONE = "done"
    CANCELLED = "cancelled"


# The states of a job in the queue; one that is over is in the history.
QueuedState = Literal[JobState.READY, JobState.RUNNING, JobState.FAILED, JobState.DEAD]


class Priority(IntEnum):
    URGENT = 0
    NORMAL = 1
    BACKGROUND = 2


JobEvent = Literal[
    "claimed", "finished", "not yet", "failed", "gave up", "released", "lease expired", "quarantined", "retried",
    "requeued", "cancelled", "expired",
]  # fmt: skip

MOVES: Final[Mapping[tuple[JobState, JobEvent], JobState]] = {
    (JobState.READY, "claimed"): JobState.RUNNING,
    (JobState.RUNNING, "finished"): JobState.DONE,
    (JobState.RUNNING, "not yet"): JobState.READY,
    (JobState.RUNNING, "failed"): JobState.FAILED,
    (JobState.RUNNING, "gave up"): JobState.DEAD,
    (JobState.RUNNING, "released"): JobState.READY,
    (JobState.RUNNING, "lease expired"): JobState.READY,
    (JobState.RUNNING, "quarantined"): JobState.DEAD,
    (JobState.FAILED, "retried"): JobState.READY,
    (JobState.FAILED, "cancelled"): JobState.CANCELLED,
    (JobState.FAILED, "expired"): JobState.DEAD,
    (JobState.READY, "cancelled"): JobState.CANCELLED,
    (JobState.READY, "expired"): JobState.DEAD,
    (JobState.DEAD, "requeued"): JobState.READY,
    (JobState.DEAD, "cancelled"): JobState.CANCELLED,
}


def move(state: JobState, event: JobEvent) -> JobState:
    """The state after an event. Every statement in store/work/jobs.py takes its target state from here."""
    try:
        return MOVES[state, event]
    except KeyError:
        raise IllegalMove(f"a job that is {state} cannot be {event!r}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A job to be: what to do (kind), to what (subject), from when on, and against which budgets."""

    id: str
    kind: str
    subject: str
    due_at: datetime | None = None  # None: now, by the database's clock
    priority: Priority = Priority.NORMAL
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    budgets: tuple[str, ...] = ()
    payload: Mapping[str, Any] = field(default_factory=dict)
    expires_at: datetime | None = None  # not begun by then: dead, and visible

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts of {self.kind} must be at least 1")
        if any("\n" in key or not key for key in self.budgets):
            raise ValueError("a budget key is one non-empty line")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A job in a worker's hands. Every write about it carries the fence; a stale fence changes nothing."""

    id: str
    kind: str
    subject: str
    payload: Mapping[str, Any]
    attempt: int
    max_attempts: int
    fence: int
    priority: Priority
    budgets: tuple[str, ...]
    recheck: bool  # the database may have lost commits: ask the remote before doing anything again
    paid: Mapping[str, timedelta] = field(default_factory=dict, compare=False)  # what this claim took from its budgets
    paid_at: datetime | None = field(default=None, compare=False)
    known: Any = field(default=None, compare=False, repr=False)  # the value that its cause, in this process, just wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as operators see it."""

    id: str
    kind: str
    subject: str
    state: JobState
    priority: Priority
    due_at: datetime
    attempts: int
    max_attempts: int
    crashes: int
    holder: str | None
    lease_until: datetime | None
    reason: str | None
    last_error: str | None
    started_at: datetime | None = None  # its last attempt
    finished_at: datetime | None = None  # only of those in the history


# ── What a handler answers ──

OutcomeWrite = Callable[[Any], None]  # a transaction function that commits together with the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The work is finished; `write` commits in the same transaction."""

    write: OutcomeWrite | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """All is well, but there is more to do later (a poll). It costs no attempt."""

    after: timedelta | None = None  # from the database's now
    at: datetime | None = None
    reason: str = "WAITING"
    write: OutcomeWrite | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """This attempt failed. The retry sweep brings the job back until its attempts are used up."""

    error: str
    reason: str
    wait: timedelta | None = None  # None: as the kind's ladder says
    final: bool = False  # trying again cannot help
    write: OutcomeWrite | None = None


Outcome = Done | Again | JobFailed
OutcomeT = TypeVar("OutcomeT", Done, Again, JobFailed, Done | Again | JobFailed)


def also(outcome: OutcomeT, write: OutcomeWrite) -> OutcomeT:
    """The same outcome, with one more write in its transaction, after those that it has."""
    first = outcome.write
    if first is None:
        return replace(outcome, write=write)

    def both(tx: object) -> None:
        first(tx)
        write(tx)

    return replace(outcome, write=both)


def is_poison(crashes: int, *, beside: int) -> bool:
    """Whether a job that died so many times in a row is quarantined; `beside` is how many died with it this time.

    Alone it is guilty. In company it may be innocent, and gets more chances: to end well once clears it.
    """
    return crashes >= (CRASHES_IN_COMPANY if beside else CRASHES_TO_QUARANTINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRetry:
    """The verdict on a failed attempt: `event` says whether it comes back; `wait`, when."""

    event: JobEvent
    wait: timedelta


def verdict(claim: Claim, failure: JobFailed, ladder: Ladder = JOB) -> JobRetry:
    """Say what becomes of a job after a failed attempt."""
    if failure.final or claim.attempt >= claim.max_attempts:
        return JobRetry(event="gave up", wait=timedelta(0))
    own = ladder.wait(claim.attempt, f"{claim.id}:{claim.attempt}")
    return JobRetry(event="failed", wait=max(own, failure.wait or timedelta(0)))
