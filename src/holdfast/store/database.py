"""A transaction is a plain function run by `await db.write(fn)` or `db.read(fn)`: it cannot await.

So it can never be held open over a remote call. Functions run on threads that own a connection each: one writer on
SQLite, a few on PostgreSQL. Writes that wait together are committed together; if one of a group fails, the group is
rolled back and each runs alone. A function may therefore run more than once: it must touch nothing but its `tx`.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import Enum
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from holdfast.core.backoff import CONFLICT
from holdfast.errors import Duplicate, OutcomeUnknown, StoreDamaged, StoreUnavailable, TxConflict
from holdfast.ports import Clock, Points
from holdfast.store import journal
from holdfast.store.marks import Autocommit, Inline, NoFsync
from holdfast.store.tx import Session, Tx
from holdfast.store.witness import Witnessing
from holdfast.store.work import jobs

T = TypeVar("T")

GROUP: Final = 64  # writes committed together at most
CONFLICT_TRIES: Final = 12
NOTIFY_AFTER: Final = 0.02  # seconds; wake-ups of other replicas are gathered, because NOTIFY serialises commits


# Runs inside a transaction after its functions and before its jobs and journal are written. It may write more; if it
# raises, the transaction is rolled back. Like every transaction function it may run more than once.
BeforeCommit = Callable[[Tx], None]


class Store(Protocol):
    """The fifth port. Everything that must survive a crash goes through these two methods."""

    wake: Wake

    async def read(self, fn: Callable[[Tx], T]) -> T: ...
    async def write(self, fn: Callable[[Tx], T], *, key: str | None = None) -> T: ...


class Engine(Protocol):
    """The differences between SQLite and PostgreSQL."""

    name: str
    writers: int
    readers: int
    near: bool  # in this process: a few rows are read sooner than another thread is reached
    shared: bool  # other processes may use it too, and are notified of new work

    def connect(self, *, write: bool, deadline: float) -> EngineSession: ...
    def listen(self, heard: Callable[[], None]) -> None: ...
    def close(self) -> None: ...


class EngineSession(Session, Protocol):
    @property
    def broken(self) -> bool:
        """The connection is gone; open a new one."""

    def relax(self) -> None:
        """The transaction just begun need not survive a crash that follows its COMMIT."""

    def notify(self) -> None:
        """Hint to other replicas that there is work."""

    def abort(self) -> None:
        """Called from another thread: make whatever runs now fail soon."""


class Wake:
    """A hint that there is new work. Losing one costs a poll interval, never a job."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Event, None] = {}  # in the order they came: a set's would differ between runs

    def subscribe(self) -> asyncio.Event:
        waiter = asyncio.Event()
        self._waiters[waiter] = None
        return waiter

    def unsubscribe(self, waiter: asyncio.Event) -> None:
        self._waiters.pop(waiter, None)

    def fire(self) -> None:
        for waiter in self._waiters:
            waiter.set()


class Retrying:
    """Retries a transaction that did not go through; shared by every store."""

    def __init__(self, clock: Clock, deadline: timedelta) -> None:
        self._clock = clock
        self._deadline = deadline.total_seconds()

    async def _attempt(self, fn: Callable[[Tx], T], deadline: float) -> T:
        raise NotImplementedError

    async def write(self, fn: Callable[[Tx], T], *, key: str | None = None) -> T:
        """Run a function as one transaction. With a key it happens once, even when an answer was lost.

        The result of a keyed write is kept as JSON beside the key; repeating the key returns it.
        """
        if key is None:
            return await self._retried(fn, self._deadline, again=(TxConflict,))
        return await self._retried(_once(fn, key), self._deadline, again=(TxConflict, Duplicate, OutcomeUnknown))

    async def _retried(self, fn: Callable[[Tx], T], deadline: float, *, again: tuple[type[Exception], ...]) -> T:
        unknown: OutcomeUnknown | None = None
        for attempt in count(1):
            try:
                return await self._attempt(fn, deadline)
            except again as error:
                unknown = error if isinstance(error, OutcomeUnknown) else unknown
                if attempt == CONFLICT_TRIES:
                    raise
            except StoreUnavailable as error:
                if unknown is not None:
                    raise unknown from error  # "nothing was changed" is only true of the later try
                raise
            await self._clock.sleep(CONFLICT.wait(attempt, f"{attempt}:{self._clock.monotonic()}").total_seconds())
        raise AssertionError("count() never ends")


def _nothing(tx: Tx) -> None:
    """The default listener of commits."""


