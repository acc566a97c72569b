"""Notifications in tests: channels that keep their own truth, an engine that tells people, and time that can be
skipped."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast

from holdfast.core.notifications.channel import ChannelRow
from holdfast.core.notifications.notification import Message, Missed, Notification
from holdfast.engine.notifications import duties as wiring
from holdfast.engine.notifications.delivery import DeliveryServices
from holdfast.engine.replica import Pace, RunningReplica
from holdfast.engine.worker import WorkerIdentity
from holdfast.errors import TryLater
from holdfast.operations.context import Services
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.operations.notifications import channels
from holdfast.operations.notifications.routing import route
from holdfast.ports import Clock, Points, no_points
from holdfast.store import journal, migrate
from holdfast.store.database import Retrying, Store, Wake, conclude
from holdfast.store.notifications import notifications
from holdfast.store.notifications.notifications import Filter
from holdfast.store.sqlite import SqliteSession, open_connection
from holdfast.store.tx import Tx
from holdfast.world import SystemClock, SystemRandom
from tests.simulation.clockwork import VirtualLoop
from tests.support.engine import LoopClock, Watch
from tests.support.reaper import PATIENCE
from tests.support.running import run

T = TypeVar("T")
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


class Box:
    """A channel that keeps its own truth: what came in, and when."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.came: list[Message] = []
        self.tried: list[str] = []  # the ids of all that was sent, also in vain
        self.down = False
        self.loses_replies = 0  # so often it takes a message and does not say so
        self.troubles: dict[str, Exception] = {}  # by the title of a message: what each try of it ends in
        self.next: list[Exception] = []  # what the next sends end in
        self.missed: Missed | None = None  # whom it does not reach of those behind it
        self.closed = 0
        self.closing: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.sending: Callable[[Message], Coroutine[Any, Any, None]] | None = None

    async def send(self, message: Message) -> Missed | None:
        self.tried.append(message.id)
        if self.sending is not None:
            await self.sending(message)
        if self.down:
            raise TryLater("connection refused")
        if self.next:
            raise self.next.pop(0)
        if message.title in self.troubles:
            raise self.troubles[message.title]
        self.came.append(message)
        if self.loses_replies:
            self.loses_replies -= 1
            raise TryLater("no answer")
        return self.missed

    async def close(self) -> None:
        self.closed += 1
        if self.closing is not None:
            await self.closing()

    @property
    def titles(self) -> list[str]:
        return [each.title for each in self.came]

    def heard_of(self, which: Sequence[Notification]) -> Counter[str]:
        """How often each of these came in, by itself or as the line of a digest."""
        heard = Counter(each.id for each in self.came)
        lines = [line for each in self.came if each.event == "digest" for line in each.text.splitlines()]
        for each in which:
            heard[each.id] += sum(line.endswith(f": {each.title}") for line in lines)
        return heard


@dataclass
class Boxes:
    """A Post whose channels are boxes."""

    clock: Clock
    made: dict[str, Box] = field(default_factory=dict)
    wrong: dict[str, Exception] = field(default_factory=dict)  # channels that cannot be opened
    kinds: frozenset[str] = frozenset({"box", "pagerduty", "apprise"})

    def __getitem__(self, name: str) -> Box:
        return self.made.setdefault(name, Box(self.clock))

    async def check(self, name: str, kind: str, settings: Mapping[str, Any], credentials: Mapping[str, Any]) -> None:
        if "wrong" in settings:
            raise self.wrong[name]

    async def open(self, row: ChannelRow) -> Box:
        if row.name in self.wrong:
            raise self.wrong[row.name]
        return self[row.name]


class NoVault:
    """For channels without credentials."""

    def __init__(self, db: Store) -> None:
        self._db = db

    async def keep(self, contents: Sequence[Any], owner: Callable[[Tx, list[str]], T]) -> T:
        assert not contents
        return await self._db.write(lambda tx: owner(tx, []))


