"""Who does the duties that one replica does for all: the holder of the `scheduler` lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from holdfast.core.backoff import STORE
from holdfast.core.work.cluster import Lease
from holdfast.engine.loop import always, wait_for, wake_when
from holdfast.errors import LeaseLost, OutcomeUnknown, StoreError
from holdfast.ports import Clock, Points
from holdfast.store.database import Store
from holdfast.store.tx import Tx
from holdfast.store.work import cluster
from holdfast.telemetry import Telemetry

NAME: Final = "scheduler"
MARGIN: Final = 0.1  # of the TTL: stop trusting a lease before the database lets it expire
BREATH: Final = 0.25  # seconds at least between two looks at another's lease, however often work is announced
OFTEN: Final = 1 / 600  # of the TTL: no store that is away is asked more often, whatever the TTL is


class Leader:
    """Takes the lease when it is free, renews it at a third of its life, and trusts it a little less long."""

    def __init__(
        self,
        db: Store,
        *,
        holder: str,
        ttl: timedelta,
        clock: Clock,
        points: Points,
        telemetry: Telemetry,
        may_lead: Callable[[], bool] = always,
    ) -> None:
        self._db = db
        self._holder = holder
        self._ttl = ttl
        self._clock = clock
        self._points = points
        self._telemetry = telemetry
        self._may_lead = may_lead
        self._free_in = ttl.total_seconds()  # how long another's lease still runs, as far as we know
        self._failures = 0  # of the store, in a row
        self._lease: Lease | None = None
        self._unheard = False  # we may have taken it without hearing of it
        self._trusted_until = 0.0

    def leads(self) -> bool:
        """Whether we may act for all now. By our own monotonic clock, counted from before the lease was asked for."""
        return self._lease is not None and self._clock.monotonic() < self._trusted_until

    async def run(self, stop: asyncio.Event, on_lead: Callable[[], None]) -> None:
        """Stay in the race until stop; `on_lead` is called whenever we have just become the leader."""
        woken = self._db.wake.subscribe()
        watch = asyncio.create_task(wake_when(stop, woken), name="leader-stop-watch")
        try:
            while not stop.is_set():
                woken.clear()
                led = self.leads()
                await self._step()
                self._telemetry.metrics.lease_held.labels(lease=NAME).set(self.leads())
                if self.leads() and not led and not stop.is_set():
                    on_lead()
                await self._wait(stop, woken)
        finally:
            watch.cancel()
            self._db.wake.unsubscribe(woken)
            await self._let_go()

    async def _wait(self, stop: asyncio.Event, woken: asyncio.Event) -> None:
        """Until it is time to renew; or, on other replicas, until the lease may be free or they are woken."""
        beat = self._ttl.total_seconds() / 3
        if self._failures:
            again = STORE.wait(self._failures, self._holder).total_seconds()
            await wait_for(stop, min(beat, max(again, self._ttl.total_seconds() * OFTEN)))
        elif self._lease is not None:
            await wait_for(stop, beat)
        elif not await wait_for(stop, min(beat, BREATH)):
            await wait_for(woken, max(0.0, min(beat, self._free_in) - BREATH))

    async def _step(self) -> None:
        if not self._may_lead():
            await self._let_go()
            return
        asked_at = self._clock.monotonic()
        lease = self._lease
        try:
            if lease is not None:
                lease = self._lease = await self._renewed(lease)
            if lease is None:  # never ours, or not any more: after an outage nobody else may want it
                asked_at = self._clock.monotonic()
                lease = await self._taken()
        except StoreError as error:
            self._failures += 1
            self._unheard = self._unheard or (lease is None and isinstance(error, OutcomeUnknown))
            return  # what we hold stays trusted until its time is up, and no longer
        self._lease, self._failures = lease, 0
        self._trusted_until = asked_at + self._ttl.total_seconds() * (1 - MARGIN)

    async def _renewed(self, lease: Lease) -> Lease | None:
        try:
            return await self._db.write(lambda tx: cluster.renew_lease(tx, lease, self._ttl))
        except LeaseLost:
            self._telemetry.metrics.lease_held.labels(lease=NAME).set(0)
            self._telemetry.log.warning("lease.lost", lease=NAME)
            return None

    async def _taken(self) -> Lease | None:
        """The lease, if it is free. First a look, which costs less: those who do not lead are woken by all work."""
        rest = await self._db.read(lambda tx: cluster.lease_free_in(tx, NAME, self._ttl))
        self._free_in = rest.total_seconds()
        if rest and not self._unheard:
            return None
        lease = await self._db.write(self._take)
        self._unheard = False
        if lease is not None:
            self._points("lease.taken")
            self._telemetry.log.info("lease.taken", lease=NAME, fence=lease.fence)
        return lease

    def _take(self, tx: Tx) -> Lease | None:
        """Take the lease, or find that we have it: the answer to an earlier try was lost."""
        held = self._held(tx) if self._unheard else None
        return (
            cluster.take_lease(tx, NAME, self._holder, self._ttl)
            if held is None
            else cluster.renew_lease(tx, held, self._ttl)
        )

    def _held(self, tx: Tx) -> Lease | None:
        return next(
            (held for held in cluster.held_leases(tx) if (held.name, held.holder) == (NAME, self._holder)), None
        )

    async def _let_go(self) -> None:
        """Release at once, so that another replica leads within its next step."""
        lease, self._lease = self._lease, None
        self._telemetry.metrics.lease_held.labels(lease=NAME).set(0)
        if lease is None and not self._unheard:
            return

        def release(tx: Tx) -> None:
            held = lease or self._held(tx)
            if held is not None:
                cluster.release_lease(tx, held)

        try:
            await self._db.write(release)
            self._points("lease.released")
        except StoreError as error:
            self._telemetry.log.warning("lease.not_released", lease=NAME, error=str(error))
