"""A CA that takes orders now and issues later, and days that pass by moving the clock to whatever is due next."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from holdfast.core.work.job import Claim
from holdfast.engine.kind import JobKind, Work
from holdfast.issuers.base import Issued, Look, OrderRequest, Pending, Placed, Uncertain
from holdfast.ports import no_points
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx, from_micros
from holdfast.store.work import jobs
from tests.support.lifecycle import DAY, House, MovedClock, Order, TruthfulCa, a_house
from tests.support.stores import migrated, open_store

TTL = timedelta(seconds=30)


class StillClock(MovedClock):
    """It stands, unless its hand is moved: what happens in between takes no time, however slow the machine is."""

    def __init__(self) -> None:
        super().__init__()
        self._began = datetime.now(UTC)

    def now(self) -> datetime:
        return self._began + self.ahead


@asynccontextmanager
async def a_still_house(folder: Path) -> AsyncIterator[tuple[House, MovedClock]]:
    clock = StillClock()
    engine = SqliteEngine(folder / "holdfast.sqlite", clock)
    store = open_store(engine, clock=clock)
    await migrated(store)
    try:
        yield await a_house(store, folder, clock=clock), clock
    finally:
        await store.close()


class LaterCa(TruthfulCa):
    """An order is an order: it has its CSR, and is pending until somebody on the CA's side approves it."""

    binding = True

    def __init__(self, *, life: timedelta = 90 * DAY, can_find: bool = True) -> None:
        super().__init__(life=life)
        self.can_find = can_find
        self.approved = False
        self.word, self.unknown = "needs_approval", False
        self.after_s: float | None = None
        self.times: list[tuple[datetime, str]] = []  # of every request
        self.looked: dict[str, list[datetime]] = {}  # by our reference: when it was placed, then each look
        self.wishes: list[OrderRequest] = []

    def _call(self, name: str) -> Look | None:
        self.times.append((self.now(), name))
        return super()._call(name)

    async def find_order(self, request: OrderRequest) -> Any:
        found = await super().find_order(request)
        return found if self.can_find else Uncertain(why="This CA has no list of orders: look at its portal.")

    async def place_order(self, request: OrderRequest) -> Placed:
        self.wishes.append(request)
        placed = await super().place_order(request)
        self.looked[request.issuance] = [self.now()]
        self.orders[placed.ref["order"]].handed_in = True
        return placed

    async def order_status(self, ref: Mapping[str, Any], request: OrderRequest) -> Look:
        self.looked[request.issuance].append(self.now())
        trouble = self._call("look")
        if trouble is not None:
            return trouble
        order = self.orders[ref["order"]]
        if not self.approved:
            return Pending(why="An admin must approve it.", after_s=self.after_s, word=self.word, unknown=self.unknown)
        return Issued(chain_pem=self._chain(order))

    def _chain(self, order: Order) -> bytes:
        if not order.chain:
            order.chain = self._sign(order.request)
        return order.chain

    def gaps(self) -> list[list[float]]:
        """Seconds between looks at each order, the first from its placing on."""
        return [[(b - a).total_seconds() for a, b in pairwise(each)] for each in self.looked.values()]


class Days:
    """Time for one house: what is due is done, then the clock moves to whatever is due next. Nobody waits."""

    def __init__(self, house: House, clock: MovedClock, kinds: Sequence[JobKind] = (), *, slots: int = 16) -> None:
        self._house, self._clock, self._slots = house, clock, slots
        self._kinds = {kind.name: kind for kind in kinds or house.kinds}
        self.most_at_once = 0  # jobs in hand when a round began: what is pending must not be among them
        self.worked = 0

    async def go_on(self, until: datetime, *, stop: Callable[[], object] = lambda: False) -> None:
        while not stop():
            if await self.round():
                continue
            due = await self._house.db.read(_next_due)
            if due is None or due > until:
                break
            self._clock.ahead += max(due - self._clock.now(), timedelta(0)) + timedelta(microseconds=1)
        if not stop() and self._clock.now() < until:
            self._clock.ahead += until - self._clock.now()

    async def round(self) -> int:
        """Do what is due now; how many that were."""
        free = dict.fromkeys(self._kinds, self._slots)
        held = await self._house.db.read(_running)
        claims = await self._house.db.write(lambda tx: jobs.claim(tx, holder="p", free=free, ttl=TTL))
        self.most_at_once = max(self.most_at_once, held)
        for claim in claims:
            await self._work(claim)
        self.worked += len(claims)
        return len(claims)

    async def _work(self, claim: Claim) -> None:
        kind = self._kinds[claim.kind]
        outcome = await kind.handler(Work(claim=claim, check=lambda: None, point=no_points))
        await self._house.db.write(lambda tx: jobs.settle(tx, claim, outcome, kind.ladder))


def _next_due(tx: Tx) -> datetime | None:
    row = tx.row("SELECT MIN(due_at) AS due FROM jobs WHERE state = 'ready'")
    return None if row is None or row["due"] is None else from_micros(row["due"])


def _running(tx: Tx) -> int:
    row = tx.row("SELECT COUNT(*) AS n FROM jobs WHERE state = 'running'")
    return 0 if row is None else int(row["n"])
