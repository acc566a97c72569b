"""A replica that is killed while it deploys is followed by one that finishes; no reader ever meets a mixed pair."""

from pathlib import Path

import pytest
from tests.kill.deployments import DeploymentGround
from tests.support.daemons import missing
from tests.support.nginx import needs_nginx
from tests.support.postgres import Cluster
from tests.support.served import open_folder

# Before and after what can be seen: the bundle is written, the link is switched, nginx was told, the row says so.
CASES = [
    ("bundle.written", 1), ("bundle.switched", 1), ("deployment.committed", 1), ("deployment.committed", 3),
    ("deployment.committed", 4), ("job.effect-done", 3), ("job.effect-done", 4),
]  # fmt: skip


# The other daemons at the two points that matter most to them: the pair is in place, and it was told to read it.
SHORT = [("bundle.switched", 1), ("job.effect-done", 3)]


@pytest.mark.parametrize("daemon", ["apache", "haproxy", "postfix", "dovecot"])
def test_every_daemon_goes_on_serving_while_its_replica_is_killed(daemon: str) -> None:
    if (why := missing(daemon)) is not None:
        pytest.skip(why)
    with open_folder() as folder, DeploymentGround.prepared(str(folder / "store.sqlite"), folder, daemon) as ground:
        found = [ground.killed_at(point, nth) for point, nth in SHORT]
    assert [(each.point, each.nth, each.problems) for each in found if each.problems] == []
    assert [(each.point, each.nth) for each in found if not each.killed] == []


@needs_nginx
@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_whoever_is_killed_is_followed_by_one_who_serves_it(tmp_path: Path, postgres: Cluster, engine: str) -> None:
    store = str(tmp_path / "holdfast.sqlite") if engine == "sqlite" else postgres.create_database()
    try:
        with DeploymentGround.prepared(store, tmp_path) as ground:
            found = [ground.killed_at(point, nth) for point, nth in CASES]
    finally:
        if engine == "postgresql":
            postgres.drop_database(store)
    assert [(each.point, each.nth, each.problems) for each in found if each.problems] == []
    assert [(each.point, each.nth) for each in found if not each.killed] == []
