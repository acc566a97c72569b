"""The deployments' part of `make kill`: a replica that deploys to a real nginx is killed at each passage of its points.

Called with a folder, a cluster and the function that prints a figure, as the other parts are.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.kill.deployments import DeploymentGround, Killed
from tests.support.postgres import Cluster

POINTS: Final = (
    "bundle.written", "bundle.switched", "deployment.committed", "job.claimed", "job.effect-done", "job.settling",
    "job.settled",
)  # fmt: skip
MOST: Final = 12  # passages of one point
Figure = Callable[..., None]


def part(folder: Path, cluster: Cluster, figure: Figure, *, most: int) -> None:
    """Run it all, and print the figures."""
    runs: list[Killed] = []
    for engine in ("sqlite", "postgresql"):
        (folder / engine).mkdir()
        store = str(folder / engine / "holdfast.sqlite") if engine == "sqlite" else cluster.create_database()
        with DeploymentGround.prepared(store, folder / engine) as ground:
            runs += _runs(ground, most)
    for each in runs:
        if each.problems:
            print(f"deployments: {each.point} {each.nth}: {'; '.join(each.problems)}", file=sys.stderr, flush=True)
    fired = sum(each.killed for each in runs)
    figure("deployment_kills", fired, "kills", 1, met=bool(fired))
    bad = sum(bool(each.problems) for each in runs)
    figure("deployment_kills_with_findings", bad, "runs", 0, met=bad == 0)
    for name in ("mixed", "readable"):
        seen = sum(getattr(each.watcher, name) for each in runs)
        figure(f"deployment_pairs_{name}", seen, "looks", 0, met=seen == 0)
    broken = sum(len(each.watcher.broken) for each in runs)
    figure("deployment_handshakes_failed", broken, "handshakes", 0, met=broken == 0)
    looks = sum(each.watcher.looks for each in runs)
    figure("deployment_pairs_read", looks, "looks", 1, met=looks > 0)
    shaken = sum(each.watcher.handshakes for each in runs)
    figure("deployment_handshakes", shaken, "handshakes", 1, met=shaken > 0)


def _runs(ground: DeploymentGround, most: int) -> Iterator[Killed]:
    """At each point for as long as there is one more passage to kill at."""
    for point in POINTS:
        for nth in range(1, most + 1):
            run = ground.killed_at(point, nth)
            yield run
            if not run.killed:
                break
