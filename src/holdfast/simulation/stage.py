"""The stage: one database, one CA, and the replicas between them; and all that is known of what was done to them."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from holdfast.core.budget import Limit
from holdfast.core.job import CRASHES_TO_QUARANTINE
from holdfast.engine.replica import Pace, Replica
from holdfast.engine.worker import CLOCK_JUMP, Identity
from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.ports import no_points
from holdfast.simulation import errands, witness
from holdfast.simulation.clockwork import VirtualLoop
from holdfast.simulation.node import NEVER, Killed, Node, NodeClock, NodeLog, NodeRandom, NodeStore, NodeTransport
from holdfast.simulation.remote import FakeCa, key_of
from holdfast.simulation.truth import Truth
from holdfast.store import migrate
from holdfast.store.leases import ABSURD
from holdfast.store.tx import Tx, to_micros
from holdfast.telemetry import Metrics, Telemetry

REPLICAS: Final = 3
PACE: Final = Pace(
    poll=timedelta(seconds=10),
    ttl=timedelta(seconds=30),
    drain=timedelta(seconds=20),
    retry=timedelta(seconds=60),
    reconcile=timedelta(seconds=30),
    timeout=timedelta(minutes=5),
    cleanup=timedelta(minutes=20),
)
TTL: Final = PACE.ttl.total_seconds()


LIMIT: Final = Limit(burst=6, every=timedelta(seconds=6))  # tight: it must bind whenever many come together


@dataclass(slots=True)
class Doom:
    """Who passes this point for the n-th time from now dies there, or freezes."""

    point: str
    passes: int
    pause_for: float = 0.0
    victim: Node | None = None  # who it was


class Stage:
    """Everything one seed plays with."""

    def __init__(self, loop: VirtualLoop, seed: int, replicas: int) -> None:
        self.loop = loop
        self.dice = random.Random(seed)  # noqa: S311 - a simulation must be repeatable
        self.truth = Truth(loop, PACE.ttl, self._may_take)
        self.ca = FakeCa(limit=LIMIT)
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
        self.held = (0, 0)  # since when it is known, and until when, that the CA wants to be left alone; its clock
        self.miscounted_at = NEVER  # when the product last forgot what was paid: the clock was set, or commits lost
        self.leases_last_until = 0.0  # a lease from before the database's clock was set back may last so long
        self.doubtful_until = 0.0  # until then a lease may look other than it is: the clock was set, or commits lost
        self.missing: set[str] = set()  # errands whose job was taken away by hand, and is not back yet
        self.vandalised_at: dict[str, float] = {}
        self.poison: set[str] = set()  # errands that kill whoever works on them
        self.killed_by: Counter[str] = Counter()  # how many an errand killed in a row
        self.arrivals = [self.dice.uniform(0, 1400) for _ in range(4)]  # clients come in crowds
        self.acknowledged: list[str] = []
        self.accusations: list[str] = []
        self._ports: list[tuple[Node, NodeStore]] = []
        self._by_holder: dict[str, Node] = {}
        self._metrics = Metrics()
        self._migrate()
        for _ in range(replicas):
            self.start_node()

    def _migrate(self) -> None:
        self.truth.transact(migrate.prepare)
        self.truth.transact(lambda tx: migrate.migrate(tx, "sqlite", migrate.bundled(), no_points))
        self.truth.transact(lambda tx: errands.set_up(tx, LIMIT))
        for trigger in witness.TRIGGERS:
            self.truth.transact(lambda tx, sql=trigger: tx.run(sql))  # type: ignore[misc]

    def accuse(self, what: str) -> None:
        self.accusations.append(f"{what} (at {self.loop.time():.1f} s)")

    # ── chance ──

    def latency(self) -> float:
        return self.dice.uniform(0.001, 0.02)

    def chance(self, what: str) -> bool:
        return what in self.chances and self.dice.random() < self.chances[what]

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
        chance = NodeRandom(random.Random(self.dice.getrandbits(64)), self.loop)  # noqa: S311
        node = Node(self, f"r{len(self._by_holder) + 1}", chance.new_id("replica"), born_at=self.loop.time())
        clock = NodeClock(node)
        store = NodeStore(node, clock)
        replica = Replica(
            db=store,
            identity=Identity(holder=node.holder, name=node.name),
            pace=PACE,
            kinds=[errands.kind(store, NodeTransport(node), clock, "http://ca.test")],
            families=[errands.owed(chance)],
            clock=clock,
            random=chance,
            points=node.point,
            telemetry=Telemetry(log=NodeLog(node), metrics=self._metrics),
        )
        node.task = self.loop.create_task(replica.run(node.stop), name=node.name)
        node.task.add_done_callback(lambda task: self._look_into_the_end_of(node, task))
        self._by_holder[node.holder] = node
        self.nodes = [*(other for other in self.nodes if other.alive), node]
        self._ports = [*((other, ports) for other, ports in self._ports if other.alive), (node, store)]
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
        now, taker, node = self.loop.time(), self._by_holder[actor], self._by_holder.get(holder)
        if now < self.jumped_at + TTL and taker.knows_the_time_since < self.jumped_at - 3 * TTL:
            return False
        return (
            node is None
            or not node.alive
            or node.left_badly
            or job in node.gave_up
            or now < self.doubtful_until
            or now < max(node.paused_until, node.beat_failed_at) + TTL
        )

    def doubt_leases(self) -> None:
        self.doubtful_until = self.loop.time() + 2 * TTL

    def set_clock(self, offset: timedelta) -> None:
        """Somebody sets the database's clock."""
        alone = self.loop.time() >= self.doubtful_until
        far = abs(offset - self.truth.offset) > CLOCK_JUMP
        self.jumped_at = self.loop.time() if alone and far else NEVER
        if offset > self.truth.offset:  # budgets live by this clock: what it skips seems to have been paid off
            self.forget_payments((offset - self.truth.offset) / LIMIT.every)
        elif offset < self.truth.offset:  # a lease lasts longer by as much, unless it is absurd when claiming goes on
            self.leases_last_until = self.loop.time() + (1 + ABSURD) * TTL
        self.truth.offset = offset
        self.furthest = max(self.furthest, offset)
        self.held = (0, 0)
        self.doubt_leases()

    def forget_payments(self, requests: float) -> None:
        """The product does not know any more that it paid for so many requests: it may send them once more."""
        self.ca.forgive(requests)
        self.miscounted_at = self.loop.time()

    def note_claims(self, actor: str | None, subjects: list[str]) -> None:
        if actor is not None:
            self._by_holder[actor].paid_at |= dict.fromkeys(subjects, self.loop.time())

    def late(self, node: Node, path: str) -> bool:
        """Whether the replica was frozen, or the count lost, between paying for a request and sending it."""
        # A budget is paid at the claim, and work.check() vouches for the lease alone: whoever freezes between them, for
        # less than a lease lasts, asks when others have already been given what was paid off meanwhile.
        return node.paid_at.get(key_of(path), NEVER) < max(node.paused_until, self.miscounted_at)

    def note_hold(self, errand: str) -> None:
        """It was written down that the CA wants to be left alone: from now on nobody may set out to ask it."""
        now, left = to_micros(self.truth.now()), self.ca.told_until.get(errand, 0.0) - self.loop.time()
        if left > 0:
            self.held = (now, now + int(left * 1_000_000))

    def note_request(self, node: Node, path: str) -> None:
        """A replica is about to act on the outside world: the job must be its own, by the database's clock."""
        errand = key_of(path)
        if self.loop.time() < max(self.doubtful_until, self.vandalised_at.get(errand, NEVER) + TTL):
            return
        claimed_at = self.truth.peek(lambda tx: _claimed_at(tx, node, errand))
        if claimed_at is None:
            self.accuse(f"{node.name} asked the CA about {errand} without holding its job")
        elif self.held[0] < claimed_at < self.held[1]:
            self.accuse(f"{node.name} set out to ask the CA about {errand} although it wants to be left alone")

    def is_poison(self, path: str) -> bool:
        return key_of(path) in self.poison

    def poisoned(self, node: Node, path: str) -> None:
        errand = key_of(path)
        node.kill()
        if self.truth.peek(lambda tx: _claimed_at(tx, node, errand)) is not None:  # others are dead without a trace
            self.killed_by[errand] += 1
        if self.killed_by[errand] > CRASHES_TO_QUARANTINE:
            self.accuse(f"{errand} killed {self.killed_by[errand]} workers in a row and was never quarantined")
        self.loop.call_later(self.dice.uniform(1, 30), self.replace)

    # ── a client ──

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


def _claimed_at(tx: Tx, node: Node, errand: str) -> int | None:
    """Since when this replica holds the errand's job; None if it does not."""
    held = tx.row(
        """SELECT started_at FROM jobs WHERE kind = :kind AND subject = :errand AND state = 'running'
              AND holder = :holder AND lease_until > now_us()""",
        holder=node.holder,
        kind=errands.KIND,
        errand=errand,
    )
    return None if held is None else int(held["started_at"])