@dataclass
class Newsroom:
    """A store, its channels, and what people may do about them."""

    db: Store
    clock: Clock
    boxes: Boxes
    watch: Watch = field(default_factory=Watch)
    vault: Any = None
    post: Any = None  # how channels are reached, if not as boxes

    @property
    def certificate_context(self) -> CertificateContext:
        return CertificateContext(
            db=self.db, random=SystemRandom(), secret_store=self.vault or cast(Any, NoVault(self.db))
        )

    @property
    def tools(self) -> DeliveryServices:
        return DeliveryServices(
            db=self.db,
            make_sender=self.boxes.open,
            clock=self.clock,
            random=SystemRandom(),
            telemetry=self.watch.telemetry,
        )

    @property
    def services(self) -> Services:
        return Services(
            certificate_context=self.certificate_context,
            issuer_kinds=frozenset(),
            probe=cast(Any, None),
            post=self.post or self.boxes,
        )

    async def run(self, function: Callable[..., Any], **asked: Any) -> Any:
        """A declared operation, asked for by an admin."""
        return await run(self.services, function, **asked)

    async def read(self, fn: Callable[..., T], *args: Any, **more: Any) -> T:
        return await self.db.read(lambda tx: fn(tx, *args, **more))

    async def write(self, fn: Callable[..., T], *args: Any, **more: Any) -> T:
        return await self.db.write(lambda tx: fn(tx, *args, **more))

    async def add(self, name: str, **wishes: Any) -> Box:
        routing = wishes.pop("routing", None)
        if routing is not None:
            wishes |= {"owners": list(routing.owners), "labels": dict(routing.labels)}
            wishes |= {"severities": [each.value for each in routing.severities]} if routing.severities else {}
        for what in ("digest", "heartbeat"):
            if (every := wishes.pop(f"{what}_every", None)) is not None:
                wishes[f"{what}_every_s"] = every.total_seconds()
        if (limit := wishes.pop("limit", None)) is not None:
            wishes["rate"] = {"burst": limit.burst, "every_s": limit.every.total_seconds()}
        asked = {"kind": "box", "name": name, **wishes}
        await self.run(channels.add, actor="local:alice", **asked)
        if routing is not None and not routing.severities:  # one that hears of nothing: no person can ask for it
            await self.db.write(lambda tx: tx.run("UPDATE channels SET severities = '[]' WHERE name = :n", n=name))
        return self.boxes[name]

    async def happen(self, event: str, subject: str, **details: Any) -> None:
        await self.db.write(lambda tx: journal.event(tx, event, subject, **details))

    async def fail(self, *subjects: str) -> None:
        """Something that is told for each of these, and that nothing else is told about."""

        def write(tx: Tx) -> None:
            for each in subjects:
                journal.event(tx, "certificate.stranded", each)

        await self.db.write(write)

    async def all(self, **which: Any) -> list[Notification]:
        """Oldest first."""

        def read(tx: Tx) -> list[Notification]:
            found: list[Notification] = []
            while page := notifications.page(tx, Filter(**which), before=found[-1].id if found else "", limit=500):
                found += page
            return found[::-1]

        return await self.db.read(read)

    async def states(self) -> Counter[str]:
        return Counter(each.state.value for each in await self.all())

    def replica(
        self, name: str = "replica-a", *, points: Points = no_points, pace: Pace | None = None
    ) -> RunningReplica:
        chosen = pace or Pace(poll=timedelta(milliseconds=50))
        return RunningReplica(
            db=self.db,
            identity=WorkerIdentity(holder=f"{name}-{SystemRandom().new_id('r')}", name=name),
            pace=chosen,
            kinds=wiring.kinds(self.tools),
            families=wiring.families(self.tools),
            duties=wiring.duties(
                self.tools,
                lease_ttl=chosen.ttl,
                process=max(5 * chosen.poll, MINUTE),
                retry=max(chosen.poll, 2 * MINUTE),
            ),
            clock=self.clock,
            random=SystemRandom(),
            points=points,
            telemetry=self.watch.telemetry,
        )

    @asynccontextmanager
    async def running(self, name: str = "replica-a", **wishes: Any) -> AsyncIterator[asyncio.Task[None]]:
        stop = asyncio.Event()
        task = asyncio.create_task(self.replica(name, **wishes).run(stop))
        try:
            yield task
        finally:
            stop.set()
            with suppress(asyncio.CancelledError):
                await task


# ── On a store that exists ──


def a_newsroom(db: Store, **more: Any) -> Newsroom:
    clock = more.pop("clock", None) or SystemClock()
    return Newsroom(db=db, clock=clock, boxes=Boxes(clock), **more)


# ── In virtual time ──


class VirtualStore(Retrying):
    """The real schema and the real SQL in memory, on the clock of the loop."""

    def __init__(self, clock: LoopClock) -> None:
        super().__init__(clock, timedelta(seconds=10))
        self.wake = Wake()
        self.connection = open_connection(":memory:", clock, write=True, deadline=PATIENCE)
        self.statements = 0
        self._run(lambda tx: migrate.prepare(tx))
        self._run(lambda tx: migrate.migrate(tx, "sqlite", migrate.bundled(), no_points))

    async def read(self, fn: Callable[[Tx], T]) -> T:
        await asyncio.sleep(0)
        return self._run(fn)

    async def _attempt(self, fn: Callable[[Tx], T], deadline: float) -> T:
        await asyncio.sleep(0.001)
        return self._run(fn)

    def _run(self, fn: Callable[[Tx], T]) -> T:
        session = SqliteSession(self.connection, 1)
        session.begin(write=True)
        tx = Tx(session)
        try:
            result = fn(tx)
            conclude(tx, route)
        except BaseException:
            session.rollback()
            raise
        session.commit()
        if tx.wakes:
            self.wake.fire()
        return result


SLOW = Pace(
    poll=timedelta(minutes=2),
    ttl=timedelta(minutes=30),
    retry=timedelta(hours=1),
    reconcile=timedelta(minutes=10),
    timeout=timedelta(hours=6),
    cleanup=timedelta(hours=6),
)

DAYS = Pace(  # for stories of several days
    poll=timedelta(minutes=15),
    ttl=timedelta(hours=3),
    retry=timedelta(hours=6),
    reconcile=timedelta(hours=2),
    timeout=timedelta(hours=6),
    cleanup=timedelta(hours=6),
)


def in_virtual_time(story: Callable[[Newsroom], Coroutine[Any, Any, T]]) -> T:
    """Play a story in which days pass in no time."""
    loop = VirtualLoop()

    async def play() -> T:
        clock = LoopClock()
        store = VirtualStore(clock)
        try:
            return await story(a_newsroom(store, clock=clock))
        finally:
            store.connection.close()

    try:
        return loop.run_until_complete(play())
    finally:
        loop.close()


async def pass_time(span: timedelta) -> None:
    await asyncio.sleep(span.total_seconds())
