"""The CA part of `make kill`: every named point on both stores, two replicas, and the figures of both."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast.ports import POINTS
from tests.kill import ca_poison, ca_replicas, ca_store
from tests.kill.ca import ELSEWHERE, LEASE, POLL, CaHarness, Outcome, Scene, busy, first_start
from tests.kill.ca_replicas import Found
from tests.kill.harness import Case
from tests.support.acme_replica import Answerer
from tests.support.acme_seed import sow
from tests.support.grounds import Ground, ground
from tests.support.postgres import Cluster

MOST: Final = 6  # passages of one point in one scene, unless all are wanted
FEW: Final = {"store.migrating": 4}  # every passage of these is struck by the engine's part
GRACE: Final = 5.0
RECOVERY_GOAL: Final = LEASE + POLL + GRACE
Figure = Callable[..., None]
Experiment = Callable[[Ground, Answerer], Coroutine[Any, Any, Found]]


def spread(counts: Counter[str], most: int | None = MOST) -> list[Case]:
    """Every passage of each point, or so many of them from the first to the last."""
    return [Case(point, nth) for point in sorted(counts) for nth in sorted(_numbers(counts[point], point, most))]


def _numbers(passages: int, point: str, most: int | None) -> set[int]:
    wanted = passages if most is None else min(passages, FEW.get(point, most))
    if wanted == 1:
        return {1}
    return {1 + round(n * (passages - 1) / (wanted - 1)) for n in range(wanted)}


@dataclass(slots=True)
class CaTally:
    """What became of all the runs on one store."""

    engine: str
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def percent(self) -> float:
        return 100 * sum(outcome.fired for outcome in self.outcomes) / max(1, len(self.outcomes))

    @property
    def unfired(self) -> list[Case]:
        """Passages that never came, and points without any."""
        points = {outcome.case.point for outcome in self.outcomes}
        missing = [Case(point, 0) for point in sorted(POINTS - ELSEWHERE - points)]
        return [outcome.case for outcome in self.outcomes if not outcome.fired] + missing

    @property
    def bad(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.problems]


def strike(folder: Path, cluster: Cluster | None, answerer: Answerer, most: int | None) -> CaTally:
    """All runs on one store."""
    tally = CaTally("postgresql" if cluster else "sqlite")
    seed = asyncio.run(sow(folder, cluster, answerer))
    for scene in (first_start(folder, cluster), busy(folder, seed)):
        for outcome in _runs(scene, answerer, most, tally.engine):
            tally.outcomes.append(outcome)
            if not outcome.fired or outcome.problems:
                told = "; ".join(outcome.problems) or "never passed"
                say(f"acme {tally.engine}, {scene.name}: {outcome.case}: {told}")
    return tally


def _runs(scene: Scene, answerer: Answerer, most: int | None, engine: str) -> Iterator[Outcome]:
    harness = CaHarness(scene, answerer)
    counts = harness.census()
    cases = spread(counts, most)
    say(f"acme {engine}, {scene.name}: {len(cases)} of {counts.total()} passages of {len(counts)} points")
    yield from harness.run(cases)


def together(
    threads: ThreadPoolExecutor, folder: Path, cluster: Cluster, answerer: Answerer
) -> dict[str, Future[Found]]:
    """The experiments with two replicas spend their time waiting: all of them run at once, beside the kills."""
    experiments: dict[str, Experiment] = {
        "in turn": ca_replicas.in_turn,
        "at once": ca_replicas.at_once,
        "killed": ca_replicas.one_killed,
        **{f"frozen at {each}": partial(ca_replicas.frozen, strike=each) for each in ca_replicas.FREEZES},
    }

    def run(experiment: Experiment, where: Cluster | None) -> Found:
        with ground(folder, where) as place:
            return asyncio.run(experiment(place, answerer))

    def begin(job: Callable[[], Found]) -> Future[Found]:
        return threads.submit(_survived, job)

    return {
        **{name: begin(partial(run, each, cluster)) for name, each in experiments.items()},
        "poison on SQLite": begin(partial(run, ca_poison.poisonous, None)),
        "poison": begin(partial(run, ca_poison.poisonous, cluster)),
        "store killed": begin(partial(ca_store.store_killed, folder, answerer)),
    }


def _survived(job: Callable[[], Found]) -> Found:
    """An experiment that ends with an error is a finding; the others still count."""
    try:
        return job()
    except Exception as error:
        return Found([f"it ended with {error!r}"])


def part(folder: Path, cluster: Cluster, figure: Figure, *, most: int | None = MOST) -> None:
    """Run it all, and print the figures."""
    began = time.monotonic()
    with Answerer() as answerer, ThreadPoolExecutor(thread_name_prefix="acme", max_workers=16) as threads:
        struck = [threads.submit(strike, folder, each, answerer, most) for each in (None, cluster)]
        experiments = together(threads, folder, cluster, answerer)
        tallies = [each.result() for each in struck]
        found = {name: each.result() for name, each in experiments.items()}
    say(f"acme: took {time.monotonic() - began:.0f} s")
    for name, each in found.items():
        for wrong in each.problems:
            say(f"acme, {name}: {wrong}")
    figures(tallies, found, figure)


def figures(tallies: list[CaTally], found: dict[str, Found], figure: Figure) -> None:
    for tally in tallies:
        name = f"acme_kill_points_fired_{tally.engine}"
        figure(name, tally.percent, "percent", 100, met=not tally.unfired)
    runs = [outcome for tally in tallies for outcome in tally.outcomes]
    figure("acme_kills", len(runs), "kills", 1, met=bool(runs))
    stuck = sum(run.stuck for run in runs)
    figure("acme_orders_lost_or_stuck", stuck, "orders", 0, met=stuck == 0)
    doubled = sum(run.doubled for run in runs) + sum(each.doubled for each in found.values())
    figure("acme_orders_with_two_certificates", doubled, "orders", 0, met=doubled == 0)
    wrong = sum(bool(run.problems) for run in runs) + sum(bool(each.problems) for each in found.values())
    figure("acme_audits_with_findings", wrong, "runs", 0, met=wrong == 0)
    slowest = max(run.recovered_for for run in runs)
    figure("acme_recovery_after_sigkill", slowest, "s", RECOVERY_GOAL, met=slowest <= RECOVERY_GOAL)
    other = found["killed"].recovered_for
    figure("acme_takeover_by_other_replica", other, "s", RECOVERY_GOAL, met=other <= RECOVERY_GOAL)
    writes = sum(each.extra_writes for each in found.values())
    figure("acme_zombie_writes_after_sigstop", writes, "writes", 0, met=writes == 0)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
