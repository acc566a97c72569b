"""The stage: one database, one CA, and replicas that are objects. Kill, pause and clock jumps happen at the ports.

A replica acts on the world only through its ports, so a replica whose ports are dead is dead: whatever its tasks still
compute, nothing of it can be seen. Every port call takes a little random time: so a seed chooses who is first.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar
from urllib.parse import urlsplit

from holdfast.engine.replica import Pace, Replica
from holdfast.engine.worker import Identity
from holdfast.errors import OutcomeUnknown, StoreUnavailable, TryLater
from holdfast.ports import POINTS, Points, Request, Response, no_points
from holdfast.simulation import errands
from holdfast.simulation.clockwork import VirtualLoop
from holdfast.simulation.remote import FakeCa
from holdfast.store import migrate
from holdfast.store.database import Retrying, Wake, conclude
from holdfast.store.sqlite import SqliteSession, open_connection
from holdfast.store.tx import Tx
from holdfast.telemetry import Metrics, SilentLog, Telemetry
from holdfast.world import sortable

T = TypeVar("T")

START: Final = datetime(2027, 3, 1, tzinfo=UTC)
PACE: Final = Pace(
    poll=timedelta(seconds=10),
    ttl=timedelta(seconds=30),
    drain=timedelta(seconds=20),
    retry=timedelta(seconds=60),
    reconcile=timedelta(seconds=30),
    timeout=timedelta(minutes=5),
    cleanup=timedelta(minutes=20),
)


class Killed(BaseException):
    """This replica is dead. Not an Exception: no code of ours may handle its own death."""


class Truth:
    """The database server: the real schema and the real SQL, in memory, on a clock that faults may set."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.offset = timedelta(0)
        self.epoch = 1
        self.commits = 0
        self.down_until = 0.0
        self.on_commit: Callable[[], None] = lambda: None
        self._changes = 0
        self._connection = open_connection(":memory:", self, write=True, deadline=1.0)

    def now(self) -> datetime:
        return START + timedelta(seconds=self._loop.time()) + self.offset

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def transact(self, fn: Callable[[Tx], T], points: Points = no_points) -> tuple[T, bool]:
        """One transaction, at one instant. What `points` raises before COMMIT undoes it."""
        session = SqliteSession(self._connection, self.epoch)
        session.begin(write=True)
        tx = Tx(session)
        try:
            result = fn(tx)
            conclude(tx)
            points("store.before-commit")
        except BaseException:
            session.rollback()
            raise
        session.commit()
        if self._connection.total_changes != self._changes:
            self._changes = self._connection.total_changes
            self.commits += 1
            self.on_commit()
        points("store.after-commit")
        return result, tx.wakes

    def look(self, fn: Callable[[Tx], T]) -> T:
        session = SqliteSession(self._connection, self.epoch)
        session.begin(write=False)
        try:
            return fn(Tx(session))
        finally:
            session.rollback()

    def remember(self) -> bytes:
        return self._connection.serialize()

    def rewind(self, to: bytes) -> None:
        """A standby was promoted that had not seen the last commits: they are gone, and the timeline is a new one."""
        self._connection.deserialize(to)
        self.epoch += 1

    def close(self) -> None:
        self._connection.close()


@dataclass
class Node:
    """One replica's life: its ports ask it, before and after each call, whether it still lives."""

    stage: Stage
    name: str
    number: int
    alive: bool = True
    paused_until: float = 0.0
    wall_offset: timedelta = timedelta(0)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    async def gate(self) -> None:
        while self.alive and self.stage.loop.time() < self.paused_until:
            await asyncio.sleep(self.paused_until - self.stage.loop.time())
        if not self.alive:
            raise Killed(self.name)

    def point(self, name: str) -> None:
        if name not in POINTS:
            raise AssertionError(f"{name} is not a named point")
        if not self.alive:
            raise Killed(self.name)
        self.stage.fired[name] += 1
        if self.stage.strikes(name):
            self.stage.killed_at[name] += 1
            self.kill()
            raise Killed(f"{self.name} at {name}")

    def kill(self) -> None:
        self.alive = False
        self.stage.deaths += 1
        if self.task is not None and not self.task.done():
            self.task.get_loop().call_soon(self.task.cancel)


class NodeClock:
    def __init__(self, node: Node) -> None:
        self._node = node

    def now(self) -> datetime:
        return START + timedelta(seconds=self._node.stage.loop.time()) + self._node.wall_offset

    def monotonic(self) -> float:
        return self._node.stage.loop.time()

    async def sleep(self, seconds: float) -> None:
        await self._node.gate()
        await asyncio.sleep(seconds)
        await self._node.gate()


class NodeRandom:
    def __init__(self, source: random.Random, loop: VirtualLoop) -> None:
        self._source = source
        self._loop = loop

    def uniform(self, low: float, high: float) -> float:
        return self._source.uniform(low, high)

    def token(self, size: int) -> bytes:
        return self._source.randbytes(size)

    def new_id(self, prefix: str) -> str:
        return f"{prefix}_{sortable(int(self._loop.time() * 1000), self._source.getrandbits(80))}"


