"""The deployments' part of `make kill`: a replica that deploys to a real daemon is killed at all of its points.

Called with a folder, a cluster and the function that prints a figure, as the other parts are.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.kill.deployments import DeploymentGround, Killed
from tests.support.daemons import DAEMONS, missing
from tests.support.postgres import Cluster

POINTS: Final = (
    "bundle.written", "bundle.switched", "deployment.committed", "job.claimed", "job.effect-done", "job.settling",
    "job.settled",
)  # fmt: skip
MOST: Final = 12  # passages of one point
SWAPS: Final = 100
ENGINES: Final = ("sqlite", "postgresql")
Figure = Callable[..., None]


def part(
    folder: Path,
    cluster: Cluster,
    figure: Figure,
    *,
    most: int,
    daemons: Sequence[str] = tuple(DAEMONS),
    swaps: int = SWAPS,
    engines: Sequence[str] = ENGINES,
) -> None:
    """Run it all, daemon by daemon, and print the figures of each."""
    for daemon in daemons:
        if (why := missing(daemon)) is not None:
            print(f"FIGURE deployment_{daemon} - skipped {why}", flush=True)
            continue
        runs: list[Killed] = []
        for engine in engines:
            place = folder / f"{daemon}-{engine}"
            place.mkdir()
            store = str(place / "holdfast.sqlite") if engine == "sqlite" else cluster.create_database()
            with DeploymentGround.prepared(store, place, daemon) as ground:
                runs += map(_told, _runs(ground, most))
                runs += [_told(ground.swapped(swaps))] if swaps and engine == engines[0] else []
        _figures(daemon, runs, figure)


def _told(run: Killed) -> Killed:
    word = "killed" if run.killed else "lived"
    print(f"deployments: {run.point} {run.nth}: {'; '.join(run.problems) or word}", file=sys.stderr, flush=True)
    return run


def _figures(daemon: str, runs: Sequence[Killed], figure: Figure) -> None:
    name, watched = f"deployment_{daemon}", [each.watcher for each in runs]
    fired, bad = sum(each.killed for each in runs), sum(bool(each.problems) for each in runs)
    figure(f"{name}_kills", fired, "kills", 1, met=bool(fired))
    figure(f"{name}_lost_stuck_or_wrong", bad, "runs", 0, met=bad == 0)
    for what in ("mixed", "readable"):
        seen = sum(getattr(each, what) for each in watched)
        figure(f"{name}_pairs_{what}", seen, "looks", 0, met=seen == 0)
    looks, seconds = sum(each.looks for each in watched), sum(each.seconds for each in watched)
    figure(f"{name}_pairs_read", looks, "looks", 1, met=looks > 0)
    figure(f"{name}_pairs_read_per_second", looks / seconds, "per_s", 1000, met=looks >= 800 * seconds)
    broken = sum(len(each.broken) for each in watched)
    figure(f"{name}_handshakes_failed", broken, "handshakes", 0, met=broken == 0)
    figure(f"{name}_handshakes", sum(each.handshakes for each in watched), "handshakes", 1, met=True)
    swapped = sum(each.nth for each in runs if each.point == "swaps" and not each.problems)
    figure(f"{name}_swaps", swapped, "swaps", SWAPS, met=swapped >= SWAPS)


def _runs(ground: DeploymentGround, most: int) -> Iterator[Killed]:
    """At each point for as long as there is one more passage to kill at."""
    for point in POINTS:
        for nth in range(1, most + 1):
            run = ground.killed_at(point, nth)
            yield run
            if not run.killed:
                break
