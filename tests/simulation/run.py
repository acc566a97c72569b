"""One seed, one run: faults for half an hour of virtual time, then peace, in which everything due must get done."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Final, TypeVar

from holdfast.store import journal
from holdfast.store.tx import Tx
from holdfast.store.work import jobs
from tests.simulation import errand_faults, faults, invariants
from tests.simulation.clockwork import VirtualLoop
from tests.simulation.ground import REPLICAS, Ground
from tests.simulation.invariants import Violation
from tests.simulation.stage import TTL, Stage
from tests.simulation.witness import Note

FAULTS_FOR: Final = 1800.0
PEACE_FOR: Final = 4 * 3600.0
ERRANDS: Final = 25
REFUSED_EVERY: Final = 10  # of the errands, one in so many is refused by the CA while faults rage
POISON: Final = (7, 15)  # and these kill whoever works on them

S = TypeVar("S", bound=Ground)


@dataclass(slots=True)
class Result:
    seed: int
    what: str = "errands"
    audit_hash: str = ""
    commits: int = 0
    requests: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    killed_at: Counter[str] = field(default_factory=Counter)
    violation: str = ""
    trace: list[str] = field(default_factory=list)


Story = Callable[[S, "Result"], Coroutine[None, None, None]]


def play(seed: int, *, trace: bool = False) -> Result:
    """Run one seed of errands to its end. The same seed gives the same audit hash, on any machine."""
    return perform(
        lambda loop: Stage(loop, seed, replicas=REPLICAS),
        lambda stage, result: _story(stage, result, trace),
        Result(seed),
    )


def perform(make: Callable[[VirtualLoop], S], story: Story[S], result: Result, *, every: int = 200) -> Result:
    """Play a story on a stage of its own, and gather what became of it."""
    loop = VirtualLoop()
    loop.set_exception_handler(lambda _loop, _context: None)  # the dead die loudly; nobody has to hear it
    stage: S | None = None
    try:
        asyncio.set_event_loop(loop)
        stage = make(loop)
        watch(stage, every)
        loop.run_until_complete(story(stage, result))
    except Violation as violation:
        result.violation = str(violation)
    finally:
        if stage is not None:
            _gather(stage, result)
        _bury(loop)
        if stage is not None:
            stage.truth.close()
    return result


def watch(stage: Ground, every: int) -> None:
    """From now on every commit is looked at, and now and then everything."""

    def check(done: Note) -> None:
        try:
            stage.check_commit(done)
            if stage.truth.commits % every == 0:
                stage.check_all()
        except Violation as violation:
            stage.accuse(str(violation))

    stage.truth.on_commit = check


def noted(stage: Ground, result: Result, *, trace: bool) -> Callable[[str], None]:
    """How faults are written down."""

    def note(name: str) -> None:
        result.faults[name] += 1
        if trace:
            result.trace.append(f"{stage.loop.time():9.2f} {name}")

    return note


async def _story(stage: Stage, result: Result, trace: bool) -> None:
    note = noted(stage, result, trace=trace)
    clients = [stage.loop.create_task(_client(stage, number)) for number in range(ERRANDS)]
    raging = stage.loop.create_task(faults.rage(stage, FAULTS_FOR, note, errand_faults.ALL))
    while not (raging.done() and all(client.done() for client in clients)):
        await pass_time(stage, 5)
    for finished in (raging, *clients):
        await finished
    await _peace(stage)
    invariants.now_and_then(stage)
    await stop_all(stage)


async def pass_time(stage: Ground, seconds: float) -> None:
    """Let time pass, and see whether anybody broke a promise in it."""
    await asyncio.sleep(seconds)
    if stage.accusations:
        raise Violation(stage.accusations[0])


async def _client(stage: Stage, number: int) -> None:
    name = f"errand-{number:03d}"
    await asyncio.sleep(stage.arrivals[number % len(stage.arrivals)] + stage.dice.uniform(0, 5))
    if number % REFUSED_EVERY == 0:
        stage.ca.refused.add(name)
    if number in POISON:
        stage.poison.add(name)
    await stage.ask(name)
    stage.acknowledged.append(name)


async def _peace(stage: Stage) -> None:
    """I12: when faults stop, everything due is done. What died for a reason is requeued by a person first."""
    stage.ca.refused.clear()
    end = stage.loop.time() + PEACE_FOR
    inherited_by = max(stage.loop.time() + 6 * TTL, stage.leases_last_until + 2 * TTL)
    while stage.loop.time() < end:
        await pass_time(stage, 60)
        if stage.loop.time() > inherited_by:
            invariants.nothing_is_left_to_the_dead(stage)
        _, wakes = stage.truth.transact(requeue_dead)
        if wakes:
            stage.wake_all()
        if not stage.truth.look(invariants.unfinished) and not stage.truth.look(_live_jobs):
            missing = [] if stage.rewinds else [n for n in stage.acknowledged if n not in stage.ca.certificates]
            if missing:
                raise Violation(f"I1: {missing} were acknowledged and never ordered")
            return
    raise Violation(
        f"I12: {PEACE_FOR:.0f} s after the last fault {stage.truth.look(invariants.unfinished)} are not done"
    )


def requeue_dead(tx: Tx) -> None:
    """As a person would; one that has a live twin is not needed."""
    for row in tx.rows("SELECT id, kind, subject FROM jobs WHERE state = 'dead' ORDER BY id"):
        if jobs.live(tx, row["kind"], row["subject"]) is None:
            jobs.requeue(tx, row["id"])


def _live_jobs(tx: Tx) -> int:
    return int(tx.rows("SELECT COUNT(*) AS n FROM jobs WHERE state <> 'dead'")[0]["n"])


async def stop_all(stage: Ground) -> None:
    """A stop in good order leaves nothing running, no lease held, and no name on the list."""
    standing = stage.standing
    for node in standing:
        node.stop.set()
    tasks = [node.task for node in stage.nodes if node.task is not None]
    await asyncio.wait(tasks, timeout=2 * stage.ttl)
    if not all(task.done() for task in tasks):
        raise Violation(f"a replica did not stop within {2 * stage.ttl:.0f} s")
    for node in standing:
        for what in stage.truth.peek(lambda tx, node=node: invariants.left_behind(tx, node.holder)):  # type: ignore[misc]
            raise Violation(f"{node.name} stopped in good order and left {what}")


def _gather(stage: Ground, result: Result) -> None:
    result.audit_hash = stage.truth.look(journal.audit_head)[1]
    result.commits, result.requests = stage.truth.commits, stage.requests
    result.fired, result.killed_at = stage.fired, stage.killed_at


def _bury(loop: VirtualLoop) -> None:
    """Cancel what is left and forget it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=1))
        asyncio.set_event_loop(None)
        loop.close()
