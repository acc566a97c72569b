"""PostgreSQL restarted under load: two replicas, three restarts of each kind, and an exact result."""

from pathlib import Path

import pytest
from tests.kill.auditor import Promise, problems
from tests.support.ca_server import Ca
from tests.support.grounds import ground, look
from tests.support.postgres import Cluster, StopMode
from tests.support.processes import Child
from tests.support.reaper import until

ERRANDS = tuple(f"e{number:02d}" for number in range(1, 61))
WISHES = (f"--ask={','.join(ERRANDS)}", "--leave", "--burst=10000", "--poll=0.2", "--ttl=60", "--deadline=5")


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_restarts_under_load_cost_time_and_nothing_else(
    victim: Cluster, ca: Ca, tmp_path: Path, mode: StopMode
) -> None:
    for name in ERRANDS:
        ca.slow[name] = 0.2  # 60 errands, two steps each, 16 at a time: about 1.5 s without a restart
    with (
        ground(tmp_path, victim) as place,
        Child(place, ca.base, place.folder / "a", *WISHES) as first,
        Child(place, ca.base, place.folder / "b", *WISHES) as second,
    ):
        for third in (1, 2, 3):
            until(lambda done=third: len(ca.certificates) >= 15 * done, "some of the orders")  # type: ignore[misc]
            victim.restart(mode)
        assert (first.wait(), second.wait()) == (0, 0)
        assert problems(place, ca, Promise(errands=ERRANDS, kills=3)) == []
        failed = look(place, lambda tx: tx.rows("SELECT seq FROM audit WHERE action = 'job_failed'"))
        assert failed == []  # a store that is away is not the job's fault
