"""One replica's engine: the worker, the leadership, and the loops, started and stopped together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from holdfast.engine import sweep
from holdfast.engine.leader import Leader
from holdfast.engine.loop import Duty, Loop
from holdfast.engine.sweep import Owed
from holdfast.engine.worker import Identity, Kind, Worker
from holdfast.ports import Clock, Points, Random
from holdfast.store.database import Store
from holdfast.telemetry import Telemetry

IN_GOOD_TIME: Final = 0.9  # of the drain time; the rest is for handing back and closing


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
class Replica:
    """What happens without being asked, on this machine. Any number of them share one store."""

    db: Store
    identity: Identity
    pace: Pace
    kinds: Sequence[Kind]
    families: Sequence[Owed]
    clock: Clock
    random: Random
    points: Points
    telemetry: Telemetry

    async def run(self, stop: asyncio.Event) -> None:
        """Run until stop; on return nothing of ours is left running and our leases are free."""
        leader = Leader(
            self.db,
            holder=self.identity.holder,
            ttl=self.pace.ttl,
            clock=self.clock,
            points=self.points,
            telemetry=self.telemetry,
        )
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
        )
        loops = self._loops(leader)

        def tick_all() -> None:
            for loop in loops:
                loop.tick()

        async with asyncio.TaskGroup() as group:
            group.create_task(leader.run(stop, on_lead=tick_all), name="leader")
            group.create_task(worker.run(stop), name="worker")
            for loop in loops:
                group.create_task(loop.run_every(stop), name=f"every:{loop.name}")

    def _loops(self, leader: Leader) -> list[Loop]:
        pace = self.pace
        duties: list[tuple[str, timedelta, Duty]] = [
            ("job_retry", pace.retry, partial(sweep.retry_failed, self.db, self.points)),
            ("reconciler", pace.reconcile, partial(sweep.reconcile, self.db, self.families, self.points)),
            ("job_timeout", pace.timeout, partial(sweep.time_out, self.db)),
            ("cleanup", pace.cleanup, partial(sweep.clean_up, self.db, pace.history_for)),
        ]
        return [self._loop(name, period, duty, leader) for name, period, duty in duties]

    def _loop(self, name: str, period: timedelta, duty: Duty, leader: Leader) -> Loop:
        return Loop(
            name,
            period,
            duty,
            drain=self.pace.drain * IN_GOOD_TIME,
            clock=self.clock,
            random=self.random,
            telemetry=self.telemetry,
            may_tick=leader.leads,
        )
