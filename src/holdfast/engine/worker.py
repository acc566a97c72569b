"""The worker: claims due jobs of every kind, runs their handlers, keeps their leases, writes down their outcomes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal

from holdfast import __version__
from holdfast.core.backoff import STORE
from holdfast.core.work.job import Again, Claim, Done, JobFailed, Outcome
from holdfast.engine.kind import JobKind, Work
from holdfast.engine.leader import MARGIN
from holdfast.engine.loop import wait_for, wake_when
from holdfast.engine.settle import PASSING, Settler
from holdfast.errors import LeaseLost, OutcomeUnknown, Refused, StoreError, StoreUnavailable, TryLater
from holdfast.operations.acme.handover import Handover
from holdfast.ports import Clock, Points
from holdfast.store.database import Store
from holdfast.store.tx import Tx
from holdfast.store.work import cluster, jobs, sweeps
from holdfast.store.work.jobs import TRACE
from holdfast.telemetry import Span, Telemetry

OUTCOMES: Final[Mapping[type, str]] = {Done: "done", Again: "again", JobFailed: "failed"}  # in metrics and traces
CLOCK_JUMP: Final = timedelta(seconds=60)


@dataclass(slots=True)
class DatabaseClock:
    at: datetime | None = None
    seen: float = 0.0  # then, by our own monotonic clock
    look_at: float = 0.0  # when to look again
    distrusted_until: float = 0.0

    def expected(self, asked_at: float, own: datetime) -> datetime | None:
        """Where it should be, by our own count since we last saw it; None while it is too early to look again."""
        if asked_at < self.look_at:
            return None
        return own if self.at is None else self.at + timedelta(seconds=asked_at - self.seen)

    def plausible(self, now: datetime | None, expected: datetime | None, asked_at: float) -> bool:
        """Not while the clock has just been set: every lease would look expired, and all work would be stolen."""
        if asked_at < self.distrusted_until:
            return False
        if self.at is None or now is None or expected is None:
            return True
        return abs(now - expected) <= CLOCK_JUMP

    def note(
        self, now: datetime, expected: datetime, asked_at: float, *, again_after: timedelta, doubt_for: timedelta
    ) -> float:
        """Remember it; how many seconds it jumped, 0 if it went as it should."""
        jump = now - expected if self.at is not None else timedelta(0)
        jumped = abs(jump) > CLOCK_JUMP
        if jumped:
            self.distrusted_until = asked_at + doubt_for.total_seconds()
        self.at, self.seen, self.look_at = now, asked_at, asked_at + again_after.total_seconds()
        return jump.total_seconds() if jumped else 0.0


STORE_BLIP: Final = timedelta(seconds=5)
CLEAN_UP_FOR: Final = 2.0  # seconds that a cancelled handler has to put things in order


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    """Who we are. The holder id is new at each start: a restarted process never inherits its zombie's leases."""

    holder: str
    name: str


@dataclass(slots=True, eq=False)
class _Running:
    claim: Claim
    kind: JobKind
    trusted_until: float
    task: asyncio.Task[None] | None = None
    ended_by: Literal["", "lost", "stop"] = ""  # why we cancelled it
    settling: bool = False
    whole: bool = False  # it is at something that must not be cut off

    @property
    def under_way(self) -> bool:
        """Its handler runs, and we have no reason to end it."""
        return not self.settling and not self.ended_by


