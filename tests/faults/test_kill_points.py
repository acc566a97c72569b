"""SIGKILL at the first and the last passage of every named point: nothing is lost, nothing is done twice.

`make kill` does it at every passage there is.
"""

from pathlib import Path

import pytest
from tests.kill.harness import ELSEWHERE, Harness, Tally
from tests.support.ca_server import CaServer

from holdfast.ports import POINTS


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_a_kill_at_any_named_point_loses_and_doubles_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, ca_server: CaServer, engine: str
) -> None:
    cluster = request.getfixturevalue("postgres") if engine == "postgresql" else None
    harness = Harness(tmp_path, cluster, ca_server)
    counts = harness.census()
    assert counts.keys() == POINTS - ELSEWHERE
    tally = Tally(engine, list(harness.run(harness.first_and_last(counts))))
    assert tally.bad == []
    assert tally.unfired == []
