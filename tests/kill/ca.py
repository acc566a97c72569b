"""One run: a CA with orders in flight is killed at one passage of one named point; its clients go on with the next."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from tests.kill.ca_auditor import problems, two_certificates, under_way
from tests.kill.harness import ELSEWHERE as AWAY
from tests.kill.harness import Case
from tests.support import reaper
from tests.support.acme_client import Signer, es256
from tests.support.acme_patient import OVER, Held, Patient, Routes, Wanted
from tests.support.acme_replica import AcmeReplica, Answerer, an_address
from tests.support.acme_seed import Planted, Seed
from tests.support.child import Strike
from tests.support.grounds import Ground, ground
from tests.support.postgres import Cluster
from tests.support.reaper import PATIENCE

# Several in flight: one with two names, one whose proof is late, one that is wrong.
ORDERS: Final = (
    Wanted("plain", ("127.0.0.1",)),
    Wanted("double", ("127.0.0.2", "127.0.0.3")),
    Wanted("late", ("127.0.0.4",), late=True),
    Wanted("wrong", ("127.0.0.5",), right=False),
)
INVALID: Final = frozenset({"wrong"})
UNHURRIED: Final = frozenset({"late"})  # its second try waits two seconds, whoever lives: that is no recovery
LEASE: Final = 3.0
LASTING: Final = f"--ttl={3 * LEASE:g}"  # a third lease that is lost would be taken for poison
POLL: Final = 1.0
DECIDED_WITHIN: Final = PATIENCE  # an order that is open for longer is stuck
ENDS_WITHIN: Final = PATIENCE
LANES: Final = 8  # runs at a time on one store; most of each is waiting
LOOK_EVERY: Final = 0.02  # seconds
TRIES: Final = 3  # how many passages there are depends a little on timing
# Not passed by a CA that serves, but by a command or towards other CAs; the other parts strike them there.
ELSEWHERE: Final = AWAY | {"key.rewrapped"}


@dataclass(frozen=True, slots=True)
class Scene:
    """What a run begins with, and what its client wants."""

    name: str
    place: Callable[[], AbstractContextManager[Ground]]
    wanted: Sequence[Wanted]
    signer: Signer
    planted: dict[str, Planted] = field(default_factory=dict)


def first_start(folder: Path, cluster: Cluster | None) -> Scene:
    """An empty store: the schema, the keys, the CA and the listener's certificate are all to be made."""
    return Scene("first start", partial(ground, folder, cluster), ORDERS[:1], es256())


def busy(folder: Path, seed: Seed) -> Scene:
    return Scene("busy", partial(seed.grown, folder), ORDERS, seed.signer, seed.orders)


@dataclass(frozen=True, slots=True)
class Outcome:
    case: Case
    fired: bool
    passed: Counter[str]
    problems: list[str]
    stuck: int = 0
    doubled: int = 0
    recovered_for: float = 0.0  # seconds from the death to the last decision on an order that was in flight


