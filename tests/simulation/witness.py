"""The witness: sees every change of a job from inside the database, and knows whose transaction made it.

The product guards its writes by fences and leases. The witness trusts neither: it knows which replica acts, whose the
job was and until when, and it accuses whoever changed what was another's. What is rolled back never happened.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from holdfast.store.work.cluster import ABSURD

TRIGGERS: Final = (
    """CREATE TRIGGER witness_kept AFTER UPDATE ON jobs
        WHEN OLD.state = 'running' AND NEW.state = 'running' AND NEW.fence = OLD.fence AND NEW.priority = OLD.priority
       BEGIN SELECT saw_kept(OLD.id, OLD.holder, OLD.lease_until); END""",  # that it is urgent, anybody may say
    """CREATE TRIGGER witness_ended AFTER UPDATE ON jobs
        WHEN OLD.state = 'running' AND (NEW.state <> 'running' OR NEW.fence <> OLD.fence)
       BEGIN SELECT saw_ended(OLD.id, OLD.subject, OLD.holder, OLD.lease_until, OLD.crashes, NEW.crashes, NEW.recheck,
                              NEW.reason); END""",
    """CREATE TRIGGER witness_gone AFTER DELETE ON jobs WHEN OLD.state = 'running'
       BEGIN SELECT saw_ended(OLD.id, OLD.subject, OLD.holder, OLD.lease_until, OLD.crashes, 0, FALSE, NULL); END""",
    """CREATE TRIGGER witness_claimed AFTER UPDATE ON jobs WHEN OLD.state = 'ready' AND NEW.state = 'running'
       BEGIN SELECT saw_claimed(NEW.subject); END""",
    "CREATE TRIGGER witness_failover AFTER UPDATE ON store_epoch BEGIN SELECT saw_failover(); END",
)

MayTake = Callable[[str, str, str], bool]  # actor, holder, job: is there a reason why this lease ran out?


@dataclass(slots=True)
class Note:
    """What one transaction did."""

    actor: str | None
    held: set[str] = field(default_factory=set)  # subjects whose job the actor held, and let go
    strange: set[str] = field(default_factory=set)  # subjects it changed without holding their job
    settled: list[str] = field(default_factory=list)  # subjects whose job has no crash on record any more
    wrong: list[str] = field(default_factory=list)
    failing_over: bool = False
    claimed: list[str] = field(default_factory=list)  # subjects whose job the actor has now
    turned_away: list[str] = field(default_factory=list)  # subjects of jobs that the CA had sent away, settled so


class Witness:
    """Takes notes of one transaction at a time; what becomes of them is the invariants' business."""

    def __init__(self, now_us: Callable[[], int], ttl_us: int, may_take: MayTake) -> None:
        self._now_us = now_us
        self._ttl_us = ttl_us
        self._may_take = may_take
        self._note = Note(None)

    def install(self, connection: sqlite3.Connection) -> None:
        for name, arguments, function in (
            ("saw_kept", 3, self._saw_kept),
            ("saw_ended", 8, self._saw_ended),
            ("saw_claimed", 1, self._saw_claimed),
            ("saw_change", 2, self._saw_change),
            ("saw_failover", 0, self._saw_failover),
        ):
            connection.create_function(name, arguments, function)

    def begin(self, actor: str | None) -> None:
        """A transaction of this holder's begins; None: of the stage itself, which may do anything."""
        self._note = Note(actor)

    def committed(self) -> Note:
        return self._note

    # ── called by the database ──

    def _saw_kept(self, job: str, holder: str, lease_until: int) -> None:
        if self._note.actor != holder:
            self._accuse(f"renewed the lease of {job}, which {holder} holds")
        elif lease_until <= self._now_us():
            self._accuse(f"renewed its lease of {job} after it had ended")

    def _saw_ended(
        self, job: str, subject: str, holder: str, lease_until: int, crashes: int, crashes_now: int, recheck: int,
        reason: str | None,
    ) -> None:  # fmt: skip
        note = self._note
        if reason == "CA_RATE_LIMITED":
            note.turned_away.append(subject)
        if crashes_now == 0:
            note.settled.append(subject)
        if note.failing_over:
            if not recheck:
                self._accuse(f"dropped the lease of {job} at a failover without marking it to be rechecked")
        elif crashes_now > crashes:
            self._saw_taken(job, holder, lease_until)
        elif note.actor == holder:
            note.held.add(subject)
        elif note.actor is not None:
            self._accuse(f"changed {job} while {holder} held it")

    def _saw_taken(self, job: str, holder: str, lease_until: int) -> None:
        now = self._now_us()
        if now < lease_until <= now + ABSURD * self._ttl_us:
            self._accuse(f"took {job} from {holder}, whose lease had not ended")
        elif self._note.actor is not None and not self._may_take(self._note.actor, holder, job):
            self._accuse(f"took {job} from {holder}, whose lease had no reason to run out")

    def _saw_claimed(self, subject: str) -> None:
        self._note.claimed.append(subject)

    def _saw_change(self, subject: str, holder: str | None) -> None:
        """What jobs are about was changed; `holder` has its job right now, if anybody has."""
        if self._note.actor not in (None, holder) and subject not in self._note.held:
            self._note.strange.add(subject)

    def _saw_failover(self) -> None:
        self._note.failing_over = True

    def _accuse(self, of: str) -> None:
        self._note.wrong.append(f"{self._note.actor} {of}")
