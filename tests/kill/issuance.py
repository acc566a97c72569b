"""One run: a replica that obtains a certificate is killed at one passage of one point; the next one goes on."""

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.kill.harness import Case
from tests.kill.issuance_auditor import Finding, audit
from tests.kill.issuance_cas import Ca, CaOfOneRun, Truth
from tests.support import issuing_child
from tests.support.acme_seed import Seed
from tests.support.child import Strike
from tests.support.forks import preload
from tests.support.grounds import Ground, PostgresGround, look
from tests.support.postgres import Cluster
from tests.support.processes import Child
from tests.support.reaper import PATIENCE, until

preload(issuing_child.__name__)
# Of an issuance: each commit, each request to the CA, each step of its job.
POINTS: Final = frozenset(
    {
        "store.before-commit", "store.after-commit", "http.asking", "http.answered",
        "job.claimed", "job.effect-done", "job.settling", "job.settled",
    }
)  # fmt: skip
TRIES: Final = 3
LANES: Final = 6


class Issuing(Child):
    """The replica in a process of its own."""

    def __init__(self, ground: Ground, ca: Path, name: str, *wishes: str, strike: Strike | None = None) -> None:
        options = (f"--ca={ca}", *wishes)
        self._start(issuing_child.main, ground, ground.folder / f"{name}.report", name, *options, strike=strike)


@dataclass(frozen=True, slots=True)
class Outcome:
    case: Case
    fired: bool
    passed: Counter[str]
    problems: list[str]
    truth: Truth | None = None
    keyless: int = 0


class IssuanceHarness:
    """Runs at one CA, on one store."""

    def __init__(self, ca: Ca, folder: Path, seed: Seed) -> None:
        self._ca, self._folder, self._seed = ca, folder, seed

    @property
    def name(self) -> str:
        return f"{self._ca.name} {'postgresql' if self._seed.cluster else 'sqlite'}"

    def census(self) -> Counter[str]:
        """How often each point is passed when nobody is killed: of two runs the lower count."""
        runs = [self.once(None) for _ in range(2)]
        for run in runs:
            if run.problems:
                raise AssertionError(f"{self.name} fails without any kill: {run.problems}")
        counts = runs[0].passed & runs[1].passed
        return Counter({point: n for point, n in counts.items() if point in POINTS})

    def run(self, cases: Sequence[Case], lanes: int = LANES) -> Iterator[Outcome]:
        with ThreadPoolExecutor(lanes) as threads:
            yield from threads.map(self.kill_at, cases)

    def kill_at(self, case: Case, tries: int = TRIES) -> Outcome:
        """Kill at this passage; if a run has fewer, near its end: the last ones depend on timing."""
        outcome = self.once(case)
        if outcome.fired or outcome.problems or tries == 1:
            return outcome
        return self.kill_at(Case(case.point, max(1, min(case.nth, outcome.passed[case.point]) * 4 // 5)), tries - 1)

    def once(self, case: Case | None) -> Outcome:
        with self._seed.grown(self._folder) as place, self._ca.open() as ca:
            where = place.folder / "ca.json"
            where.write_text(json.dumps(ca.description))
            if ca.solvers:
                (place.folder / "solvers.toml").write_text(ca.solvers)
            strike = None if case is None else Strike("kill", case.point, case.nth)
            with Issuing(place, where, "victim", strike=strike) as victim:
                wrong, fired, passed = _ended(victim)
            doubted = False
            if fired and not wrong:
                time_passes(place, hours=1)
                ca.an_hour_passes()
                wrong, doubted = self._succeeded(place, where, ca)
            found = Finding([], 0, None) if wrong else asyncio.run(audit(place, ca, kills=int(fired), doubted=doubted))
            return Outcome(
                case or Case("", 0), fired, passed, wrong + found.problems, truth=found.truth, keyless=found.keyless
            )

    def _succeeded(self, place: Ground, where: Path, ca: CaOfOneRun) -> tuple[list[str], bool]:
        """The next life. If nobody can tell whether there is an order, and there is none, a person says: order it."""
        with Issuing(place, where, "successor") as successor:
            until(
                lambda: successor.exit_code is not None or _in_doubt(place, ca),
                "the successor's end",
                every=0.05,
            )
            if successor.exit_code is not None:
                return _ended(successor)[0], False
        time_passes(place, hours=25)
        with Issuing(place, where, "heir", "--anew") as heir:
            return _ended(heir)[0], True


def _in_doubt(place: Ground, ca: CaOfOneRun) -> bool:
    if not ca.doubtful or ca.known():
        return False
    return bool(look(place, lambda tx: tx.rows("SELECT id FROM issuances WHERE uncertain_since IS NOT NULL")))


def _ended(life: Issuing) -> tuple[list[str], bool, Counter[str]]:
    try:
        code = life.wait(PATIENCE)
    except TimeoutError:
        return [f"{life.report.stem} does not get done:\n{life.log()}"], False, life.passed()
    fired = bool(life.said("kill"))
    good = code == (-9 if fired else 0)
    return [] if good else [f"{life.report.stem} ended with {code}:\n{life.log()}"], fired, life.passed()


def time_passes(place: Ground, *, hours: int) -> None:
    """What the dead one held is free, what it began is old. CAs have clocks of their own, so that none is set."""
    statements = [
        f"UPDATE {table} SET {column} = {column} - {hours * 3_600_000_000}"
        for table, column in (
            ("jobs", "lease_until"), ("leases", "until"), ("issuances", "asked_at"), ("issuances", "uncertain_since"),
        )
    ]  # fmt: skip
    if isinstance(place, PostgresGround):
        session = place.open()
        try:
            for each in statements:
                session.execute(each, {})
        finally:
            session.close()
        return
    db = sqlite3.connect(place.store, timeout=PATIENCE, isolation_level=None)
    for each in statements:
        db.execute(each)
    db.close()


async def sown(parent: Path, cluster: Cluster | None, *, own: bool) -> Seed:
    """A store to begin with: its schema, its key, and, if wanted, a CA of our own."""
    from holdfast.core.own_ca.ca import CaOptions
    from holdfast.operations.own_ca import manage as cas
    from holdfast.pki.ceremony import CeremonyPlan
    from tests.support.acme_client import es256
    from tests.support.acme_seed import _engine
    from tests.support.ca import a_vault
    from tests.support.stores import migrated, open_store

    folder = parent / f"seed-{'postgresql' if cluster else 'sqlite'}{'-own' if own else ''}"
    folder.mkdir(mode=0o700)
    url = cluster.create_database() if cluster else ""
    db = await migrated(open_store(_engine(folder, url)))
    try:
        secret_store = await a_vault(db, folder)
        if own:
            await cas.create(
                secret_store, ca=issuing_child.CA, plan=CeremonyPlan(name="Own"), options=CaOptions(), actor="local:op"
            )
    finally:
        await db.close()
    return Seed(folder, cluster, url.rpartition("/")[2] or "template1", es256(), {})
