"""The loop, written once: run a duty now, then about every period; never over itself; a failure costs one round."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from holdfast.errors import StoreError
from holdfast.ports import Clock, Random
from holdfast.telemetry import Telemetry

Duty = Callable[[], Awaitable[object]]
MayTick = Callable[[], bool]

HUNG_AFTER: Final = 10  # periods; then the duty is cancelled and its next tick is free to run
HUNG_AT_MOST: Final = 120.0  # seconds, of a duty that is owed more often than that


class Loop:
    """One periodic duty. `may_tick` is asked before each tick: on several replicas a lease decides who does it."""

    def __init__(
        self,
        name: str,
        period: timedelta,
        duty: Duty,
        *,
        drain: timedelta,
        clock: Clock,
        random: Random,
        telemetry: Telemetry,
        may_tick: MayTick,
    ) -> None:
        self.name = name
        self.skipped = 0
        self._stopping = False
        self._period = period.total_seconds()
        self._drain = drain.total_seconds()
        self._duty = duty
        self._clock = clock
        self._random = random
        self._telemetry = telemetry
        self._may_tick = may_tick
        self._running: asyncio.Task[None] | None = None

    async def run_every(self, stop: asyncio.Event) -> None:
        """Tick until stop, then wait for the tick under way, as long as a drain may take."""
        try:
            while not stop.is_set():
                self.tick()
                await wait_for(stop, self._period * self._random.uniform(0.9, 1.1))
            self._stopping = True
            if self._running is not None:
                await self._let_end(self._running)
        finally:
            self._stopping = True
            if self._running is not None:
                self._running.cancel()

    async def _let_end(self, tick: asyncio.Task[None]) -> None:
        _, late = await asyncio.wait({tick}, timeout=self._drain)
        if late:
            self._telemetry.log.warning("loop.not_drained", loop=self.name)
            tick.cancel()
            await asyncio.wait({tick})

    def tick(self) -> bool:
        """Start the duty unless it is still running or another replica's to do. Also for "now, please"."""
        if self._stopping:
            return False  # nobody would wait for it
        if self._running is not None and not self._running.done():
            self.skipped += 1
            self._telemetry.metrics.loop_skipped.labels(loop=self.name).inc()
            self._telemetry.log.warning("loop.tick_skipped", loop=self.name, why="still running", skipped=self.skipped)
            return False
        if not self._may_tick():
            return False
        self._running = asyncio.create_task(self._once(), name=f"loop:{self.name}")
        return True

    async def _once(self) -> None:
        patience = patience_for(self._period)
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(patience) as deadline:
                await self._duty()
        except Exception as error:
            hung = isinstance(error, TimeoutError) and deadline.expired()
            why = f"did not end within {patience:g} s" if hung else str(error)
            self._tell(began, error=why[:500] or type(error).__name__)
            self._failed(error, why)
        else:
            self._tell(began)
            self._telemetry.metrics.loop_last_tick.labels(loop=self.name).set(self._clock.now().timestamp())

    def _tell(self, began: float, *, error: str = "") -> None:
        """Record how the loop did: the heartbeat stores it."""
        before = self._telemetry.health.loops.get(self.name, {})
        at = self._clock.now().timestamp()
        self._telemetry.health.loops[self.name] = {
            "ended": before.get("ended") if error else at,
            "tried": at,
            "took": round(self._clock.monotonic() - began, 3),
            "period": self._period,
            "error": error,
        }

    def _failed(self, error: Exception, why: str) -> None:
        self._telemetry.metrics.loop_failures.labels(loop=self.name).inc()
        # A store that is away is said by health and once by the store itself; a bug deserves its traceback.
        trace = None if isinstance(error, StoreError) else error
        again = f"in about {self._period:g} s"
        self._telemetry.log.error("loop.failed", loop=self.name, error=why, again=again, exc_info=trace)


def patience_for(period: float) -> float:
    """Seconds after which a tick has hung: ten periods, but no more than two minutes, or than one long period."""
    return min(HUNG_AFTER * period, max(HUNG_AT_MOST, period))


def always() -> bool:
    """The may_tick of a duty that every replica does for itself."""
    return True


async def wake_when(stop: asyncio.Event, woken: asyncio.Event) -> None:
    """Let loops that wait to be woken notice a stop, too."""
    await stop.wait()
    woken.set()


async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event at most so long; True if it came."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