class _State(Enum):
    WAITING = 1  # nothing was done yet
    RUNNING = 2  # inside the transaction: it can still be abandoned
    COMMITTING = 3  # from here on the outcome may be unknown
    ABANDONED = 4  # the caller went away before COMMIT: it must not be committed


class _Call:
    __slots__ = ("error", "fn", "future", "group", "result", "session", "state")

    def __init__(self, fn: Callable[[Tx], object], future: asyncio.Future[object]) -> None:
        self.fn = fn
        self.future = future
        self.state = _State.WAITING
        self.session: EngineSession | None = None
        self.group: Sequence[_Call] = ()  # all that share its transaction
        self.result: Any = None
        self.error: BaseException | None = None


class _Abandoned(Exception):
    """A caller of this group went away: roll back, and run the others again."""


class _Stale(StoreUnavailable):
    """The connection was gone before anything was asked of it."""


class _Inbox:
    """The calls that wait for a thread. Once closed, the last entry is None."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._closed = False

    def put(self, call: _Call) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        self._calls.put(call)

    def take(self, limit: int) -> list[_Call] | None:
        """Wait for calls and take up to `limit`; None when closed and empty."""
        taken: list[_Call] = []
        call = self._calls.get()
        while call is not None:
            taken.append(call)
            if len(taken) == limit or self._calls.empty():
                return taken
            try:
                call = self._calls.get_nowait()
            except Empty:  # another thread was quicker
                return taken
        self._calls.put(None)  # for the next look, and for the threads beside this one
        return taken or None

    def close(self) -> None:
        self._closed = True
        self._calls.put(None)


class Database(Retrying):
    """The store on threads. `deadline` bounds every call: past it the answer is an error, never a longer wait."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock,
        points: Points,
        deadline: timedelta,
        before_commit: BeforeCommit,
        committed: Callable[[Tx], None] = _nothing,
        damaged: Callable[[StoreDamaged], None] = lambda error: None,
        witness: Witnessing | None = None,
    ) -> None:
        super().__init__(clock, deadline)
        self.witness = witness  # None where nothing is signed, as in commands
        self.damage: StoreDamaged | None = None  # the first that was met; a page does not mend itself
        self._damaged = damaged  # hears of it once
        self._before_commit = before_commit
        self._committed = committed  # hears of durable commits, on the writers' threads
        self.engine = engine
        self.wake = Wake()
        self._points = points
        self._loop = asyncio.get_running_loop()
        self._guard = threading.Lock()  # over the state of calls
        self._reads, self._writes = _Inbox(), _Inbox()
        self._notify_planned = False
        self._near: EngineSession | None = None  # the event loop's own connection, for brief reads
        self._writers = [self._start(self._writes, n, write=True) for n in range(engine.writers)]
        self._readers = [self._start(self._reads, n, write=False) for n in range(engine.readers)]
        engine.listen(self._heard)

    def _start(self, inbox: _Inbox, number: int, *, write: bool) -> threading.Thread:
        name = f"holdfast-{'write' if write else 'read'}-{number}"
        thread = threading.Thread(target=self._serve, args=(inbox, write), name=name, daemon=True)
        thread.start()
        return thread

    async def read(self, fn: Callable[[Tx], T]) -> T:
        """Run a function in a read-only transaction with one consistent view."""
        near = self.engine.near and isinstance(fn, Inline)
        result: T = self._glance(fn) if near else await self._call(self._reads, fn, self._deadline)
        return result

    def _glance(self, fn: Callable[[Tx], T]) -> T:
        """Read here and now, on the event loop."""
        if self._near is None or self._near.broken:
            self._near = self._reconnect(self._near, write=False)
        try:
            return fn(Tx(self._near))
        except StoreDamaged as error:
            self._note(error)
            raise

    def _note(self, error: StoreDamaged) -> None:
        if self.damage is None:
            self.damage = error
            self._damaged(error)

    async def _attempt(self, fn: Callable[[Tx], T], deadline: float) -> T:
        apart = self.engine.shared and isinstance(fn, Autocommit)  # no reason to wait for the commits of others
        result: T = await self._call(self._reads if apart else self._writes, fn, deadline)
        return result

    async def run_long(self, fn: Callable[[Tx], T], *, deadline: timedelta) -> T:
        """A write that may take its time: schema steps. Two replicas racing on an empty database conflict too."""
        return await self._retried(fn, deadline.total_seconds(), again=(TxConflict, Duplicate))

    async def close(self, within: float | None = None) -> None:
        """Finish what was handed over, then end the threads; a thread that does not end by then is left behind.

        The writers close when the readers have: SQLite writes its log back into the file when the last connection
        closes, and of two that close at once neither is the last.
        """
        if self._notify_planned:
            self._notify()  # what we handed back at the last moment need not wait for another replica's poll
        if self._near is not None:
            self._near.close()
        end = self._clock.monotonic() + (self._deadline if within is None else within)
        for inbox, threads in ((self._reads, self._readers), (self._writes, self._writers)):
            inbox.close()
            await asyncio.to_thread(self._join, threads, end)
        self.engine.close()
        if self.witness is not None:
            self.witness.close()

    def _join(self, threads: list[threading.Thread], end: float) -> None:
        for thread in threads:
            thread.join(timeout=max(0.0, end - self._clock.monotonic()))

    # ── on the event loop ──

    async def _call(self, inbox: _Inbox, fn: Callable[[Tx], Any], deadline: float) -> Any:
        call = _Call(fn, self._loop.create_future())
        inbox.put(call)
        alarm = self._loop.call_later(deadline, self._overdue, call, deadline)
        try:
            return await call.future
        except asyncio.CancelledError:
            self._abandon(call, overdue=False)
            raise
        except StoreDamaged as error:
            self._note(error)
            raise
        finally:
            alarm.cancel()

    def _overdue(self, call: _Call, deadline: float) -> None:
        if call.future.done():
            return
        if self._abandon(call, overdue=True):
            call.future.set_exception(
                StoreUnavailable(f"no answer from the store in {deadline:g} s; nothing was changed")
            )
        else:
            call.future.set_exception(OutcomeUnknown(f"no answer to COMMIT in {deadline:g} s; it may have happened"))

    def _abandon(self, call: _Call, *, overdue: bool) -> bool:
        """Give a call up. True if it is certain that it changes nothing.

        A caller that merely went away does not spoil the transaction for others that wait for it.
        """
        with self._guard:  # for the abort, too: a moment later the session may run another call
            certain = call.state is not _State.COMMITTING
            if certain:
                call.state = _State.ABANDONED
            if call.session is not None and (overdue or all(other.future.done() for other in call.group)):
                call.session.abort()
        return certain

    def _deliver(self, calls: list[_Call], wakes: bool) -> None:
        for call in calls:
            if call.future.done():
                continue
            if call.error is not None:
                call.future.set_exception(call.error)
            else:
                call.future.set_result(call.result)
        if wakes:
            self.wake.fire()
            if self.engine.shared and not self._notify_planned:
                self._notify_planned = True
                self._loop.call_later(NOTIFY_AFTER, self._notify)

    def _notify(self) -> None:
        self._notify_planned = False
        call = _Call(_NOTIFY, self._loop.create_future())
        call.future.add_done_callback(lambda done: done.cancelled() or done.exception())  # a lost hint is no error
        try:
            self._writes.put(call)
        except StoreUnavailable:
            call.future.cancel()
        else:
            self._loop.call_later(self._deadline, lambda: self._abandon(call, overdue=True))

    def _heard(self) -> None:
        """Called on the engine's listening thread."""
        self._loop.call_soon_threadsafe(self.wake.fire)

    # ── on a thread ──

    def _serve(self, inbox: _Inbox, write: bool) -> None:
        session: EngineSession | None = None
        while (calls := inbox.take(GROUP if write else 1)) is not None:
            notify = [call for call in calls if call.fn is _NOTIFY]
            work = [call for call in calls if call.fn is not _NOTIFY]
            wakes = False
            try:
                if session is None or session.broken:
                    session = self._reconnect(session, write)
                if notify:
                    with self._using(session, notify):
                        session.notify()
                if work:
                    try:
                        wakes = self._run(session, work, write)
                    except _Stale:  # the server was restarted while we were idle: nothing was asked of it yet
                        session = self._reconnect(session, write)
                        wakes = self._run(session, work, write)
            except BaseException as error:  # no connection, or a harness that kills: no caller may wait for ever
                for call in calls:
                    call.error = call.error or error
            self._hand_back(calls, wakes)
        if session is not None:
            session.close()

    def _reconnect(self, session: EngineSession | None, write: bool) -> EngineSession:
        if session is not None:
            session.close()
        return self.engine.connect(write=write, deadline=self._deadline)

    def _hand_back(self, calls: list[_Call], wakes: bool) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver, calls, wakes)
        except RuntimeError:
            return  # the event loop is closed

    def _run(self, session: EngineSession, calls: list[_Call], write: bool) -> bool:
        """Run a group in one transaction, or, if one of it fails, each alone. Every call gets its own true answer."""
        try:
            if self.engine.shared and isinstance(calls[0].fn, Autocommit):
                return self._run_apart(session, calls[0])
            return self._transact(session, calls, write)
        except _Stale:
            raise
        except (StoreUnavailable, OutcomeUnknown) as error:
            for call in calls:  # true for the whole group alike
                call.error = error
            return False
        except Exception as error:
            if len(calls) == 1:
                calls[0].error = error
                return False
        wakes = False
        for call in calls:
            try:
                wakes = self._run(session, [call], write) or wakes
            except _Stale as error:
                call.error = StoreUnavailable(f"{error}; nothing was changed")
        return wakes

    def _transact(self, session: EngineSession, calls: list[_Call], write: bool) -> bool:
        with self._using(session, calls):
            try:
                session.begin(write=write)
            except StoreUnavailable as error:
                if session.broken:
                    raise _Stale(str(error)) from error
                raise
            tx = Tx(session)
            durable = write and not all(isinstance(call.fn, NoFsync) for call in calls)
            try:
                if write and not durable:
                    session.relax()
                for call in calls:
                    if call.state is not _State.ABANDONED:
                        call.result = call.fn(tx)
                conclude(tx, self._before_commit)
                if write:
                    self._points("store.before-commit")
                    self._tell_witness(tx)
                self._enter_commit(calls)
            except BaseException:
                session.rollback()
                raise
            session.commit()
            if self.witness is not None:
                self.witness.committed(tx)
            if durable and tx.wrote:
                self._committed(tx)
            if write:
                self._points("store.after-commit")
            return tx.wakes

    def closed(self) -> str:
        """Why nothing may act on what this database says; empty if all may."""
        return "" if self.witness is None else self.witness.closed

    def cannot_sign(self) -> str:
        """Why nothing may be signed now that would have to be kept; empty if it may."""
        return "" if self.witness is None else self.witness.check()

    def _tell_witness(self, tx: Tx) -> None:
        """Before COMMIT: what is known here cannot be lost by a database that confirmed it."""
        if self.witness is not None:
            self.witness.before_commit(tx)

    def _run_apart(self, session: EngineSession, call: _Call) -> bool:
        """Without a transaction: each statement is done once it was run."""
        with self._using(session, [call]):
            if not isinstance(call.fn, Inline):
                self._enter_commit([call])  # from here on it may have happened
            try:
                call.result = call.fn(Tx(session))
            except StoreUnavailable as error:
                if session.broken:
                    raise _Stale(str(error)) from error
                raise
        return False

    @contextmanager
    def _using(self, session: EngineSession, calls: list[_Call]) -> Iterator[None]:
        """While these calls run, a caller that gives one up can abort the session."""
        with self._guard:
            for call in calls:
                call.session, call.group = session, calls
                if call.state is not _State.ABANDONED:
                    call.state = _State.RUNNING
        try:
            yield
        finally:
            with self._guard:
                for call in calls:
                    call.session, call.group = None, ()  # the group holds the call: a circle would outlive both

    def _enter_commit(self, calls: list[_Call]) -> None:
        with self._guard:
            live = [call for call in calls if call.state is not _State.ABANDONED]
            if len(live) < len(calls):
                for call in calls:
                    call.error = None
                raise _Abandoned
            for call in live:
                call.state = _State.COMMITTING