class NodeStore(Retrying):
    """The store as one replica sees it: late, sometimes away, sometimes silent after COMMIT."""

    def __init__(self, node: Node, clock: NodeClock) -> None:
        super().__init__(clock, timedelta(seconds=10))
        self.wake = Wake()
        self._node = node

    async def read(self, fn: Callable[[Tx], T]) -> T:
        await self._arrive()
        result = self._node.stage.truth.look(fn)
        await self._node.gate()
        return result

    async def _attempt(self, fn: Callable[[Tx], T], deadline: float) -> T:
        stage = self._node.stage
        await self._arrive()
        if stage.chance("fail before commit"):
            raise StoreUnavailable("simulated: lost before COMMIT")
        result, wakes = stage.truth.transact(fn, self._node.point)
        if wakes:
            stage.wake_all()
        await asyncio.sleep(stage.latency())
        await self._node.gate()
        if stage.chance("fail after commit"):
            raise OutcomeUnknown("simulated: the answer to COMMIT was lost")
        return result

    async def _arrive(self) -> None:
        await self._node.gate()
        await asyncio.sleep(self._node.stage.latency())
        await self._node.gate()
        if self._node.stage.loop.time() < self._node.stage.truth.down_until:
            raise StoreUnavailable("simulated: the database is down")


class NodeTransport:
    """HTTP to the fake CA: late, sometimes for ever, sometimes with the effect done and the reply lost."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def request(self, request: Request) -> Response:
        stage = self._node.stage
        await self._node.gate()
        await asyncio.sleep(stage.latency() * 10)
        await self._node.gate()
        status, headers, body = stage.ca.answer(request.method, urlsplit(request.url).path, stage.loop.time())
        if stage.chance("hang"):
            await asyncio.sleep(request.deadline_for)
            await self._node.gate()
            raise TryLater("simulated: no answer", reason="TIMEOUT")
        await asyncio.sleep(stage.latency() * 10)
        await self._node.gate()
        if stage.chance("lost reply"):
            raise TryLater("simulated: the reply was lost")
        return Response(status=status, headers=headers, body=body)


class Stage:
    """Everything one seed plays with."""

    def __init__(self, loop: VirtualLoop, seed: int, replicas: int) -> None:
        self.loop = loop
        self.dice = random.Random(seed)  # noqa: S311 - a simulation must be repeatable
        self.truth = Truth(loop)
        self.ca = FakeCa(limit=errands.LIMIT)
        self.chances: dict[str, float] = {}
        self.fired: Counter[str] = Counter()
        self.killed_at: Counter[str] = Counter()
        self.nodes: list[Node] = []
        self.doom: tuple[str, int] | None = None  # who passes this point for the n-th time dies there
        self.deaths = 0
        self.rewinds = 0
        self.vandalised = 0
        self.acknowledged: list[str] = []
        self._ports: list[tuple[Node, NodeStore]] = []
        self._born = 0
        self._telemetry = Telemetry(log=SilentLog(), metrics=Metrics())
        self._migrate()
        for _ in range(replicas):
            self.start_node()

    def _migrate(self) -> None:
        self.truth.transact(migrate.prepare)
        self.truth.transact(lambda tx: migrate.migrate(tx, "sqlite", migrate.bundled(), no_points))
        self.truth.transact(errands.set_up)

    def latency(self) -> float:
        return self.dice.uniform(0.001, 0.02)

    def chance(self, what: str) -> bool:
        return what in self.chances and self.dice.random() < self.chances[what]

    def strikes(self, point: str) -> bool:
        if self.doom is None or self.doom[0] != point:
            return False
        left = self.doom[1] - 1
        self.doom = (point, left) if left else None
        return left == 0

    def wake_all(self) -> None:
        """NOTIFY: a hint that may be lost."""
        for store in self.stores:
            if not self.chance("lost wake-up"):
                store.wake.fire()

    @property
    def stores(self) -> list[NodeStore]:
        return [store for node, store in self._ports if node.alive]

    def start_node(self) -> Node:
        self._born += 1
        node = Node(self, f"r{self._born}", self._born)
        clock = NodeClock(node)
        store = NodeStore(node, clock)
        chance = NodeRandom(random.Random(self.dice.getrandbits(64)), self.loop)  # noqa: S311
        replica = Replica(
            db=store,
            identity=Identity(holder=chance.new_id("replica"), name=node.name),
            pace=PACE,
            kinds=[errands.kind(store, NodeTransport(node), clock, "http://ca.test")],
            families=[errands.owed(chance)],
            clock=clock,
            random=chance,
            points=node.point,
            telemetry=self._telemetry,
        )
        node.task = self.loop.create_task(replica.run(node.stop), name=node.name)
        self.nodes = [*(other for other in self.nodes if other.alive), node]
        self._ports = [*((other, ports) for other, ports in self._ports if other.alive), (node, store)]
        return node

    async def ask(self, errand: str) -> None:
        """A client of the product: repeats its request under one key until it is acknowledged."""
        job = f"job_{errand}"
        while True:
            alive = self.stores
            try:
                if alive:
                    store = self.dice.choice(alive)
                    await store.write(lambda tx: errands.ask(tx, errand, job), key=f"ask:{errand}")
                    return
            except (StoreUnavailable, OutcomeUnknown, sqlite3.Error, Killed):
                pass
            await asyncio.sleep(2.0)
