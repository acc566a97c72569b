"""What can go wrong, drawn from the seed. Each run enables a random part of it (swarm testing), then heals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Final, Protocol, TypeVar

from holdfast.ports import POINTS
from holdfast.store.tx import Tx
from tests.simulation import invariants
from tests.simulation.ground import Doom, Ground
from tests.simulation.node import NEVER, Node

# Points that this workload passes; the others belong to start-up and to keys, and have the kill harness.
POINTS_HERE: Final = sorted(POINTS - {"store.migrating", "key.rewrapped", "http.asking", "http.answered"})

IN_HAND: Final = ("job.claimed", "job.effect-done", "job.settling", "store.after-commit")

# Jobs that the reconciler gives back: ARI is asked for again by its sweep. Those of the watch, which never end, would
# always be the first.
OWED: Final = "WHERE kind NOT IN ('ari', 'watch')"

S = TypeVar("S", bound=Ground, contravariant=True)


class Fault(Protocol[S]):
    """Something that goes wrong, and may take its time."""

    __name__: str

    def __call__(self, stage: S, /) -> Coroutine[None, None, None]: ...


async def kill(stage: Ground) -> None:
    _victim(stage).kill()
    await _reborn(stage)


async def kill_at_a_point(stage: Ground) -> None:
    """Whoever next passes this point, for the n-th time, dies there."""
    point = stage.dice.choice(POINTS_HERE)
    frequent = stage.fired[point] > 200
    stage.doom = Doom(point, stage.dice.randint(1, 4) if frequent else 1)
    dead = stage.deaths
    if point.startswith("lease."):
        _victim(stage).stop.set()  # leases change hands when somebody leaves
    for _ in range(60):
        await asyncio.sleep(stage.ttl / 15)
        if stage.deaths > dead:
            break
    stage.doom = None
    await _reborn(stage)


async def stop_in_good_order(stage: Ground) -> None:
    """Nothing of it may be left behind, unless it said so: then the store was away."""
    victim, rewinds = _victim(stage), stage.rewinds
    victim.stop.set()
    await _reborn(stage)
    if victim.task is None:
        return
    await asyncio.wait({victim.task})
    if victim.alive and not victim.left_badly and stage.rewinds == rewinds:
        for what in stage.truth.peek(lambda tx: invariants.left_behind(tx, victim.holder)):
            stage.accuse(f"{victim.name} stopped in good order and left {what}")


async def pause(stage: Ground) -> None:
    """A frozen process: longer than its leases, and it wakes up believing in them."""
    _victim(stage).freeze(stage.within(20, 120))


async def pause_at_a_point(stage: Ground) -> None:
    """Likewise where it hurts: between the effect and writing it down, say."""
    stage.doom = doom = Doom(stage.dice.choice(POINTS_HERE), 1, pause_for=stage.within(20, 120))
    for _ in range(60):
        await asyncio.sleep(stage.ttl / 15)
        if stage.doom is not doom:
            return
    stage.doom = None


async def overtaken(stage: Ground) -> None:
    """Frozen at a bad moment until another has its job; then it goes on, as if nothing had happened."""
    stage.doom = doom = Doom(stage.dice.choice(IN_HAND), 1, pause_for=6 * stage.ttl)
    for _ in range(60):
        await asyncio.sleep(stage.ttl / 15)
        if stage.doom is not doom:
            break
    victim = doom.victim
    if victim is None:
        return
    victim.deaf = doom.point == "store.after-commit"
    watched = stage.truth.peek(lambda tx: _held(tx, victim.holder, recently=victim.deaf))
    stage.chances["slow"] = 0.9
    while stage.loop.time() < victim.paused_until:
        await asyncio.sleep(stage.ttl / 60)
        if watched & stage.truth.peek(lambda tx: _held_by_others(tx, victim.holder)):
            victim.thaw()
    stage.chances.pop("slow", None)


def _held(tx: Tx, holder: str, *, recently: bool) -> set[str]:
    """What a replica is at work on, or may just have answered about: then anything that waits."""
    state = "state = 'ready'" if recently else "state = 'running' AND holder = :holder"
    return {row["subject"] for row in tx.rows(f"SELECT subject FROM jobs WHERE {state}", holder=holder)}


def _held_by_others(tx: Tx, holder: str) -> set[str]:
    rows = tx.rows("SELECT subject FROM jobs WHERE state = 'running' AND holder <> :holder", holder=holder)
    return {row["subject"] for row in rows}


async def set_a_replicas_clock(stage: Ground) -> None:
    _victim(stage).wall_offset = timedelta(seconds=stage.dice.uniform(-3600, 3600))


async def database_down(stage: Ground) -> None:
    stage.truth.down_until = stage.loop.time() + stage.within(2, 90)


async def cut_off_from_the_database(stage: Ground) -> None:
    """One replica alone: the others take over what it holds."""
    _victim(stage).cut_off_until = stage.loop.time() + stage.within(10, 120)


async def flaky_commits(stage: Ground) -> None:
    await _for_a_while(stage, "fail before commit", 0.2)


async def lost_commit_answers(stage: Ground) -> None:
    await _for_a_while(stage, "fail after commit", 0.2)


async def rewind(stage: Ground) -> None:
    """Asynchronous failover: the last commits are lost although they were acknowledged."""
    before, asked = stage.truth.remember(), stage.requests
    await asyncio.sleep(stage.dice.uniform(0.05, 3))
    stage.truth.rewind(before)
    stage.rewinds += 1
    stage.doubt_leases()
    stage.forget_payments(stage.requests - asked)
    stage.forgotten()
    stage.missing |= stage.jobless()  # taken away by hand, and restored in what was lost
    stage.killed_by.clear()


async def lost_replies(stage: Ground) -> None:
    await _for_a_while(stage, "lost reply", 0.4)


async def slow_ca(stage: Ground) -> None:
    """Answers that take longer than a lease lasts."""
    await _for_a_while(stage, "slow", 0.7)


async def hanging_ca(stage: Ground) -> None:
    await _for_a_while(stage, "hang", 0.3)


async def lost_wake_ups(stage: Ground) -> None:
    await _for_a_while(stage, "lost wake-up", 0.9)


async def vandal(stage: Ground) -> None:
    """Somebody deletes a job row by hand: the reconciler must give the subject its job back."""
    job = stage.truth.peek(lambda tx: tx.row(f"SELECT id, subject FROM jobs {OWED} ORDER BY id LIMIT 1"))
    if job is None:
        return
    stage.missing.add(job["subject"])
    stage.vandalised_at[job["subject"]] = stage.loop.time()
    stage.killed_by.pop(job["subject"], None)
    stage.truth.transact(lambda tx: tx.run("DELETE FROM jobs WHERE id = :id", id=job["id"]))


OF_THE_ENGINE: Final[tuple[Fault[Ground], ...]] = (
    kill, kill_at_a_point, stop_in_good_order, pause, pause_at_a_point, overtaken, set_a_replicas_clock,
    database_down, cut_off_from_the_database, flaky_commits, lost_commit_answers, rewind,
    lost_replies, slow_ca, hanging_ca, lost_wake_ups, vandal,
)  # fmt: skip


async def rage(stage: S, until: float, note: Callable[[str], None], faults: Sequence[Fault[S]]) -> None:
    """Draw faults until the time is up, then heal everything."""
    enabled = [fault for fault in faults if stage.dice.random() < 0.5] or [kill]
    await strike(stage, until, note, enabled, every=25 * stage.ttl / 30)


async def strike(
    stage: S, until: float, note: Callable[[str], None], faults: Sequence[Fault[S]], *, every: float
) -> None:
    """Likewise with all of these, and about so many seconds between two of them."""
    under_way: set[asyncio.Task[None]] = set()
    while stage.loop.time() < until:
        await asyncio.sleep(stage.dice.expovariate(1 / every))
        fault = stage.dice.choice(faults)
        note(fault.__name__)
        task = stage.loop.create_task(fault(stage))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    if under_way:
        await asyncio.wait(under_way)
    heal(stage)


def heal(stage: Ground) -> None:
    if stage.furthest or stage.truth.offset:
        # Set back to the right time, what was planned by a clock that was ahead has hours to wait: one run in five.
        stage.set_clock(timedelta(0) if stage.dice.random() < 0.2 else stage.furthest)
    stage.chances.clear()
    stage.truth.down_until = 0.0
    stage.heal_remotes()
    for node in stage.nodes:
        node.thaw()
        node.cut_off_until = NEVER
    stage.doom = None
    while len(stage.standing) < 2:
        stage.start_node()


def _victim(stage: Ground) -> Node:
    return stage.dice.choice(stage.standing or [stage.start_node()])


async def _reborn(stage: Ground) -> None:
    await asyncio.sleep(stage.within(1, 45))
    stage.replace()


async def _for_a_while(stage: Ground, what: str, probability: float) -> None:
    stage.chances[what] = probability
    await asyncio.sleep(stage.within(5, 60))
    stage.chances.pop(what, None)
