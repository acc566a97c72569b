"""A replica of the simulator is an object: it acts on the world only through these ports, and they may be dead.

Kill, pause and clock jumps happen here. Whatever a dead replica's tasks still compute, nothing of it can be seen. Every
call takes a little random time: so a seed chooses who is first.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from holdfast.engine.loop import wait_for
from holdfast.errors import OutcomeUnknown, StoreUnavailable, TryLater
from holdfast.ports import POINTS, Request, Response
from holdfast.store.database import GROUP, Retrying, Wake
from holdfast.store.tx import Tx
from holdfast.telemetry import SilentLog
from tests.simulation.clockwork import START, VirtualLoop

if TYPE_CHECKING:
    from tests.simulation.ground import Ground
    from tests.simulation.stage import Stage

T = TypeVar("T")

NEVER: Final = float("-inf")


class Killed(BaseException):
    """This replica is dead. Not an Exception: no code of ours may handle its own death."""


@dataclass
class Node:
    """One replica's life: its ports ask it, before and after each call, whether it still lives."""

    stage: Ground
    name: str
    holder: str
    alive: bool = True
    paused_until: float = NEVER
    cut_off_until: float = NEVER  # from the database; others reach it
    deaf: bool = False  # the next answer to a COMMIT is lost
    wall_offset: timedelta = timedelta(0)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    born_at: float = 0.0
    beat_failed_at: float = NEVER  # when it last said so
    gave_up: set[str] = field(default_factory=set)  # jobs that it said it had lost
    left_badly: bool = False  # it said that it could not hand everything back
    paid_at: dict[str, float] = field(default_factory=dict)  # when it last claimed an errand's job, and paid for it
    _thawed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def knows_the_time_since(self) -> float:
        """From when on it has seen the database's clock at every poll."""
        return max(self.born_at, self.paused_until, self.beat_failed_at)

    @property
    def gone(self) -> bool:
        """Dead, or stopped in good order."""
        return not self.alive or (self.task is not None and self.task.done())

    def freeze(self, seconds: float) -> None:
        self._thawed.clear()
        self.paused_until = max(self.paused_until, self.stage.loop.time() + seconds)

    def thaw(self) -> None:
        """Go on at once, all of it: a replica of which one half stays frozen is none of the faults."""
        self.paused_until = min(self.paused_until, self.stage.loop.time())
        self._thawed.set()

    @property
    def free(self) -> bool:
        """Neither dead nor frozen: the gate would let it through at once."""
        return self.alive and self.paused_until <= self.stage.loop.time()

    async def gate(self) -> None:
        while self.alive and (left := self.paused_until - self.stage.loop.time()) > 0:
            await wait_for(self._thawed, left)
            await asyncio.sleep(self.stage.latency())  # what was frozen together goes on in any order
        if not self.alive:
            raise Killed(self.name)

    async def pass_a_moment(self) -> None:
        """What a call takes; no time at all where hundreds of thousands are made."""
        if self.stage.latencies:
            await asyncio.sleep(self.stage.latency())
        await self.gate()

    def point(self, name: str) -> None:
        if name not in POINTS:
            raise AssertionError(f"{name} is not a named point")
        if not self.alive:
            raise Killed(self.name)
        self.stage.fired[name] += 1
        doom = self.stage.strikes(name)
        if doom is not None and doom.pause_for:
            self.freeze(doom.pause_for)
            doom.victim = self
        elif doom is not None:
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
        """Sorted by time, as the real ones are; hundreds are drawn in each round of a sweep, so they are cheap here."""
        return f"{prefix}_{int(self._loop.time() * 1000):011x}{self._source.getrandbits(60):015x}"


@dataclass(slots=True)
class _Call:
    fn: Callable[[Tx], Any]
    future: asyncio.Future[Any]