@dataclass(slots=True, kw_only=True)
class Worker:
    """One replica's share of the work."""

    db: Store
    identity: WorkerIdentity
    kinds: Sequence[JobKind]
    clock: Clock
    points: Points
    telemetry: Telemetry
    ttl: timedelta
    poll: timedelta
    drain: timedelta  # for work to end, counted from the stop
    leave: timedelta = timedelta(seconds=10)  # after that: for handing back what did not
    handover: Handover = field(default_factory=Handover)
    closed: Callable[[], str] = lambda: ""  # why nothing may act now; empty if all may
    _told_at: float | None = None  # when we were asked to stop
    _running: dict[str, _Running] = field(default_factory=dict)
    _stray: bool = False  # a claim of ours may be unknown to us
    _epoch: int = 0
    _time: DatabaseClock = field(default_factory=DatabaseClock)
    _draining: bool = False
    rests: bool = False  # asked to take no more work; what runs goes on
    _idle_told: bool = False
    _claiming: bool = False
    _ahead: float | None = None  # our clock, of the database's, in seconds
    _full: frozenset[str] = frozenset()  # kinds of which more may be due than there were slots

    async def run(self, stop: asyncio.Event) -> None:
        """Work until stop, then drain: nothing of ours is left running when this returns."""
        settler = Settler(self.db, self.clock)
        woken = self.db.wake.subscribe()
        self.handover.taker = _Taker(self, settler, woken)
        helpers = [
            asyncio.create_task(self._beat_forever(), name="beat"),
            asyncio.create_task(self._doubt_forever(), name="doubt"),
            asyncio.create_task(self._note_stop(stop, woken), name="stop-watch"),
        ]
        failures = 0
        try:
            while not stop.is_set():
                woken.clear()
                try:
                    more = await self._round(settler, woken, stop)
                    failures = 0
                except StoreError as error:
                    more, failures = False, failures + 1
                    self._stray = self._stray or isinstance(error, OutcomeUnknown)
                    self.telemetry.log.warning("store.unavailable", error=str(error), tries=failures)
                    await wait_for(stop, STORE.wait(failures, self.identity.holder).total_seconds())
                if not more:
                    await wait_for(woken, self.poll.total_seconds())
            self.handover.taker = None
            await self._drain()
        finally:
            self.handover.taker = None
            self.db.wake.unsubscribe(woken)
            left = [entry.task for entry in self._running.values() if entry.task is not None]
            for task in (*helpers, *left):
                task.cancel()
            await settler.close()
            await asyncio.wait((*helpers, *left), timeout=min(CLEAN_UP_FOR, self.leave.total_seconds() / 2))
        await self._leave()

    async def _note_stop(self, stop: asyncio.Event, woken: asyncio.Event) -> None:
        await wake_when(stop, woken)
        self._told_at = self.clock.monotonic()

    def _left(self, allowed: timedelta) -> float:
        """Seconds that are left of so much time since the stop: what waits one after the other shares one deadline."""
        now = self.clock.monotonic()
        return max(0.0, (now if self._told_at is None else self._told_at) + allowed.total_seconds() - now)

    # ── claiming ──

    async def _round(self, settler: Settler, woken: asyncio.Event, stop: asyncio.Event) -> bool:
        """Claim due jobs into the free slots. True if there may be more."""
        free = self.free()
        asked_at = self.clock.monotonic()
        # None while it is too early to look at the clock again
        expected = self._time.expected(asked_at, self.clock.now())
        if expected is None and not self._stray and not any(free.values()):
            return False  # no slot, nothing to look after: the store need not be asked

        def claim(tx: Tx) -> tuple[list[Claim], int, bool, datetime | None]:
            if tx.epoch != self._epoch:
                epoch, failed_over = sweeps.note_epoch(tx)
                if tx.epoch < epoch:
                    raise StoreUnavailable(f"this server is on timeline {tx.epoch}, behind the newest seen, {epoch}")
            else:
                failed_over = False
            if self._stray:
                jobs.release_strays(tx, self.identity.holder, [entry.claim for entry in self._running.values()])
            now = None if expected is None else tx.now()
            trusted = self._time.plausible(now, expected, asked_at)
            if trusted and now is not None:
                sweeps.take_back_expired(tx, self.ttl, me=self.identity.holder)
            # told to stop since: what we took now, we would only hand back
            wanted = trusted and not stop.is_set() and not self.rests
            claims = jobs.claim(tx, holder=self.identity.holder, free=free, ttl=self.ttl) if wanted else []
            return claims, tx.epoch, failed_over, now

        self._claiming = True
        try:
            claims, self._epoch, failed_over, now = await self.db.write(claim)
        finally:
            self._claiming = False
        self._stray = False
        self._note_time(now, expected, asked_at)
        if failed_over:
            self.telemetry.log.error("store.failover", epoch=self._epoch, what="leases dropped, work will be rechecked")
        self._full = _full(free, claims)
        for claimed in claims:
            self.start(claimed, asked_at, settler, woken)
        return bool(claims) and any(self.free().values())

    def _slot_freed(self, kind: str, woken: asyncio.Event) -> None:
        """Look for more of this kind, if the last look stopped for want of slots; new work wakes us by itself."""
        if kind in self._full or self._draining:
            woken.set()

    def stray(self) -> None:
        """A lease of ours may be unknown to us: the next round finds it, and lets it go."""
        self._stray = True

    def doubts_time(self) -> bool:
        """The database's clock was set, or its server changed, a moment ago: leases wait until that is understood."""
        return self.clock.monotonic() < self._time.distrusted_until

    def free(self) -> dict[str, int]:
        """Slots bound the handlers that run; a job whose result is only being written needs none any more."""
        used: dict[str, int] = {}
        for entry in self._running.values():
            if not entry.settling:
                used[entry.kind.name] = used.get(entry.kind.name, 0) + 1
        closed = bool(self.closed())
        return {
            kind.name: 0 if closed and not kind.in_quarantine else kind.slots - used.get(kind.name, 0)
            for kind in self.kinds
        }

    def start(self, claim: Claim, asked_at: float, settler: Settler, woken: asyncio.Event) -> None:
        kind = next(kind for kind in self.kinds if kind.name == claim.kind)
        if (older := self._running.get(claim.id)) is not None:
            self._end(older, "lost")  # it came back to us before we noticed that we had lost it
        entry = _Running(claim, kind, asked_at + self._trust_for())
        self._running[claim.id] = entry
        entry.task = asyncio.create_task(self._work(entry, settler, woken), name=claim.id)

        def ended(task: asyncio.Task[None]) -> None:
            ours = self._running.get(claim.id) is entry
            if ours and entry.ended_by != "stop":  # the drain hands back those it stopped
                del self._running[claim.id]
            if not task.cancelled() and (error := task.exception()) is not None:
                self.telemetry.log.error("job.not_settled", job=claim.id, kind=claim.kind, exc_info=error)
            self._slot_freed(claim.kind, woken)

        entry.task.add_done_callback(ended)

    # ── working ──

    async def _work(self, entry: _Running, settler: Settler, woken: asyncio.Event) -> None:
        claim = entry.claim
        asked_in = claim.payload.get(TRACE, "")
        with self.telemetry.traces.attempt(
            claim.id, claim.fence, asked_in=asked_in, kind=claim.kind, subject=claim.subject, attempt=claim.attempt
        ) as span:
            await self._run(entry, settler, woken, span)

    async def _run(self, entry: _Running, settler: Settler, woken: asyncio.Event, span: Span) -> None:
        claim, log = entry.claim, self.telemetry.log
        self.points("job.claimed")
        began = self.clock.monotonic()
        try:
            outcome = await self._handle(entry)
        except LeaseLost:
            self._report_lost(claim)
            span.tell(outcome="lost")
            return
        entry.settling = True
        self._slot_freed(claim.kind, woken)  # the next claim travels while this result is written
        self.points("job.settling")
        outcome, written = await self._settle(entry, outcome, settler)
        self.points("job.settled")
        if written and entry.kind.settled is not None:
            entry.kind.settled(claim)
        name = OUTCOMES[type(outcome)] if written else "lost"
        self.telemetry.metrics.job_attempts.labels(queue=claim.kind, outcome=name).inc()
        self.telemetry.metrics.job_duration.labels(queue=claim.kind).observe(self.clock.monotonic() - began)
        facts = {"job": claim.id, "kind": claim.kind, "subject": claim.subject, "attempt": claim.attempt}
        span.tell(outcome=name, reason=getattr(outcome, "reason", None) or "")
        if isinstance(outcome, JobFailed):
            span.failed(outcome.error)
            log.warning("job.failed", **facts, reason=outcome.reason, error=outcome.error, written=written)
        else:
            log.debug("job.settled", **facts, outcome=name)

    async def _handle(self, entry: _Running) -> Outcome:
        """Run the handler and turn whatever comes out of it into an outcome."""
        limit, began = entry.kind.timeout.total_seconds(), self.clock.monotonic()
        work = Work(
            claim=entry.claim,
            check=lambda: self._check(entry),
            point=self.points,
            left=lambda: began + limit - self.clock.monotonic(),
            whole=lambda: self._whole(entry),
        )
        try:
            async with asyncio.timeout(limit) as deadline:
                return await entry.kind.handler(work)
        except TimeoutError as error:
            if deadline.expired():
                return JobFailed(error=f"did not end within {limit:g} s", reason="TIMEOUT")
            return self._crashed(entry.claim, error)
        except TryLater as why:
            return JobFailed(error=str(why), reason=why.reason, wait=why.after)
        except Refused as why:
            return JobFailed(error=str(why), reason=why.reason, final=True)
        except PASSING:
            return Again(after=STORE_BLIP, reason="STORE_UNAVAILABLE")  # not the job's fault: it costs no attempt
        except LeaseLost:
            raise
        except Exception as error:
            return self._crashed(entry.claim, error)

    @contextmanager
    def _whole(self, entry: _Running) -> Iterator[None]:
        """A stop that comes meanwhile takes effect at the next check."""
        entry.whole = True
        try:
            yield
        finally:
            entry.whole = False

    async def _settle(self, entry: _Running, outcome: Outcome, settler: Settler) -> tuple[Outcome, bool]:
        """Write the outcome down. If what it asks for cannot be written, that is the outcome."""
        try:
            return outcome, await settler.settle(entry.claim, outcome, entry.kind.ladder)
        except Exception as error:
            failed = self._crashed(entry.claim, error)
            return failed, await settler.settle(entry.claim, failed, entry.kind.ladder)

    def _crashed(self, claim: Claim, error: Exception) -> JobFailed:
        self.telemetry.log.error("job.crashed", job=claim.id, kind=claim.kind, exc_info=error)
        return JobFailed(error=f"{type(error).__name__}: {error}", reason="INTERNAL")

    def _report_lost(self, claim: Claim) -> None:
        self.telemetry.metrics.job_attempts.labels(queue=claim.kind, outcome="lost").inc()
        self.telemetry.log.warning("job.lease_lost", job=claim.id, kind=claim.kind, subject=claim.subject)

    def _check(self, entry: _Running) -> None:
        if self.clock.monotonic() >= entry.trusted_until:
            raise LeaseLost(entry.claim.id)
        if self._draining and entry.kind.interruptible and not entry.whole:
            entry.ended_by = "stop"  # it is handed back when we leave
            raise asyncio.CancelledError

    def _trust_for(self) -> float:
        return self.ttl.total_seconds() * (1 - MARGIN)

    # ── keeping leases ──

    async def _beat_forever(self) -> None:
        while True:
            rested = self.rests
            await self._beat()
            if self.rests is rested:
                await self.clock.sleep(self.ttl.total_seconds() / 3)

    async def _beat(self) -> None:
        """Renew all our leases in one statement, and cancel the work whose lease is gone."""
        entries = list(self._running.values())
        claims = [entry.claim for entry in entries]
        asked_at = self.clock.monotonic()
        rests = self.rests and not self._claiming and not self.handover.offered.total()
        tell_idle = rests and not claims and not self._idle_told
        loops = json.dumps({**self.telemetry.health.loops, cluster.HEARTBEAT: self._heartbeat(rests=rests)})

        def write(tx: Tx) -> tuple[cluster.ReplicaHeard, set[str]]:
            heard = cluster.replica_seen(
                tx, self.identity.holder, self.identity.name, __version__, draining=self._draining, loops=loops
            )
            if tell_idle and heard.draining:
                cluster.tell_idle(tx, self.identity.holder, self.identity.name)
            return heard, jobs.beat(tx, self.identity.holder, claims, self.ttl)

        try:
            (now, draining), kept = await self.db.write(write)
        except StoreError as error:
            self.telemetry.metrics.store_up.set(0)
            self.telemetry.health.beat_problem = str(error)
            self.telemetry.log.warning("beat.failed", error=str(error))
            return
        self.points("job.beaten")
        self._idle_told = draining and (self._idle_told or tell_idle)
        self._rest(asked=draining and not self._draining)
        self._report_skew(now)
        for entry in entries:
            if entry.claim.id in kept:
                entry.trusted_until = asked_at + self._trust_for()
            else:
                self._end(entry, "lost")

    def _heartbeat(self, *, rests: bool) -> dict[str, object]:
        """Facts stored beside the loops, and in their form: an older replica reads them as one more loop."""
        at = self.clock.now().timestamp()
        times = {"tried": at, "ended": at, "took": None, "period": self.ttl.total_seconds() / 3, "error": ""}
        return {**times, "rests": rests, "ahead": self._ahead}

    def _rest(self, *, asked: bool) -> None:
        if asked is not self.rests:
            self.rests = self.telemetry.health.rests = asked
            what = "no more work is taken; what runs goes on" if asked else "work is taken again"
            self.telemetry.log.info("worker.rests" if asked else "worker.resumed", what=what)

    async def _doubt_forever(self) -> None:
        """Cancel work whose lease can't be trusted any more: a beat that waits for the store must not keep it alive."""
        while True:
            now = self.clock.monotonic()
            ends = [entry.trusted_until for entry in self._running.values() if entry.under_way]
            await self.clock.sleep(max(0.0, min(ends, default=now + self._trust_for()) - now))
            for entry in list(self._running.values()):
                if self.clock.monotonic() >= entry.trusted_until:
                    self._end(entry, "lost")

    def _end(self, entry: _Running, why: Literal["lost", "stop"]) -> None:
        """Cancel a handler. One that is only writing its result goes on: the fence decides whether that counts."""
        if entry.task is None or entry.task.done() or entry.settling:
            return
        if why == "lost" and entry.under_way:
            self._report_lost(entry.claim)
        entry.ended_by = why
        entry.task.cancel()

    def _report_skew(self, now: datetime) -> None:
        self.telemetry.metrics.store_up.set(1)
        self.telemetry.health.beat_problem = ""
        skew = self.clock.now() - now
        self._ahead = round(skew.total_seconds(), 3)
        self.telemetry.metrics.clock_skew.set(skew.total_seconds())
        if abs(skew) > CLOCK_JUMP:
            self.telemetry.log.warning("clock.skewed", seconds=skew.total_seconds(), what="leases use the database's")

    def _note_time(self, now: datetime | None, expected: datetime | None, asked_at: float) -> None:
        if now is None or expected is None:
            return
        if jump := self._time.note(now, expected, asked_at, again_after=self.poll, doubt_for=self.ttl):
            self.telemetry.log.error("clock.jumped", seconds=jump, what="claiming pauses for one lease time")

    # ── stopping ──

    async def _drain(self) -> None:
        """Hand back at once what need not end, and let the rest end, for as long as we may."""
        self._draining = True
        at_once = [e for e in self._running.values() if e.kind.interruptible and e.under_way and not e.whole]
        await self._hand_back(at_once)
        tasks = [entry.task for entry in self._running.values() if entry.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=self._left(self.drain))

    async def _hand_back(self, entries: list[_Running]) -> None:
        for entry in entries:
            self._end(entry, "stop")
        tasks = [entry.task for entry in entries if entry.task is not None]
        if not tasks:
            return
        await asyncio.wait(tasks, timeout=min(CLEAN_UP_FOR, self._left(self.drain)))
        try:
            async with asyncio.timeout(self._left(self.drain)):
                await self.db.write(lambda tx: jobs.release(tx, [entry.claim for entry in entries]))
        except (StoreError, TimeoutError):
            return  # it is tried once more when we leave
        for entry in entries:
            self._running.pop(entry.claim.id, None)

    async def _leave(self) -> None:
        """Make all that is still ours anybody's, known to us or not, and take our name off the list."""

        def write(tx: Tx) -> int:
            cluster.remove_replica(tx, self.identity.holder)
            return jobs.release_strays(tx, self.identity.holder, known=())

        try:
            async with asyncio.timeout(self._left(self.drain + self.leave)):
                released = await self.db.write(write)
            self.telemetry.log.info("worker.drained", handed_back=released)
        except (StoreError, TimeoutError) as error:
            why = str(error) or "there was no time left for it"
            self.telemetry.log.error("worker.not_drained", error=why, what="leases will expire by themselves")


@dataclass(frozen=True, slots=True)
class _Taker:
    """This worker, for work that is leased to it in the transaction that causes it."""

    worker: Worker
    settler: Settler
    woken: asyncio.Event

    @property
    def clock(self) -> Clock:
        return self.worker.clock

    @property
    def ttl(self) -> timedelta:
        return self.worker.ttl

    @property
    def holder(self) -> str:
        return self.worker.identity.holder

    def room_for(self, kind: str) -> int:
        return 0 if self.worker.doubts_time() or self.worker.rests else self.worker.free().get(kind, 0)

    def take(self, claim: Claim, asked_at: float) -> None:
        if self.worker.handover.taker is not self:
            return  # we are leaving, and whatever is ours is handed back
        self.worker.start(claim, asked_at, self.settler, self.woken)

    def lost_sight(self) -> None:
        self.worker.stray()
        self.woken.set()


def _full(free: Mapping[str, int], claims: Sequence[Claim]) -> frozenset[str]:
    """The kinds whose slots were used up, so that more jobs may be due."""
    taken = Counter(claim.kind for claim in claims)
    return frozenset(kind for kind, slots in free.items() if taken[kind] >= slots)
