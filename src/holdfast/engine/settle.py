"""Writing down what became of a job, whatever the store does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from holdfast.core.backoff import JOB, STORE, Ladder
from holdfast.core.work.job import Claim, Done, Outcome
from holdfast.errors import LeaseLost, OutcomeUnknown, StoreUnavailable, TxConflict
from holdfast.ports import Clock
from holdfast.store.database import Store
from holdfast.store.tx import Tx
from holdfast.store.work import jobs

T = TypeVar("T")

PASSING: Final = (StoreUnavailable, OutcomeUnknown, TxConflict)  # what the store says when it is worth asking again


@dataclass(frozen=True, slots=True)
class _Waiting:
    claim: Claim
    future: asyncio.Future[bool]


class Settler:
    """Plain finishes that come together are written together; everything else is a transaction of its own.

    While the store is away the answer is kept and tried again: a result is worth more than the attempt it took. The
    fence makes a late one harmless.
    """

    def __init__(self, db: Store, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._waiting: list[_Waiting] = []
        self._flusher: asyncio.Task[None] | None = None

    async def settle(self, claim: Claim, outcome: Outcome, ladder: Ladder = JOB) -> bool:
        """Write the outcome. False if the job was no longer ours: then nothing was written."""
        if isinstance(outcome, Done) and outcome.write is None:
            return await self._finish(claim)
        unknown = False

        def write(tx: Tx) -> None:
            if unknown and not jobs.still_ours(tx, claim):
                return  # an earlier try was committed and its answer lost, or the job went to another
            jobs.settle(tx, claim, outcome, ladder)

        async def attempt() -> None:
            nonlocal unknown
            try:
                await self._db.write(write)
            except OutcomeUnknown:
                unknown = True
                raise

        try:
            await insist(self._clock, claim.id, attempt)
        except LeaseLost:
            return False
        return True

    async def close(self) -> None:
        """Give up the outcomes that are still being written; their leases are handed back or run out."""
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.wait({self._flusher})

    async def _finish(self, claim: Claim) -> bool:
        waiting = _Waiting(claim, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush(), name="settle")
        return await asyncio.shield(waiting.future)

    async def _flush(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            claims = [waiting.claim for waiting in group]

            def write(tx: Tx, claims: list[Claim] = claims) -> set[str]:
                ours = jobs.finish(tx, claims)
                return ours if len(ours) == len(claims) else ours | jobs.finished(tx, claims)

            try:
                ours = await insist(self._clock, claims[0].id, lambda write=write: self._db.write(write))  # type: ignore[misc]
            except Exception as error:
                for waiting in group:
                    waiting.future.set_exception(error)
            except BaseException:
                for waiting in group:
                    waiting.future.cancel()
                raise
            else:
                for waiting in group:
                    waiting.future.set_result(waiting.claim.id in ours)


async def insist(
    clock: Clock, key: str, attempt: Callable[[], Awaitable[T]], check: Callable[[], None] | None = None
) -> T:
    """Try until the store answers, waiting as core/backoff says; `check` may put an end to it."""
    tries = 0
    while True:
        try:
            return await attempt()
        except PASSING:
            tries += 1
            if check is not None:
                check()
            await clock.sleep(STORE.wait(tries, key).total_seconds())
