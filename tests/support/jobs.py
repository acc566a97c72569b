"""Short words for what tests ask of the store again and again."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final

import pytest

from holdfast.core.work.job import Claim, Job, Spec
from holdfast.ports import Points, no_points
from holdfast.store import journal
from holdfast.store.database import Database, Engine
from holdfast.store.tx import Row, Tx
from holdfast.store.work import jobs
from tests.support.reaper import PATIENCE
from tests.support.stores import open_store

TTL: Final = timedelta(seconds=30)
LONG_AGO: Final = datetime(2020, 1, 1, tzinfo=UTC)
# For tests about one engine, or about two replicas: SQLite serves one process.
ON_POSTGRES: Final = pytest.mark.parametrize("make_engine", ["postgresql"], indirect=True)
ON_SQLITE: Final = pytest.mark.parametrize("make_engine", ["sqlite"], indirect=True)
_numbers: Final = count(1)


class MovableClock:
    """A clock that stands until it is moved."""

    def __init__(self, at: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()

    async def sleep(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)
        await asyncio.sleep(0)


@asynccontextmanager
async def opened(engine: Engine, *, points: Points = no_points, deadline: float = PATIENCE) -> AsyncIterator[Database]:
    """A store for the length of a block."""
    store = open_store(engine, points=points, deadline=deadline)
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def hurried(store: Database, deadline: float) -> Iterator[None]:
    """Calls begun in the block are given up so soon; those before and after have time on any machine."""
    usual, store._deadline = store._deadline, deadline
    try:
        yield
    finally:
        store._deadline = usual


class Gate:
    """Holds a transaction function, on its thread, until the test lets it go on."""

    def __init__(self) -> None:
        self._inside = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._go = threading.Event()

    def wait(self, tx: Tx | None = None) -> None:
        """Called by the function."""
        self._loop.call_soon_threadsafe(self._inside.set)
        assert self._go.wait(PATIENCE)

    async def entered(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._inside.wait()

    def open(self) -> None:
        self._go.set()


def spec(subject: str = "s", *, kind: str = "k", **wishes: Any) -> Spec:
    """A job to be, with an id of its own."""
    wishes.setdefault("id", f"job_{next(_numbers):08d}")
    return Spec(kind=kind, subject=subject, **wishes)


async def enqueue(db: Database, subject: str = "s", *, kind: str = "k", **wishes: Any) -> str:
    """Ask for work; return the id of the live job."""
    wanted = spec(subject, kind=kind, **wishes)
    return await db.write(lambda tx: jobs.enqueue(tx, wanted))


async def claim(db: Database, holder: str = "a", *, kind: str = "k", limit: int = 100) -> list[Claim]:
    """Claim what is due of one kind."""
    return await db.write(lambda tx: jobs.claim(tx, holder=holder, free={kind: limit}, ttl=TTL))


async def claimed(db: Database, subject: str = "s", *, holder: str = "a", **wishes: Any) -> Claim:
    """Enqueue one job and claim it, and nothing else."""
    job_id = await enqueue(db, subject, **wishes)
    [taken] = await claim(db, holder)
    assert taken.id == job_id
    return taken


async def get(db: Database, job_id: str) -> Job:
    """The job as people see it; it must exist."""
    job = await db.read(lambda tx: jobs.get(tx, job_id))
    assert job is not None
    return job


async def raw(db: Database, job_id: str) -> Row:
    """The whole row of a job; it must exist."""
    row = await db.read(lambda tx: tx.row("SELECT * FROM jobs WHERE id = :id", id=job_id))
    assert row is not None
    return row


async def history(db: Database) -> dict[str, str]:
    """Id and state of what left the queue."""
    rows = await db.read(lambda tx: tx.rows("SELECT id, state FROM job_history"))
    return {row["id"]: row["state"] for row in rows}


async def update(db: Database, statement: str, **params: Any) -> int:
    """Change the database behind the product's back."""
    return await db.write(lambda tx: tx.run(statement, **params))


async def expire(db: Database) -> None:
    """Let every lease of a job end now, by the database's clock."""
    await update(db, "UPDATE jobs SET lease_until = now_us() - 1 WHERE state = 'running'")


async def make_due(db: Database) -> None:
    """Let the wait of every job be over."""
    await update(db, "UPDATE jobs SET due_at = now_us() - 1 WHERE state IN ('ready', 'failed')")


async def audits(db: Database) -> list[tuple[str, str, str]]:
    """Actor, action and subject of every audit row so far."""
    rows = await db.read(lambda tx: journal.audit_page(tx, 0))
    return [(row.actor, row.action, row.subject) for row in rows]


def put(tx: Tx, key: str, value: str = "x") -> None:
    """Write something harmless that a test can look for."""
    tx.run(
        "INSERT INTO self_checks (name, checked_at, ok, details) VALUES (:key, 0, TRUE, :value)",
        key=key,
        value=value,
    )


def found(tx: Tx) -> list[str]:
    """The keys that put() wrote and that are there."""
    return [row["name"] for row in tx.rows("SELECT name FROM self_checks ORDER BY name")]


def putting(key: str) -> Callable[[Tx], str]:
    def fn(tx: Tx) -> str:
        put(tx, key)
        return key

    return fn


async def grouped(db: Database, *functions: Callable[[Tx], Any]) -> list[asyncio.Task[Any]]:
    """Hand these over while the writer is busy, so that it finds them all together when it is free."""
    gate = Gate()
    first = asyncio.create_task(db.write(gate.wait))
    await gate.entered()
    tasks = [asyncio.create_task(db.write(fn)) for fn in functions]
    await asyncio.sleep(0)  # each hands its function over at its first step
    gate.open()
    await first
    return tasks
