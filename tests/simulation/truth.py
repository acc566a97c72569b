"""The database server of the simulator: the real schema and the real SQL, in memory, on a clock that faults may set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar

from holdfast.operations.notifications.routing import route
from holdfast.ports import Points, no_points
from holdfast.store.database import conclude
from holdfast.store.sqlite import SqliteSession, open_connection
from holdfast.store.tx import Tx, to_micros
from tests.simulation.clockwork import START, VirtualLoop
from tests.simulation.witness import MayTake, Note, Witness

T = TypeVar("T")

_BEGINNING: Final = to_micros(START)
_MICROSECOND: Final = timedelta(microseconds=1)


class Truth:
    """One database for all replicas. A transaction takes no time here; the way there and back does."""

    def __init__(self, loop: VirtualLoop, ttl: timedelta, may_take: MayTake) -> None:
        self._loop = loop
        self.offset = timedelta(0)
        self.epoch = 1
        self.commits = 0
        self.down_until = 0.0
        self.on_commit: Callable[[Note], None] = lambda _: None
        self._changes = 0
        self._witness = Witness(self.now_us, ttl // timedelta(microseconds=1), may_take)
        self._connect()

    def _connect(self) -> None:
        self._connection = open_connection(":memory:", self, write=True, deadline=1.0)
        self._connection.create_function("now_us", 0, self.now_us)
        self._witness.install(self._connection)

    def now(self) -> datetime:
        return START + timedelta(seconds=self._loop.time()) + self.offset

    def now_us(self) -> int:
        """What SQL calls the time; asked for so often that it is not made of dates."""
        return _BEGINNING + round(self._loop.time() * 1e6) + self.offset // _MICROSECOND

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def transact(
        self, fn: Callable[[Tx], T], points: Points = no_points, *, actor: str | None = None
    ) -> tuple[T, bool]:
        """One transaction of this holder's, at one instant. What `points` raises before COMMIT undoes it."""
        [result], wakes = self.transact_all([fn], points, actor=actor)
        return result, wakes

    def transact_all(
        self, fns: Sequence[Callable[[Tx], T]], points: Points = no_points, *, actor: str | None = None
    ) -> tuple[list[T], bool]:
        """The same for several functions that waited together: they share it, as at the product's own writer."""
        session = self._session()
        session.begin(write=True)
        self._witness.begin(actor)
        tx = Tx(session)
        try:
            results = [fn(tx) for fn in fns]
            conclude(tx, route)
            points("store.before-commit")
        except BaseException:
            session.rollback()
            raise
        session.commit()
        if self._connection.total_changes != self._changes:
            self._changes = self._connection.total_changes
            self.commits += 1
            self.on_commit(self._witness.committed())
        points("store.after-commit")
        return results, tx.wakes

    def look(self, fn: Callable[[Tx], T]) -> T:
        """Nothing else can happen meanwhile, so no transaction is needed to see one state of things."""
        before, result = self._connection.total_changes, self.peek(fn)
        if self._connection.total_changes != before:
            raise AssertionError(f"{fn} was to read only, and wrote")
        return result

    def peek(self, fn: Callable[[Tx], T]) -> T:
        """For the stage's own questions, also in the middle of a transaction."""
        return fn(Tx(self._session()))

    def _session(self) -> SqliteSession:
        return SqliteSession(self._connection, self.epoch, clock=self.now_us)

    def remember(self) -> bytes:
        return self._connection.serialize()

    def rewind(self, to: bytes) -> None:
        """A standby was promoted that had not seen the last commits: they are gone, and the timeline is a new one.

        So is the connection: statements that were prepared before would touch tables that are not there any more.
        """
        self._connection.close()
        self._connect()
        self._connection.deserialize(to)
        self._changes = 0
        self.epoch += 1

    def close(self) -> None:
        self._connection.close()