def conclude(tx: Tx, before_commit: BeforeCommit) -> None:
    """End a transaction: the hook, then its jobs, then its journal, whose lock must be taken after all others."""
    before_commit(tx)
    jobs.insert_owed(tx)
    journal.seal(tx)


def _NOTIFY(tx: Tx) -> None:  # noqa: N802 - a marker, compared by identity
    raise AssertionError("a marker, never run")


def forget_keys(tx: Tx, before: datetime) -> int:
    """Delete old keys of writes, which no client repeats any more."""
    return tx.run("DELETE FROM write_keys WHERE at < :before", before=before)


def kept_result(tx: Tx, key: str) -> str | None:
    """The result of the write that was made with this key, as JSON."""
    done = tx.row("SELECT result FROM write_keys WHERE key = :key", key=key)
    return None if done is None else str(done["result"])


def _once(fn: Callable[[Tx], T], key: str) -> Callable[[Tx], T]:
    def keyed(tx: Tx) -> T:
        done = kept_result(tx, key)
        if done is not None:
            kept: T = json.loads(done)
            return kept
        result = json.dumps(fn(tx))
        tx.run(
            "INSERT INTO write_keys (key, result, at) VALUES (:key, :result, now_us())",
            key=key,
            result=result,
        )
        first: T = json.loads(result)  # the same value that a repetition gets
        return first

    return keyed
