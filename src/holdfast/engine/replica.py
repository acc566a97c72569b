"""One replica's engine: the worker, the leadership, and the loops, started and stopped together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

from holdfast.engine import sweep
from holdfast.engine.kind import JobKind
from holdfast.engine.leader import Leader
from holdfast.engine.loop import Duty, Loop, MayTick, always
from holdfast.engine.sweep import Owed
from holdfast.engine.worker import Worker, WorkerIdentity
from holdfast.operations.acme.handover import Handover
from holdfast.ports import Clock, Points, Random
from holdfast.store.database import Store
from holdfast.telemetry import Telemetry

# A stop has one deadline, counted from the signal: of the drain time this much is for work to end, then come so many
# seconds for handing back what did not, and as many for closing the faces and the store. With 30 s it is 30 s in all.
IN_GOOD_TIME: Final = 0.8
HANDING_BACK: Final = timedelta(seconds=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often, how long."""

    poll: timedelta = timedelta(seconds=1)
    ttl: timedelta = timedelta(seconds=30)
    drain: timedelta = timedelta(seconds=30)
    retry: timedelta = timedelta(minutes=5)
    reconcile: timedelta = timedelta(minutes=1)
    timeout: timedelta = timedelta(minutes=10)
    cleanup: timedelta = timedelta(hours=1)
    history_for: timedelta = timedelta(days=90)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicDuty:
    """One more duty: by whichever replica leads, or by each of them for itself."""

    name: str
    period: timedelta
    duty: Duty
    everywhere: bool = False
    in_quarantine: bool = False  # it acts on nothing outside


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningReplica:
    """What happens without being asked, on this machine. Any number of them share one store."""

    db: Store
    identity: WorkerIdentity
    pace: Pace
    kinds: Sequence[JobKind]
    families: Sequence[Owed]
    clock: Clock
    random: Random
    points: Points
    telemetry: Telemetry
    duties: Sequence[PeriodicDuty] = ()
    closed: Callable[[], str] = lambda: ""  # why nothing may act now; empty if all may
    handover: Handover = field(default_factory=Handover)  # by which operations of this process give work to its worker

    async def run(self, stop: asyncio.Event) -> None:
        """Run until stop; on return nothing of ours is left running and our leases are free."""
        worker = Worker(
            db=self.db,
            identity=self.identity,
            kinds=self.kinds,
            clock=self.clock,
            points=self.points,
            telemetry=self.telemetry,
            ttl=self.pace.ttl,
            poll=self.pace.poll,
            drain=self.pace.drain * IN_GOOD_TIME,
            leave=HANDING_BACK,
            handover=self.handover,
            closed=self.closed,
        )
        leader = Leader(
            self.db,
            holder=self.identity.holder,
            ttl=self.pace.ttl,
            clock=self.clock,
            points=self.points,
            telemetry=self.telemetry,
            may_lead=lambda: not worker.rests,
        )
        duties = self._duties()
        loops = [self._loop(each, leader) for each in duties]
        led = [loop for loop, each in zip(loops, duties, strict=True) if not each.everywhere]

        def tick_led() -> None:
            for loop in led:
                loop.tick()

        async with asyncio.TaskGroup() as group:
            group.create_task(leader.run(stop, on_lead=tick_led), name="leader")
            group.create_task(worker.run(stop), name="worker")
            for loop in loops:
                group.create_task(loop.run_every(stop), name=f"every:{loop.name}")

    def _duties(self) -> list[PeriodicDuty]:
        pace = self.pace
        reconcile = partial(sweep.reconcile, self.db, self.families, self.points)
        return [
            PeriodicDuty(name="job_retry", period=pace.retry, duty=partial(sweep.retry_failed, self.db, self.points)),
            PeriodicDuty(name="reconciler", period=pace.reconcile, duty=reconcile),
            PeriodicDuty(name="job_timeout", period=pace.timeout, duty=partial(sweep.time_out, self.db)),
            PeriodicDuty(name="cleanup", period=pace.cleanup, duty=partial(sweep.clean_up, self.db, pace.history_for)),
            *self.duties,
        ]

    def _may_tick(self, every: PeriodicDuty, leader: Leader) -> MayTick:
        ours = always if every.everywhere else leader.leads
        return ours if every.in_quarantine else lambda: ours() and not self.closed()

    def _loop(self, every: PeriodicDuty, leader: Leader) -> Loop:
        return Loop(
            every.name,
            every.period,
            every.duty,
            drain=self.pace.drain * IN_GOOD_TIME,
            clock=self.clock,
            random=self.random,
            telemetry=self.telemetry,
            may_tick=self._may_tick(every, leader),
        )
