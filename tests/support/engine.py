"""Driving the engine in tests: a log that remembers, a store that fails on demand, and virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from holdfast.core.work.job import Done, Outcome
from holdfast.engine.kind import JobHandler, JobKind, Work
from holdfast.engine.worker import Worker, WorkerIdentity
from holdfast.operations.acme.handover import Handover
from holdfast.ports import Clock, Points, no_points
from holdfast.store.database import Database, Store
from holdfast.store.tx import Tx
from holdfast.telemetry import Health, Log, Metrics, Telemetry, Traces
from holdfast.world import SystemClock
from tests.simulation.clockwork import VirtualLoop
from tests.simulation.node import Node, NodeClock, NodeStore
from tests.simulation.stage import Stage
from tests.support.reaper import PATIENCE
from tests.support.secrets_watch import look

T = TypeVar("T")

LONG: Final = timedelta(minutes=10)
START: Final = datetime(2030, 1, 1, tzinfo=UTC)


# ── watching ──


class Memory(Log):
    """A log that keeps its lines."""

    def __init__(self) -> None:
        super().__init__(None)
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def debug(self, event: str, **facts: Any) -> None:
        self._keep("debug", event, facts)

    def info(self, event: str, **facts: Any) -> None:
        self._keep("info", event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        self._keep("warning", event, facts)

    def error(self, event: str, **facts: Any) -> None:
        self._keep("error", event, facts)

    def _keep(self, level: str, event: str, facts: dict[str, Any]) -> None:
        look(f"log line {event}", repr(facts))
        self.lines.append((level, event, facts))

    def told(self, event: str) -> list[dict[str, Any]]:
        """The facts of every line with this name."""
        return [facts for _, name, facts in self.lines if name == event]


@dataclass
class Watch:
    """What the engine reports, kept for the test."""

    log: Any = field(default_factory=Memory)
    metrics: Metrics = field(default_factory=Metrics)
    health: Health = field(default_factory=Health)
    traces: Traces = field(default_factory=Traces)

    @property
    def telemetry(self) -> Telemetry:
        return Telemetry(log=self.log, metrics=self.metrics, health=self.health, traces=self.traces)

    def metric(self, name: str, /, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"holdfast_{name}", labels) or 0.0

    def attempts(self, outcome: str, kind: str = "k") -> float:
        """How many attempts at jobs of this kind ended so."""
        return self.metric("job_attempts_total", queue=kind, outcome=outcome)


async def eventually(condition: Callable[[], object | Awaitable[object]]) -> None:
    """Wait until the condition holds; how long that takes is nobody's business."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = condition()
            if await answer if isinstance(answer, Awaitable) else answer:
                return
            await asyncio.sleep(0.01)


# ── a store that fails on demand ──


class Moody:
    """A store in front of a store. `before` is raised instead of a write, `after` once the write was committed."""

    def __init__(self, db: Store) -> None:
        self._db = db
        self.wake = db.wake
        self.before: Exception | None = None
        self.after: Exception | None = None
        self.hangs: asyncio.Event | None = None  # writes wait for it
        self.tried = 0
        self.reading: Exception | None = None

    async def read(self, fn: Callable[[Tx], T]) -> T:
        if self.reading is not None:
            raise self.reading
        return await self._db.read(fn)

    async def write(self, fn: Callable[[Tx], T], *, key: str | None = None) -> T:
        self.tried += 1
        if self.hangs is not None:
            await self.hangs.wait()
        if self.before is not None:
            raise self.before
        result = await self._db.write(fn, key=key)
        if self.after is not None:
            raise self.after
        return result


# ── a worker ──


def kind(name: str, handler: JobHandler, **wishes: Any) -> JobKind:
    wishes.setdefault("timeout", LONG)
    return JobKind(name=name, handler=handler, **wishes)


async def done(work: Work) -> Outcome:
    return Done()


class Blocked:
    """A handler that is under way until it is let go."""

    def __init__(self, outcome: Outcome | None = None) -> None:
        self.began: list[Work] = []
        self.ended: list[str] = []  # "done", or "cancelled"
        self.go = asyncio.Event()
        self._outcome = outcome or Done()

    async def __call__(self, work: Work) -> Outcome:
        self.began.append(work)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("done")
        return self._outcome


@dataclass
class Running:
    """A worker at work, and the way to stop it."""

    worker: Worker
    watch: Watch
    stop: asyncio.Event
    task: asyncio.Task[None]

    async def drained(self) -> None:
        self.stop.set()
        await self.task


@asynccontextmanager
async def working(
    db: Store,
    kinds: Sequence[JobKind],
    *,
    holder: str = "worker-a",
    ttl: timedelta = timedelta(seconds=30),
    poll: timedelta = timedelta(milliseconds=50),
    drain: timedelta = timedelta(seconds=PATIENCE),
    leave: timedelta = timedelta(seconds=PATIENCE),
    clock: Clock | None = None,
    points: Points = no_points,
    watch: Watch | None = None,
    handover: Handover | None = None,
) -> AsyncIterator[Running]:
    """A worker for the length of a block; stopped in good order at its end."""
    watch, stop = watch or Watch(), asyncio.Event()
    worker = Worker(
        db=db,
        identity=WorkerIdentity(holder=holder, name=holder),
        kinds=kinds,
        clock=clock or SystemClock(),
        points=points,
        telemetry=watch.telemetry,
        ttl=ttl,
        poll=poll,
        drain=drain,
        leave=leave,
        handover=handover or Handover(),
    )
    running = Running(worker, watch, stop, asyncio.create_task(worker.run(stop)))
    try:
        yield running
    finally:
        stop.set()
        with suppress(asyncio.CancelledError):  # by the test
            await running.task


async def row(db: Database, job_id: str) -> dict[str, Any]:
    """The job's row, or an empty one once it has left the queue."""
    found = await db.read(lambda tx: tx.row("SELECT * FROM jobs WHERE id = :id", id=job_id))
    return dict(found) if found else {}


def in_state(db: Database, job_id: str, state: str) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return (await row(db, job_id)).get("state", "gone") == state

    return look


# ── virtual time ──


class LoopClock:
    """The clock of a virtual loop: an hour passes in no time, and always in the same order."""

    def now(self) -> datetime:
        return START + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Middle:
    """Random numbers that are not."""

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2

    def token(self, size: int) -> bytes:
        return bytes(size)

    def new_id(self, prefix: str) -> str:
        raise AssertionError("nothing here needs an id")


def virtually(story: Coroutine[Any, Any, T]) -> T:
    """Run a story in virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(story)
    finally:
        loop.close()


@dataclass
class Member:
    """A replica of the simulator's stage, without an engine: its ports, to give to the piece under test."""

    node: Node
    clock: NodeClock
    store: NodeStore


def stage_node(stage: Stage, name: str) -> Member:
    node = Node(stage, name, holder=name)
    clock = NodeClock(node)
    return Member(node, clock, NodeStore(node, clock))


def on_stage(story: Callable[[Stage], Coroutine[Any, Any, T]], *, seed: int = 1) -> T:
    """Play a story with the simulator's database, CA and clock, and no replicas but those it makes."""
    loop = VirtualLoop()
    stage = Stage(loop, seed, replicas=0)
    try:
        return loop.run_until_complete(story(stage))
    finally:
        stage.truth.close()
        loop.close()
