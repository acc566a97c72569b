"""What every play stands on: one database, the replicas on it, and all that is known of what was done to them."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from holdfast.engine.kind import JobKind
from holdfast.engine.replica import Pace, PeriodicDuty, RunningReplica
from holdfast.engine.sweep import Owed
from holdfast.engine.worker import CLOCK_JUMP, WorkerIdentity
from holdfast.ports import no_points
from holdfast.store import migrate
from holdfast.store.work.cluster import ABSURD
from holdfast.telemetry import Metrics, Telemetry
from tests.simulation import witness
from tests.simulation.clockwork import VirtualLoop
from tests.simulation.node import NEVER, Node, NodeClock, NodeLog, NodeRandom, NodeStore
from tests.simulation.truth import Truth
from tests.simulation.witness import Note

REPLICAS: Final = 3


@dataclass(slots=True)
class Doom:
    """Who passes this point for the n-th time from now dies there, or freezes."""

    point: str
    passes: int
    pause_for: float = 0.0
    victim: Node | None = None  # who it was


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What a replica's own part of a play is made with."""

    node: Node
    clock: NodeClock
    store: NodeStore
    random: NodeRandom
    telemetry: Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a replica is busy with."""

    kinds: Sequence[JobKind]
    families: Sequence[Owed]
    duties: Sequence[PeriodicDuty] = field(default_factory=tuple)


class Ground(ABC):
    """Everything one seed plays with, but the work itself."""

    subjects: str  # the trigger that tells the witness of changes to what jobs are about

    def __init__(self, loop: VirtualLoop, seed: int, *, replicas: int, pace: Pace, latencies: bool = True) -> None:
        self.loop = loop
        self.latencies = latencies  # whether a call takes time: who is first is then chosen by the seed
        self.dice = random.Random(seed)
        self.pace = pace
        self.ttl = pace.ttl.total_seconds()
        self.truth = Truth(loop, pace.ttl, self._may_take)
        self.chances: dict[str, float] = {}
        self.fired: Counter[str] = Counter()
        self.killed_at: Counter[str] = Counter()
        self.nodes: list[Node] = []
        self.doom: Doom | None = None
        self.deaths = 0
        self.rewinds = 0
        self.noted_epoch = 0  # the newest timeline that the replicas know of
        self.furthest = timedelta(0)  # how far ahead the database's clock ever was
        self.jumped_at = NEVER  # when it last jumped, with nothing else to confuse those who look at it
        self.leases_last_until = 0.0  # a lease from before the database's clock was set back may last so long
        self.doubtful_until = 0.0  # until then a lease may look other than it is: the clock was set, or commits lost
        self.missing: set[str] = set()  # subjects whose job was taken away by hand, and is not back yet
        self.vandalised_at: dict[str, float] = {}
        self.killed_by: Counter[str] = Counter()  # how many a subject killed in a row
        self.accusations: list[str] = []
        self.by_holder: dict[str, Node] = {}
        self._ports: list[tuple[Node, NodeStore]] = []
        self._metrics = Metrics()
        self._migrate()
        for _ in range(replicas):
            self.start_node()

    def _migrate(self) -> None:
        self.truth.transact(migrate.prepare)
        self.truth.transact(lambda tx: migrate.migrate(tx, "sqlite", migrate.bundled(), no_points))
        self.set_up()
        for trigger in (*witness.TRIGGERS, self.subjects):
            self.truth.transact(lambda tx, sql=trigger: tx.run(sql))  # type: ignore[misc]

    # ── what each play does in its own way ──

    @abstractmethod
    def set_up(self) -> None:
        """Tables and CAs, before any replica starts."""

    @abstractmethod
    def parts(self, ports: Ports) -> Parts: ...

    @abstractmethod
    def jobless(self) -> set[str]:
        """Subjects that are under way and have no job."""

    @abstractmethod
    def check_commit(self, note: Note) -> None:
        """What must hold after every commit; raises Violation."""

    @abstractmethod
    def check_all(self) -> None:
        """What is too dear for that."""

    @abstractmethod
    def heal_remotes(self) -> None:
        """From now on the CAs are well."""

    @property
    @abstractmethod
    def requests(self) -> int:
        """How many the CAs have heard."""

    @abstractmethod
    def forget_payments(self, requests: float) -> None:
        """The product does not know any more that it paid for so many requests: it may send them once more."""

    def forgotten(self) -> None:  # noqa: B027 - most plays remember nothing of the kind
        """The last commits are lost; what was concluded from them does not hold."""

    # ── chance ──

    def accuse(self, what: str) -> None:
        self.accusations.append(f"{what} (at {self.loop.time():.1f} s)")

    def latency(self) -> float:
        return self.dice.uniform(0.001, 0.02)

    def chance(self, what: str) -> bool:
        return what in self.chances and self.dice.random() < self.chances[what]

    def within(self, low: float, high: float) -> float:
        """A stretch of time, drawn in the measure of this play's leases: as if they lasted 30 s."""
        return self.dice.uniform(low, high) * self.ttl / 30

    def strikes(self, point: str) -> Doom | None:
        doom = self.doom
        if doom is None or doom.point != point:
            return None
        doom.passes -= 1
        if doom.passes:
            return None
        self.doom = None
        return doom

    # ── replicas ──

    def wake_all(self) -> None:
        """NOTIFY: a hint that may be lost."""
        for store in self.stores:
            if not self.chance("lost wake-up"):
                store.wake.fire()

    @property
    def stores(self) -> list[NodeStore]:
        return [store for node, store in self._ports if node.alive]

    @property
    def standing(self) -> list[Node]:
        return [node for node in self.nodes if node.alive and not node.stop.is_set()]

    def start_node(self) -> Node:
        chance = NodeRandom(random.Random(self.dice.getrandbits(64)), self.loop)
        node = Node(self, f"r{len(self.by_holder) + 1}", chance.new_id("replica"), born_at=self.loop.time())
        clock = NodeClock(node)
        store = NodeStore(node, clock)
        telemetry = Telemetry(log=NodeLog(node), metrics=self._metrics)
        parts = self.parts(Ports(node=node, clock=clock, store=store, random=chance, telemetry=telemetry))
        replica = RunningReplica(
            db=store,
            identity=WorkerIdentity(holder=node.holder, name=node.name),
            pace=self.pace,
            kinds=parts.kinds,
            families=parts.families,
            clock=clock,
            random=chance,
            points=node.point,
            telemetry=telemetry,
            duties=parts.duties,
        )
        node.task = self.loop.create_task(replica.run(node.stop), name=node.name)
        node.task.add_done_callback(lambda task: self._look_into_the_end_of(node, task))
        self.by_holder[node.holder] = node
        self.nodes = [*(other for other in self.nodes if not other.gone), node]
        self._ports = [*((other, ports) for other, ports in self._ports if not other.gone), (node, store)]
        return node

    def replace(self) -> None:
        """Somebody restarts what died."""
        if len(self.standing) < REPLICAS:
            self.start_node()

    def _look_into_the_end_of(self, node: Node, task: asyncio.Task[None]) -> None:
        if node.alive and not task.cancelled() and (error := task.exception()) is not None:
            self.accuse(f"{node.name} died of {error!r}, which was none of the faults")

    # ── what is known of them ──

    def _may_take(self, actor: str, holder: str, job: str) -> bool:
        """Whether there is a reason why a lease ran out, so that another may take the job.

        A clock that was just set is none: all leases seem to have ended, and whoever knew the old time must wait.
        """
        now, taker, node = self.loop.time(), self.by_holder[actor], self.by_holder.get(holder)
        if now < self.jumped_at + self.ttl and taker.knows_the_time_since < self.jumped_at - 3 * self.ttl:
            return False
        return (
            node is None
            or not node.alive
            or node.left_badly
            or job in node.gave_up
            or now < self.doubtful_until
            or now < max(node.paused_until, node.beat_failed_at) + self.ttl
        )

    def doubt_leases(self) -> None:
        self.doubtful_until = self.loop.time() + 2 * self.ttl

    def set_clock(self, offset: timedelta) -> None:
        """Somebody sets the database's clock."""
        alone = self.loop.time() >= self.doubtful_until
        far = abs(offset - self.truth.offset) > CLOCK_JUMP
        self.jumped_at = self.loop.time() if alone and far else NEVER
        if offset < self.truth.offset:  # a lease lasts longer by as much, unless it is absurd when claiming goes on
            self.leases_last_until = self.loop.time() + (1 + ABSURD) * self.ttl
        self.truth.offset = offset
        self.furthest = max(self.furthest, offset)
        self.doubt_leases()
