"""A kind of job: who handles it, how many at a time, for how long; and what a handler is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta

from holdfast.core.backoff import JOB, Ladder
from holdfast.core.work.job import Claim, Outcome
from holdfast.ports import Points


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a handler is given. It must call `check` before each effect on the outside world."""

    claim: Claim
    check: Callable[[], None]  # raises LeaseLost when the lease can no longer be trusted
    point: Points
    left: Callable[[], float] = lambda: float("inf")  # seconds until its kind's limit ends it
    # Within it a stop does not cut interruptible work off: for a call whose answer must not be lost, and its commit.
    whole: Callable[[], AbstractContextManager[None]] = nullcontext


JobHandler = Callable[[Work], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """How jobs of one kind are run. Each kind has slots of its own: slow ones never starve the others."""

    name: str
    handler: JobHandler
    slots: int = 16
    timeout: timedelta = timedelta(minutes=5)
    ladder: Ladder = JOB
    in_quarantine: bool = False  # it acts on nothing outside, or tells people of the quarantine: it runs all the same
    interruptible: bool = False  # at a stop: hand it back at once instead of waiting for it to end
    settled: Callable[[Claim], None] | None = None  # told when an outcome is durable; a hint, lost in a crash