class CaHarness:
    """Runs of one scene."""

    def __init__(self, scene: Scene, answerer: Answerer) -> None:
        self._scene = scene
        self._answerer = answerer

    def census(self) -> Counter[str]:
        """How often each point is passed when nobody is killed: of two runs the lower count."""
        with ThreadPoolExecutor(2) as lanes:
            runs = list(lanes.map(lambda _: self.once(None), range(2)))
        for run in runs:
            if run.problems:
                raise AssertionError(f"{self._scene.name} fails without any kill: {run.problems}")
        return runs[0].passed & runs[1].passed

    def run(self, cases: Sequence[Case], lanes: int = LANES) -> Iterator[Outcome]:
        """Kill at each, several at a time, in order."""
        with ThreadPoolExecutor(lanes) as threads:
            yield from threads.map(self.kill_at, cases)

    def kill_at(self, case: Case, tries: int = TRIES) -> Outcome:
        """Kill at this passage; if a run has fewer, near its end: the last ones depend on timing."""
        outcome = self.once(case)
        if outcome.fired or outcome.problems or tries == 1:
            return outcome
        return self.kill_at(Case(case.point, max(1, min(case.nth, outcome.passed[case.point]) * 4 // 5)), tries - 1)

    def once(self, case: Case | None) -> Outcome:
        with self._scene.place() as place:
            return asyncio.run(self._live(place, case))

    async def _live(self, place: Ground, case: Case | None) -> Outcome:
        address = an_address()
        async with client(self._scene.signer, self._answerer, address) as patient:
            work = asyncio.create_task(self._orders(patient))
            strike = None if case is None else Strike("kill", case.point, case.nth)
            with AcmeReplica(place, "victim", address, self._answerer.port, strike=strike) as victim:
                died_at = await _life(victim, work)
                fired, passed = bool(victim.said("kill")), victim.passed()
                if victim.exit_code != (-signal.SIGKILL if fired else 0):
                    work.cancel()
                    wrong = [f"the victim ended with {victim.exit_code}:\n{victim.log()}"]
                    return Outcome(case or Case("", 0), fired, passed, wrong)
            if not fired:
                return await self._judged(case, place, patient, work, passed, died_at, fired=False)
            with AcmeReplica(place, "successor", address, self._answerer.port, LASTING) as successor:
                outcome = await self._judged(case, place, patient, work, passed, died_at, fired=True)
                if outcome.problems:
                    outcome.problems.append(successor.log())
                return outcome

    async def _orders(self, patient: Patient) -> None:
        """Everything that the client wants, at once; also what was begun before this run."""
        for name, planted in self._scene.planted.items():
            patient.know(name, planted.url, planted.key)
            for token in planted.tokens:
                self._answerer.proofs[token] = f"{token}.{patient.signer.thumbprint}"
        await patient.register()
        async with asyncio.TaskGroup() as group:
            for held in list(patient.held.values()):
                group.create_task(patient.follow(held))
            for wanted in self._scene.wanted:
                group.create_task(patient.obtain(wanted))
        await patient.hang_up()  # a server that is told to stop would wait for our side of the connection

    async def _judged(
        self,
        case: Case | None,
        place: Ground,
        patient: Patient,
        work: asyncio.Task[None],
        passed: Counter[str],
        died_at: float,
        *,
        fired: bool,
    ) -> Outcome:
        """Let the client get done, look at every order once more, and at the store."""
        wrong: list[str] = []
        try:
            async with asyncio.timeout(DECIDED_WITHIN):
                await work
                if fired:
                    await asyncio.gather(*(patient.end(held) for held in patient.held.values()))
                    await quiet(place)
        except TimeoutError:
            wrong.append(f"not decided in {DECIDED_WITHIN:g} s: {under_way(place)}")
        except (ExceptionGroup, AssertionError) as error:
            wrong.append(f"the client cannot go on: {error!r}")
        wrong += self._unexpected(patient.held) + await asyncio.to_thread(problems, place, patient.held.values())
        return Outcome(
            case or Case("", 0),
            fired,
            passed,
            wrong,
            stuck=sum(status not in OVER for status in self._statuses(patient.held).values()),
            doubled=two_certificates(place),
            recovered_for=_recovered_for(patient.held.values(), died_at) if fired else 0.0,
        )

    def _unexpected(self, held: dict[str, Held]) -> list[str]:
        found = self._statuses(held)
        hoped = {name: "invalid" if name in INVALID else "valid" for name in found}
        return [f"{name} is {found[name]}, not {hoped[name]}" for name in sorted(found) if found[name] != hoped[name]]

    def _statuses(self, held: dict[str, Held]) -> dict[str, str]:
        """Of all that the client wants, as it was told last."""
        wanted = (*self._scene.planted, *(each.name for each in self._scene.wanted))
        return {name: held[name].status if name in held else "not placed" for name in wanted}


def _recovered_for(held: Iterable[Held], died_at: float) -> float:
    in_flight = [each for each in held if each.known_at < died_at < each.decided_at and each.name not in UNHURRIED]
    return max((each.decided_at - died_at for each in in_flight), default=0.0)


@asynccontextmanager
async def client(signer: Signer, answerer: Answerer, *addresses: str) -> AsyncIterator[Patient]:
    patient = Patient(signer, Routes(addresses), answerer)
    try:
        yield patient
    finally:
        await patient.hang_up()


async def _life(victim: AcmeReplica, work: asyncio.Task[None]) -> float:
    """Until it is dead; when its client has got everything, it is told to stop. The time of its death."""
    loop, dead = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(victim.sentinel, dead.set)
    end = asyncio.create_task(dead.wait())
    try:
        await asyncio.wait({end, work}, timeout=DECIDED_WITHIN, return_when=asyncio.FIRST_COMPLETED)
        if not dead.is_set():
            victim.signal(signal.SIGTERM)
        await asyncio.wait({end}, timeout=ENDS_WITHIN)
        return time.monotonic()
    finally:
        end.cancel()
        loop.remove_reader(victim.sentinel)
        victim.kill()


async def quiet(place: Ground) -> None:
    """Wait until nothing is under way: orders of our own, such as the listener's, come to an end as well."""
    await until(lambda: not under_way(place), "all orders to be decided", every=0.1)


async def until(condition: Callable[[], object], what: str, *, every: float = LOOK_EVERY) -> None:
    await asyncio.to_thread(reaper.until, condition, what, seconds=DECIDED_WITHIN, every=every)