class NodeStore(Retrying):
    """The store as one replica sees it: late, sometimes away, sometimes silent after COMMIT.

    Where calls take no time, those that a replica makes at one instant wait together and are committed together, as the
    product's own writer does it.
    """

    def __init__(self, node: Node, clock: NodeClock) -> None:
        super().__init__(clock, timedelta(seconds=10))
        self.wake = Wake()
        self._node = node
        self._waiting: list[_Call] = []

    async def read(self, fn: Callable[[Tx], T]) -> T:
        await self._arrive()
        result = self._node.stage.truth.look(fn)
        if not self._node.free:
            await self._node.gate()
        return result

    async def _attempt(self, fn: Callable[[Tx], T], deadline: float) -> T:
        await self._arrive()
        if not self._node.stage.latencies:
            return await self._with_others(fn)
        [result] = self._transact([fn])
        await self._node.pass_a_moment()
        self._answered()
        return result

    async def _arrive(self) -> None:
        node = self._node
        if not node.free:
            await node.gate()
        if node.stage.latencies:
            await node.pass_a_moment()
        if node.stage.loop.time() < max(node.stage.truth.down_until, node.cut_off_until):
            raise StoreUnavailable("simulated: the database cannot be reached")

    def _transact(self, fns: Sequence[Callable[[Tx], T]]) -> list[T]:
        node = self._node
        if node.stage.chance("fail before commit"):
            raise StoreUnavailable("simulated: lost before COMMIT")
        results, wakes = node.stage.truth.transact_all(fns, node.point, actor=node.holder)
        if wakes:
            node.stage.wake_all()
        return results

    def _answered(self) -> None:
        deaf, self._node.deaf = self._node.deaf, False
        if deaf or self._node.stage.chance("fail after commit"):
            raise OutcomeUnknown("simulated: the answer to COMMIT was lost")

    # ── together ──

    async def _with_others(self, fn: Callable[[Tx], T]) -> T:
        loop = self._node.stage.loop
        call = _Call(fn, loop.create_future())
        if not self._waiting:
            loop.call_soon(self._serve)
        self._waiting.append(call)
        result: T = await call.future
        if not self._node.free:
            await self._node.gate()
        return result

    def _serve(self) -> None:
        """All that wait, but those who went away meanwhile."""
        calls, self._waiting = [call for call in self._waiting if not call.future.done()], []
        for start in range(0, len(calls), GROUP):
            self._run(calls[start : start + GROUP])

    def _run(self, calls: list[_Call]) -> None:
        """In one transaction; if one of them fails, each alone."""
        try:
            if not self._node.alive:
                raise Killed(self._node.name)
            results = self._transact([call.fn for call in calls])
            self._answered()
        except (StoreUnavailable, OutcomeUnknown, Killed) as error:  # true for all alike
            for call in calls:
                call.future.set_exception(error)
        except Exception as error:
            if len(calls) == 1:
                calls[0].future.set_exception(error)
            else:
                for call in calls:
                    self._run([call])
        else:
            for call, result in zip(calls, results, strict=True):
                call.future.set_result(result)


class NodeTransport:
    """HTTP to the fake CA: late, sometimes for ever, sometimes with the effect done and the reply lost."""

    def __init__(self, node: Node, stage: Stage) -> None:
        self._node = node
        self._stage = stage

    async def request(self, request: Request) -> Response:
        stage, path = self._stage, urlsplit(request.url).path
        stage.note_request(self._node, path)
        await self._node.gate()
        await asyncio.sleep(stage.latency() * 10)
        await self._node.gate()
        if stage.is_poison(path):
            stage.poisoned(self._node, path)
            raise Killed(f"{self._node.name} by {path}")
        late = stage.late(self._node, path)
        status, headers, body = stage.ca.answer(request.method, path, stage.loop.time(), late=late)
        if stage.chance("hang"):
            await asyncio.sleep(request.deadline_for)
            await self._node.gate()
            raise TryLater("simulated: no answer", reason="TIMEOUT")
        await asyncio.sleep(stage.dice.uniform(1, 55) if stage.chance("slow") else stage.latency() * 10)
        await self._node.gate()
        if stage.chance("lost reply"):
            raise TryLater("simulated: the reply was lost")
        return Response(status=status, headers=headers, body=body)


class NodeLog(SilentLog):
    """Says nothing, but listens: what a replica admits excuses it, and what it can't explain is a bug of ours."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self._node = node

    def warning(self, event: str, **facts: Any) -> None:
        node = self._node
        if event == "beat.failed":
            node.beat_failed_at = node.stage.loop.time()
        elif event == "job.lease_lost":
            node.gave_up.add(facts["job"])
        elif event == "lease.not_released":
            node.left_badly = True
        elif event == "job.failed" and facts["reason"] == "INTERNAL" and facts["written"]:
            node.stage.accuse(f"{facts['job']} failed for a reason inside the product: {facts['error']}")

    def error(self, event: str, **facts: Any) -> None:
        cause = facts.get("exc_info")
        if event == "worker.not_drained":
            self._node.left_badly = True
        elif event == "loop.failed" and isinstance(cause, TimeoutError):
            return  # it was frozen for long
        elif event in ("job.not_settled", "loop.failed") and cause is not None and self._node.alive:
            self._node.stage.accuse(f"{event} on {self._node.name}: {cause!r}")
