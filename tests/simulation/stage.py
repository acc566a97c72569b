"""The stage of the errands: the bare engine, one CA that counts every request, and what faults excuse.

Errands stay beside the lifecycle (life_stage.py): a job here is one request, so that the witness can hold each request
against the lease and the budget that paid for it, while clocks jump by hours; certificates would expire of that.
"""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import timedelta
from typing import Final

from holdfast.core.issuers.budget import Limit
from holdfast.core.work.job import CRASHES_IN_COMPANY
from holdfast.engine.replica import Pace
from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.store.tx import Tx, to_micros
from tests.simulation import errands, invariants
from tests.simulation.clockwork import VirtualLoop
from tests.simulation.ground import Ground, Parts, Ports
from tests.simulation.node import NEVER, Killed, Node, NodeTransport
from tests.simulation.remote import FakeCa, key_of
from tests.simulation.witness import Note

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


class Stage(Ground):
    """Everything one seed plays with."""

    subjects = "CREATE TRIGGER witness_errand AFTER UPDATE ON errands BEGIN SELECT saw_change(NEW.id, NULL); END"

    def __init__(self, loop: VirtualLoop, seed: int, replicas: int) -> None:
        self.ca = FakeCa(limit=LIMIT)
        self.held = (0, 0)  # since when it is known, and until when, that the CA wants to be left alone; its clock
        self.miscounted_at = NEVER  # when the product last forgot what was paid: the clock was set, or commits lost
        self.poison: set[str] = set()  # errands that kill whoever works on them
        self.acknowledged: list[str] = []
        super().__init__(loop, seed, replicas=replicas, pace=PACE)
        self.arrivals = [self.dice.uniform(0, 1400) for _ in range(4)]  # clients come in crowds

    def set_up(self) -> None:
        self.truth.transact(lambda tx: errands.set_up(tx, LIMIT))

    def parts(self, ports: Ports) -> Parts:
        transport = NodeTransport(ports.node, self)
        kind = errands.kind(ports.store, transport, ports.clock, "http://ca.test")
        return Parts(kinds=[kind], families=[errands.owed(ports.random)])

    def jobless(self) -> set[str]:
        return set(self.truth.peek(errands.jobless))

    def check_commit(self, note: Note) -> None:
        invariants.after_commit(self, note)

    def check_all(self) -> None:
        invariants.now_and_then(self)

    def heal_remotes(self) -> None:
        self.ca.down_until = self.ca.storm_until = 0.0
        self.poison.clear()

    @property
    def requests(self) -> int:
        return self.ca.requests

    # ── what faults excuse ──

    def set_clock(self, offset: timedelta) -> None:
        if offset > self.truth.offset:  # budgets live by this clock: what it skips seems to have been paid off
            self.forget_payments((offset - self.truth.offset) / LIMIT.every)
        super().set_clock(offset)
        self.held = (0, 0)

    def forgotten(self) -> None:
        self.held = (0, 0)

    def forget_payments(self, requests: float) -> None:
        self.ca.forgive(requests)
        self.miscounted_at = self.loop.time()

    def note_claims(self, actor: str | None, subjects: list[str]) -> None:
        if actor is not None:
            self.by_holder[actor].paid_at |= dict.fromkeys(subjects, self.loop.time())

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
        if self.killed_by[errand] > CRASHES_IN_COMPANY:
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
