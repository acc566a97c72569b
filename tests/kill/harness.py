"""One run: a replica that lives through every named point is killed at one passage of one of them, and succeeded."""

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path
from typing import Final, Literal

from holdfast.ports import POINTS
from tests.kill.auditor import Promise, problems
from tests.support.ca_server import Ca, CaServer
from tests.support.child import Strike
from tests.support.grounds import Ground, ground
from tests.support.postgres import Cluster
from tests.support.processes import Child

ASKED: Final = ("e1", "e2", "e3")
ORPHAN: Final = "e4"  # its job is gone: work for the reconciler
FAILING: Final = "e2"  # its first order is refused for now: work for the retry sweep
SLOW: Final = "e3"  # its answers take a while: held over a heartbeat
SECRETS: Final = ("s1", "s2", "s3")
WISHES: Final = (
    f"--ask={','.join(ASKED)}", f"--orphan={ORPHAN}", f"--secret={','.join(SECRETS)}", "--leave",
    "--ttl=6", "--poll=0.2", "--sweep=0.2", "--wait=0.05",
)  # fmt: skip
LASTING: Final = "--ttl=60"  # a third lease that is lost would be taken for poison
TRIES: Final = 3  # how many commits there are depends a little on timing
# Requests to CAs are struck in the issuance part, bundles in the deployment part. What a database may forget, and
# backups of it, are struck by tests/faults/test_lost_commits.py and test_backup.py, as far as they are.
UNPROVED: Final = frozenset(
    {"witness.written", "recovery.entered", "recovery.replayed", "backup.writing", "restore.table", "restore.loaded"}
)
ELSEWHERE: Final = UNPROVED | {
    *("http.asking", "http.answered", "bundle.written", "bundle.switched", "bundle.replacing", "deployment.committed")
}
LANES: Final = 3  # runs at a time on one store; most of each is waiting


@dataclass(frozen=True, slots=True)
class Case:
    """Where to kill."""

    point: str
    nth: int


@dataclass(frozen=True, slots=True)
class Outcome:
    case: Case
    fired: bool
    passages: int  # of this point, in this run
    problems: list[str]


@dataclass(slots=True)
class Tally:
    """What became of all the runs on one store."""

    engine: str
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def fired(self) -> int:
        return sum(outcome.fired for outcome in self.outcomes)

    @property
    def percent(self) -> float:
        return 100 * self.fired / len(self.outcomes)

    @property
    def unfired(self) -> list[Case]:
        """Passages that never came, and points without any."""
        points = {outcome.case.point for outcome in self.outcomes}
        return [outcome.case for outcome in self.outcomes if not outcome.fired] + [
            Case(point, 0) for point in sorted(POINTS - ELSEWHERE - points)
        ]

    @property
    def bad(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.problems]


class Harness:
    """Runs on one store: SQLite in the folder, or databases of the cluster."""

    def __init__(self, folder: Path, cluster: Cluster | None, server: CaServer) -> None:
        self._folder = folder
        self._cluster = cluster
        self._server = server
        self.engine: Literal["sqlite", "postgresql"] = "postgresql" if cluster else "sqlite"

    def census(self) -> Counter[str]:
        """How often each point is passed when nobody is killed: of two runs the lower count."""
        first, second = (self._undisturbed() for _ in range(2))
        return first & second

    def every(self, counts: Counter[str]) -> list[Case]:
        return [Case(point, nth) for point in sorted(counts) for nth in range(1, counts[point] + 1)]

    def first_and_last(self, counts: Counter[str]) -> list[Case]:
        return [Case(point, nth) for point in sorted(counts) for nth in sorted({1, counts[point]})]

    def run(self, cases: Iterable[Case]) -> Iterator[Outcome]:
        """Kill at each, several at a time, in order."""
        with ThreadPoolExecutor(LANES) as lanes:
            yield from lanes.map(self.kill_at, cases)

    def beyond(self, counts: Counter[str]) -> Iterator[Outcome]:
        """Go on past the census, at each point for as long as there is one more passage to kill at."""

        def at(point: str) -> list[Outcome]:
            further = (self.kill_at(Case(point, nth), tries=1) for nth in count(counts[point] + 1))
            return list(takewhile(lambda outcome: outcome.fired or outcome.problems, further))

        with ThreadPoolExecutor(LANES) as lanes:
            for outcomes in lanes.map(at, sorted(counts)):
                yield from outcomes

    def kill_at(self, case: Case, tries: int = TRIES) -> Outcome:
        """Kill at this passage; if a run has fewer, at its last one."""
        outcome = self._once(case)
        if outcome.fired or outcome.problems or tries == 1:
            return outcome
        return self.kill_at(Case(case.point, max(1, min(case.nth, outcome.passages))), tries - 1)

    def _once(self, case: Case) -> Outcome:
        with ground(self._folder, self._cluster) as place:
            ca = self._a_ca()
            strike = Strike("kill", case.point, case.nth)
            with Child(place, ca.base, place.folder / "victim", *WISHES, strike=strike) as victim:
                code = victim.wait()
                fired, passages = bool(victim.said("kill")), victim.passed()[case.point]
                if code != (-9 if fired else 0):
                    return Outcome(case, fired, passages, [f"the victim ended with {code}:\n{victim.log()}"])
            wrong = self._succeed(place, ca) if fired else []
            promise = Promise(errands=(*ASKED, ORPHAN), secrets=SECRETS, kills=int(fired))
            return Outcome(case, fired, passages, wrong or problems(place, ca, promise))

    def _succeed(self, place: Ground, ca: Ca) -> list[str]:
        """What the victim held is free after its lease time; here that time passes at once."""
        place.let_leases_expire()
        ca.slow.clear()
        with Child(place, ca.base, place.folder / "successor", *WISHES, LASTING) as successor:
            try:
                code = successor.wait()
            except TimeoutError:
                return [f"the successor does not get done:\n{successor.log()}"]
            return [] if code == 0 else [f"the successor ended with {code}:\n{successor.log()}"]

    def _undisturbed(self) -> Counter[str]:
        with ground(self._folder, self._cluster) as place:
            ca = self._a_ca()
            with Child(place, ca.base, place.folder / "census", *WISHES) as child:
                if child.wait() != 0:
                    raise AssertionError(child.log())
                counts = child.passed()
            wrong = problems(place, ca, Promise(errands=(*ASKED, ORPHAN), secrets=SECRETS))
            if wrong:
                raise AssertionError(f"the workload fails without any kill: {wrong}")
            return counts

    def _a_ca(self) -> Ca:
        ca = self._server.open()
        ca.failing.add(FAILING)
        ca.slow[SLOW] = 0.35
        return ca
