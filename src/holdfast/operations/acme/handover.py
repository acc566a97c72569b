"""From the transaction that causes work straight to the worker of the same process: leased as it is written.

It saves the commit and the wait of a claim. Without a free slot, or without a worker, the job is an ordinary one; and
if this process dies, or loses the answer to its commit, the lease is found or runs out like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol, TypeVar

from holdfast.core.work.job import Claim, Spec
from holdfast.ports import Clock
from holdfast.store.database import Store
from holdfast.store.tx import Tx
from holdfast.store.work import jobs

T = TypeVar("T")


class Taker(Protocol):
    """The worker, as seen from here."""

    @property
    def clock(self) -> Clock: ...

    @property
    def ttl(self) -> timedelta: ...

    @property
    def holder(self) -> str: ...

    def room_for(self, kind: str) -> int:
        """Slots that are free for jobs of this kind."""

    def take(self, claim: Claim, asked_at: float) -> None:
        """Begin with it; its lease was asked for at that time of the clock."""

    def lost_sight(self) -> None:
        """Release a lease that was taken for a job on which no worker works."""


class Handover:
    """Known to both sides; empty until a worker runs here, and again when it stops."""

    def __init__(self) -> None:
        self.taker: Taker | None = None
        self.offered: Counter[str] = Counter()  # slots that are spoken for while their transaction runs

    async def write(self, db: Store, kind: str, fn: Callable[[Tx, Owe], T]) -> T:
        """Run a transaction function that may ask for one job of this kind, by the function it is given."""
        taker = self.taker
        if taker is None or taker.room_for(kind) <= self.offered[kind]:
            return await db.write(lambda tx: fn(tx, _owe))
        self.offered[kind] += 1
        try:
            return await _hand_over(db, taker, fn)
        finally:
            self.offered[kind] -= 1


class Owe(Protocol):
    """Asks for a job. `known` spares its handler a look at what this very transaction writes."""

    def __call__(self, tx: Tx, spec: Spec, known: object = None) -> None: ...


def _owe(tx: Tx, spec: Spec, known: object = None) -> None:
    jobs.owe(tx, spec)  # the worker that claims the job reads the rest


async def _hand_over(db: Store, taker: Taker, fn: Callable[[Tx, Owe], T]) -> T:
    claims: list[Claim] = []

    def owe(tx: Tx, spec: Spec, known: object = None) -> None:
        claims.append(jobs.owe_claimed(tx, spec, taker.holder, taker.ttl, known))

    def run(tx: Tx) -> T:
        claims.clear()  # it may run more than once: the last time counts
        return fn(tx, owe)

    asked_at = taker.clock.monotonic()
    try:
        result = await db.write(run)
    except BaseException:
        if claims:
            taker.lost_sight()  # the answer is lost, perhaps not the commit
        raise
    for claim in claims:
        taker.take(claim, asked_at)
    return result
