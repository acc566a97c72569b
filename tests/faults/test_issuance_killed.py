"""A replica that is killed while it obtains a certificate is followed by one that finishes the same order.

`make kill` does it at many more passages, and at every kind of CA.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.kill.harness import Case
from tests.kill.issuance import IssuanceHarness, Outcome, sown
from tests.kill.issuance_cas import AtPebble, Ca, Hosting, Later, Own
from tests.kill.issuance_part import takeover
from tests.support.postgres import Cluster

# Before and after what cannot be taken back: the order is on its way, is placed, is kept; the certificate is here.
CASES = {
    "own": (Case("job.effect-done", 1),),
    "pebble": (Case("job.effect-done", 1), Case("http.answered", 11)),
    "digicert": (Case("http.answered", 1), Case("job.settled", 2)),
    "entrust": (Case("http.asking", 1),),
    "globalsign": (Case("job.effect-done", 1),),
    "sectigo": (Case("job.effect-done", 1),),
}
TTL = 3.0


class Runs:
    def __init__(self, folder: Path, cluster: Cluster, cas: dict[str, Ca], threads: ThreadPoolExecutor) -> None:
        seeds = {
            (own, engine): asyncio.run(sown(folder, where, own=own))
            for own in (False, True)
            for engine, where in (("sqlite", None), ("postgresql", cluster))
        }
        self.found = {
            (name, engine): [
                threads.submit(IssuanceHarness(ca, folder, seeds[name == "own", engine]).kill_at, case)
                for case in CASES[name]
            ]
            for name, ca in cas.items()
            for engine in ("sqlite", "postgresql")
        }
        self.takeover = threads.submit(takeover, cas["digicert"], folder, seeds[False, "postgresql"], TTL)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, postgres: Cluster) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("killed")
    (folder / "pebble").mkdir()
    with Hosting() as hosting, AtPebble(folder / "pebble") as pebble, ThreadPoolExecutor(6) as threads:
        later = {name: Later(name, folder / "fakes", hosting) for name in CASES if name not in ("own", "pebble")}
        yield Runs(folder, postgres, {"own": Own(), "pebble": pebble, **later}, threads)


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
@pytest.mark.parametrize("ca", list(CASES))
def test_whoever_is_killed_is_followed_by_one_who_finishes_the_same_order(runs: Runs, ca: str, engine: str) -> None:
    outcomes: list[Outcome] = [each.result() for each in runs.found[ca, engine]]
    assert [(each.case, each.problems) for each in outcomes if each.problems or not each.fired] == []
    assert [each.truth.orders for each in outcomes if each.truth] == [1] * len(outcomes)
    assert sum(each.keyless for each in outcomes) == 0


def test_an_order_placed_by_one_replica_is_finished_by_the_other(runs: Runs) -> None:
    """How soon is measured by `make kill`."""
    assert runs.takeover.result() > TTL / 4  # not before its lease was over
