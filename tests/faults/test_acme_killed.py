"""A CA that is killed strands no order: each ends valid with one certificate, or invalid with a problem.

`make kill` does it at many more passages, and in more ways.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.kill import ca_replicas
from tests.kill.ca import CaHarness, Outcome, busy
from tests.kill.ca_replicas import Found
from tests.kill.harness import Case
from tests.support.acme_replica import Answerer
from tests.support.acme_seed import sow
from tests.support.child import Strike
from tests.support.grounds import Ground, ground
from tests.support.postgres import Cluster

# By then some orders are validated and some are finalized, and all of them are under way.
CASES = (
    Case("store.before-commit", 40),
    Case("store.after-commit", 45),
    Case("job.claimed", 13),
    Case("job.effect-done", 12),
    Case("job.settling", 13),
    Case("job.settled", 13),
    Case("sweep.reconciled", 2),
)


class Experiments:
    """They spend their time waiting for leases, so all of them run at once."""

    def __init__(self, folder: Path, cluster: Cluster, answerer: Answerer, threads: ThreadPoolExecutor) -> None:
        self._folder, self._cluster, self._answerer = folder, cluster, answerer
        frozen_at = Strike("stop", "job.effect-done", 4)
        self.killed = {
            "sqlite": threads.submit(self._kill, None),
            "postgresql": threads.submit(self._kill, cluster),
        }
        self.at_once = threads.submit(self._run, ca_replicas.at_once)
        self.frozen: Future[Found] = threads.submit(
            self._run, lambda place, answerer: ca_replicas.frozen(place, answerer, strike=frozen_at)
        )

    def _kill(self, cluster: Cluster | None) -> list[Outcome]:
        seed = asyncio.run(sow(self._folder, cluster, self._answerer))
        harness = CaHarness(busy(self._folder, seed), self._answerer)
        return list(harness.run(CASES, lanes=len(CASES)))

    def _run(self, experiment: Callable[[Ground, Answerer], Coroutine[Any, Any, Found]]) -> Found:
        with ground(self._folder, self._cluster) as place:
            return asyncio.run(experiment(place, self._answerer))


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory, postgres: Cluster) -> Iterator[Experiments]:
    with Answerer() as answerer, ThreadPoolExecutor() as threads:
        yield Experiments(tmp_path_factory.mktemp("killed"), postgres, answerer, threads)


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_orders_of_a_ca_that_was_killed_are_decided_by_the_next_one(experiments: Experiments, engine: str) -> None:
    outcomes = experiments.killed[engine].result()
    assert [(each.case, each.problems) for each in outcomes if each.problems or not each.fired] == []
    assert [each.case for each in outcomes if each.stuck or each.doubled] == []


def test_of_twenty_finalize_calls_on_two_replicas_one_counts(experiments: Experiments) -> None:
    assert experiments.at_once.result() == Found([])


def test_a_replica_that_wakes_up_after_another_has_issued_writes_nothing(experiments: Experiments) -> None:
    found = experiments.frozen.result()
    assert (found.problems, found.doubled, found.extra_writes) == ([], 0, 0)
