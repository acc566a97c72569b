"""Whatever is asked of the queue, in whatever order, it does what a dictionary would."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.jobs import TTL, MovableClock

from holdfast.core.backoff import Ladder
from holdfast.core.work.job import Again, Claim, Done, JobFailed, Priority, Spec
from holdfast.errors import Duplicate, LeaseLost
from holdfast.ports import no_points
from holdfast.store import journal, migrate
from holdfast.store.sqlite import SqliteSession, open_connection
from holdfast.store.tx import Row, Tx, to_micros
from holdfast.store.work import jobs, sweeps

T = TypeVar("T")

SECOND = timedelta(seconds=1)
LEASE = TTL // timedelta(microseconds=1)
LADDER = Ladder(first=10 * SECOND, factor=2, cap=60 * SECOND)
KINDS = st.sampled_from(["issue", "deploy"])
SUBJECTS = st.sampled_from(["c1", "c2"])
STILL_GOOD = st.sampled_from([True, True, True, False])
HOLDERS = st.sampled_from(["a", "b"])


@dataclass(slots=True, kw_only=True)
class Expected:
    """A job as the model has it; instants are microseconds, as in the database."""

    kind: str
    subject: str
    priority: int
    due_at: int
    max_attempts: int
    state: str = "ready"
    attempts: int = 0
    crashes: int = 0
    fence: int = 0
    holder: str | None = None
    lease_until: int | None = None
    recheck: int = 0

    def let_go(self, state: str, due_at: int) -> None:
        self.state, self.due_at, self.holder, self.lease_until = state, due_at, None, None


def urgency(job: Expected) -> tuple[int, str, int]:
    return job.priority, job.kind, job.due_at


class Queue(RuleBasedStateMachine):
    """Two workers, a few subjects, a clock that only the test moves."""

    @initialize()
    def open(self) -> None:
        self.clock = MovableClock()
        self.session = SqliteSession(open_connection(":memory:", self.clock, write=True, deadline=1.0))
        self.jobs: dict[str, Expected] = {}
        self.gone: dict[str, str] = {}  # what left the queue, and how
        self.claims: list[Claim] = []  # all there ever were
        self.fences: dict[str, int] = {}
        self.write(migrate.prepare)
        self.write(lambda tx: migrate.migrate(tx, "sqlite", migrate.bundled(), no_points))

    def teardown(self) -> None:
        if hasattr(self, "session"):
            assert self.write(journal.verify).ok
            self.session.close()

    def write(self, fn: Callable[[Tx], T]) -> T:
        """One transaction, as the store runs it; no two happen at the same instant."""
        self.clock.at += timedelta(microseconds=1)
        self.session.begin(write=True)
        try:
            tx = Tx(self.session)
            result = fn(tx)
            journal.seal(tx)
        except BaseException:
            self.session.rollback()
            raise
        self.session.commit()
        return result

    @property
    def now(self) -> int:
        return to_micros(self.clock.at)

    def count(self, *states: str) -> int:
        return sum(job.state in states for job in self.jobs.values())

    def live(self, kind: str, subject: str) -> list[str]:
        return [
            job_id
            for job_id, job in self.jobs.items()
            if (job.kind, job.subject) == (kind, subject) and job.state != "dead"
        ]

    def holds(self, claim: Claim) -> Expected | None:
        """The job, if this claim still counts."""
        job = self.jobs.get(claim.id)
        return job if job and job.state == "running" and job.fence == claim.fence else None

    # ── what people and workers do ──

    @precondition(lambda self: self.count("ready", "failed") < 3)  # or the others would rarely have a turn
    @rule(
        kind=KINDS,
        subject=SUBJECTS,
        priority=st.sampled_from(Priority),
        delay=st.sampled_from([0, 10]),
        max_attempts=st.integers(1, 4),
    )
    def enqueue(self, kind: str, subject: str, priority: Priority, delay: int, max_attempts: int) -> None:
        new = f"job_{len(self.fences):04d}"
        due_at = self.clock.at + delay * SECOND
        wanted = Spec(id=new, kind=kind, subject=subject, priority=priority, due_at=due_at, max_attempts=max_attempts)
        answer = self.write(lambda tx: jobs.enqueue(tx, wanted))
        if older := self.live(kind, subject):
            assert [answer] == older
        else:
            assert answer == new
            self.fences[new] = 0
            self.jobs[new] = Expected(
                kind=kind,
                subject=subject,
                priority=priority,
                due_at=to_micros(due_at),
                max_attempts=max_attempts,
            )

    @precondition(lambda self: self.count("ready"))
    @rule(holder=HOLDERS, limit=st.integers(1, 3), wait=st.sampled_from([0, 0, 11]))
    def claim(self, holder: str, limit: int, wait: int) -> None:
        self.clock.at += wait * SECOND
        free = {"issue": limit, "deploy": 1}
        taken = self.write(lambda tx: jobs.claim(tx, holder=holder, free=free, ttl=TTL))
        expected = self.claimable(holder, free)
        assert sorted(map(urgency, (self.jobs[each.id] for each in taken))) == sorted(map(urgency, expected))
        for each in taken:
            job = self.jobs[each.id]
            assert job.state == "ready"
            job.state, job.holder, job.lease_until = "running", holder, self.now + LEASE
            job.attempts += 1
            assert (each.attempt, each.recheck) == (job.attempts, bool(job.recheck))
            assert each.fence > job.fence
            job.fence = each.fence
        self.claims += taken

    def claimable(self, holder: str, free: dict[str, int]) -> list[Expected]:
        """What is due, most urgent first, while there are slots; of those that crashed twice one for each holder."""
        due = [job for job in self.jobs.values() if job.state == "ready" and job.due_at <= self.now]
        held = any(job.crashes >= 2 for job in self.jobs.values() if job.state == "running" and job.holder == holder)
        left, found = dict(free), []
        for job in sorted(due, key=urgency):
            if left[job.kind] and not (held and job.crashes >= 2):
                left[job.kind] -= 1
                held = held or job.crashes >= 2
                found.append(job)
        return found

    def a_claim(self, data: st.DataObject) -> Claim:
        """One that still counts, if there is one, or any of the past: zombies try everything, too."""
        good = [claim for claim in self.claims if self.holds(claim)]
        return data.draw(st.sampled_from(good) if good and data.draw(STILL_GOOD) else st.sampled_from(self.claims))

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.settle(self.a_claim(data), "done")

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def look_again(self, data: st.DataObject) -> None:
        self.settle(self.a_claim(data), "again")

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        self.settle(self.a_claim(data), data.draw(st.sampled_from(["failed", "failed", "final"])))

    def settle(self, claim: Claim, answer: str) -> None:
        outcome = {
            "done": Done(),
            "again": Again(after=5 * SECOND),
            "failed": JobFailed(error="no", reason="BROKEN"),
            "final": JobFailed(error="no", reason="BROKEN", final=True),
        }[answer]
        job = self.holds(claim)
        try:
            self.write(lambda tx: jobs.settle(tx, claim, outcome, LADDER))
        except LeaseLost:
            assert job is None
            return
        assert job is not None
        survived, job.crashes, job.recheck = job.crashes, 0, 0
        match answer:
            case "done":
                del self.jobs[claim.id]
                self.gone[claim.id] = "done"
            case "again":
                job.attempts = max(job.attempts - 1 - survived, 0)
                job.let_go("ready", self.now + 5_000_000)
            case "failed" if job.attempts < job.max_attempts:
                job.let_go("failed", self.now + 10_000_000 * 2 ** (job.attempts - 1))
            case _:
                job.let_go("dead", self.now)

    @precondition(lambda self: self.claims)
    @rule(holder=HOLDERS, late=st.booleans(), data=st.data())
    def keep(self, holder: str, late: bool, data: st.DataObject) -> None:
        self.clock.at += late * TTL
        self.beat(holder, [self.a_claim(data)])

    def beat(self, holder: str, claims: list[Claim]) -> None:
        kept = self.write(lambda tx: jobs.beat(tx, holder, claims, TTL))
        expected = set()
        for claim in claims:
            job = self.holds(claim)
            if job and job.holder == holder and (job.lease_until or 0) > self.now:
                expected.add(claim.id)
                job.lease_until = self.now + LEASE
        assert kept == expected

    @precondition(lambda self: self.count("running") and self.claims)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        claim = self.a_claim(data)
        count = self.write(lambda tx: jobs.release(tx, [claim]))
        job = self.holds(claim)
        assert count == (job is not None)
        if job:
            job.attempts -= 1
            job.fence += 1
            job.let_go("ready", self.now)

    @precondition(lambda self: self.count("dead"))
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.jobs)))
        job = self.jobs.get(job_id)
        dead = job is not None and job.state == "dead"
        twin = job is not None and bool(self.live(job.kind, job.subject))
        try:
            assert self.write(lambda tx: jobs.requeue(tx, job_id)) == dead
        except Duplicate:
            assert dead
            assert twin
            return
        assert not (dead and twin)
        if job and dead:
            job.attempts, job.crashes, job.fence = 0, 0, job.fence + 1
            job.let_go("ready", self.now)

    @precondition(lambda self: self.count("ready", "failed", "dead") > 2)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.fences)))
        job = self.jobs.get(job_id)
        idle = job is not None and job.state != "running"
        assert self.write(lambda tx: jobs.cancel(tx, job_id)) == idle
        if idle:
            del self.jobs[job_id]
            self.gone[job_id] = "cancelled"

    # ── what time does ──

    @precondition(lambda self: self.count("running"))
    @rule(seconds=st.sampled_from([1, 31]))
    def take_back(self, seconds: int) -> None:
        self.clock.at += seconds * SECOND
        counts = self.write(lambda tx: sweeps.take_back_expired(tx, TTL))
        silent = [
            job
            for job in self.jobs.values()
            if job.state == "running" and job.lease_until is not None and job.lease_until <= self.now
        ]
        beside = self.count("running") - 1  # all have one holder
        for job in silent:
            job.crashes += 1
            job.fence += 1
            job.let_go("dead" if job.crashes >= (5 if beside else 3) else "ready", self.now)
        poisonous = sum(job.state == "dead" for job in silent)
        assert counts == (len(silent) - poisonous, poisonous)

    @precondition(lambda self: self.count("running"))
    @rule()
    def fail_over(self) -> None:
        count = self.write(sweeps.take_back_all)
        running = [job for job in self.jobs.values() if job.state == "running"]
        assert count == len(running)
        for job in running:
            job.attempts -= 1
            job.fence += 1
            job.recheck = 1
            job.let_go("ready", self.now)

    @precondition(lambda self: self.count("failed"))
    @rule(seconds=st.sampled_from([1, 11, 61]))
    def retry(self, seconds: int) -> None:
        self.clock.at += seconds * SECOND
        count = self.write(sweeps.retry_failed)
        waited = [job for job in self.jobs.values() if job.state == "failed" and job.due_at <= self.now]
        for job in waited:
            job.state = "ready"
        assert count == len(waited)

    # ── what is true at all times ──

    @invariant()
    def the_queue_is_as_expected(self) -> None:
        found = {row["id"]: row for row in self.rows("SELECT * FROM jobs")}
        assert found.keys() == self.jobs.keys()
        for job_id, job in self.jobs.items():
            row = found[job_id]
            assert {name: row[name] for name in Expected.__dataclass_fields__} == {
                name: getattr(job, name) for name in Expected.__dataclass_fields__
            }

    @invariant()
    def what_left_the_queue_is_in_the_history(self) -> None:
        assert {row["id"]: row["state"] for row in self.rows("SELECT * FROM job_history")} == self.gone

    @invariant()
    def at_most_one_job_is_live_for_a_kind_and_subject(self) -> None:
        twins = self.rows("SELECT kind FROM jobs WHERE state <> 'dead' GROUP BY kind, subject HAVING COUNT(*) > 1")
        assert not twins

    @invariant()
    def nobody_runs_two_jobs_that_crashed_twice(self) -> None:
        suspects = "SELECT holder FROM jobs WHERE state = 'running' AND crashes >= 2"
        assert not self.rows(f"{suspects} GROUP BY holder HAVING COUNT(*) > 1")

    @invariant()
    def fences_only_grow(self) -> None:
        for row in self.rows("SELECT id, fence FROM jobs UNION ALL SELECT id, fence FROM job_history"):
            assert row["fence"] >= self.fences[row["id"]]
            self.fences[row["id"]] = row["fence"]

    def rows(self, sql: str) -> list[Row]:
        return self.session.query(sql, {})


Queue.TestCase.settings = settings(max_examples=2 * settings().max_examples, stateful_step_count=50)
TestTheQueue = Queue.TestCase
