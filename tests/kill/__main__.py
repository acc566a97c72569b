"""`make kill`: kill at every passage of every named point on both stores, measure takeovers, print the figures.

Five parts: the engine with jobs of all kinds, the CA with clients whose orders are in flight, certificates that are
obtained from every kind of CA, notifications on their way to a channel, and deployments to real daemons.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Final

from tests.kill import ca_part, deployment_part, issuance_part, notification_part, takeover
from tests.kill.harness import Harness, Tally
from tests.support.ca_server import Ca, CaServer
from tests.support.child import Strike
from tests.support.daemons import DAEMONS
from tests.support.grounds import Ground, ground
from tests.support.postgres import Cluster

GRACE: Final = 5.0  # seconds beyond the lease time that a takeover may need
SIGTERM_GOAL: Final = 2.0
Measured = dict[str, list[float]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kill", description=__doc__)
    parser.add_argument("--ttl", type=float, default=30.0, help="lease time of the takeovers, seconds")
    parser.add_argument("--repeats", type=int, default=2, help="how often each takeover is measured")
    parser.add_argument("--quick", action="store_true", help="only the first and last passage of each point")
    parser.add_argument(
        "--part", choices=["engine", "ca", "issuance", "notifications", "deployments", "all"], default="all"
    )
    parser.add_argument("--daemon", action="append", choices=list(DAEMONS), help="of deployments: this one; repeated")
    parser.add_argument("--store", choices=deployment_part.ENGINES, help="of deployments: on this one alone")
    parser.add_argument("--swaps", type=int, default=deployment_part.SWAPS, help="of deployments: so many in one life")
    parser.add_argument("--every", action="store_true", help="of the other parts, every passage: it takes long")
    args = parser.parse_args()
    if args.part in ("engine", "all"):
        engine(args)
    if args.part in ("ca", "all"):
        with tempfile.TemporaryDirectory(prefix="hfkill-") as folder, _cluster() as cluster:
            most = None if args.every else 2 if args.quick else ca_part.MOST
            ca_part.part(Path(folder), cluster, figure, most=most)
    if args.part in ("issuance", "all"):
        with tempfile.TemporaryDirectory(prefix="hfkill-") as folder, _cluster() as cluster:
            most = None if args.every else 2 if args.quick else issuance_part.MOST
            issuance_part.part(Path(folder), cluster, figure, most=most, ttl=args.ttl)
    if args.part in ("notifications", "all"):
        with tempfile.TemporaryDirectory(prefix="hfkill-") as folder, _cluster() as cluster:
            most = None if args.every else 2 if args.quick else notification_part.MOST
            notification_part.part(Path(folder), cluster, figure, most=most)
    if args.part in ("deployments", "all"):
        with tempfile.TemporaryDirectory(prefix="hfkill-") as folder, _cluster() as cluster:
            os.chmod(folder, 0o755)  # daemons that drop their privileges must be able to pass it
            deployment_part.part(
                Path(folder),
                cluster,
                figure,
                most=2 if args.quick else deployment_part.MOST,
                daemons=args.daemon or list(DAEMONS),
                swaps=0 if args.quick else args.swaps,
                engines=[args.store] if args.store else deployment_part.ENGINES,
            )
    return 0


def _cluster() -> Cluster:
    return Cluster(tmpfs=True).start(settings={"max_connections": 400})  # five for each replica


def engine(args: argparse.Namespace) -> None:
    """The engine's part: jobs, leases, keys and the schema."""
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="hfkill-") as folder,
        _cluster() as cluster,
        CaServer() as server,
        ThreadPoolExecutor(thread_name_prefix="kill", max_workers=64) as threads,
    ):
        stores = [Harness(Path(folder), each, server) for each in (None, cluster)]
        tallies = [threads.submit(strike, store, quick=args.quick) for store in stores]
        waits = measure(threads, Path(folder), cluster, server, args.ttl, args.repeats)
        found = [tally.result() for tally in tallies]
        measured = {name: [each.result() for each in futures] for name, futures in waits.items()}
    say(f"took {time.monotonic() - began:.0f} s")
    figures(found, measured, args.ttl)


def strike(harness: Harness, *, quick: bool) -> Tally:
    """All runs on one store."""
    tally = Tally(harness.engine)
    counts = harness.census()
    cases = harness.first_and_last(counts) if quick else harness.every(counts)
    say(f"{harness.engine}: {len(cases)} passages of {len(counts)} points")
    for outcome in chain(harness.run(cases), () if quick else harness.beyond(counts)):
        tally.outcomes.append(outcome)
        if not outcome.fired or outcome.problems:
            say(f"{harness.engine}: {outcome.case}: {'; '.join(outcome.problems) or 'never passed'}")
        if len(tally.outcomes) % 25 == 0:
            say(f"{harness.engine}: {len(tally.outcomes)} kills, {len(tally.bad)} bad")
    return tally


def measure(
    threads: ThreadPoolExecutor, folder: Path, cluster: Cluster, server: CaServer, ttl: float, repeats: int
) -> dict[str, list[Future[float]]]:
    """Takeovers spend their time waiting: all of them run at once, beside the kills."""

    def on(where: Cluster | None, experiment: Callable[[Ground, Ca], float]) -> Future[float]:
        def run() -> float:
            with ground(folder, where) as place:
                return experiment(place, server.open())

        return threads.submit(run)

    def kill(place: Ground, ca: Ca) -> float:
        return takeover.after_sigkill(place, ca, ttl)

    def term(place: Ground, ca: Ca) -> float:
        return takeover.after_sigterm(place, ca, ttl)

    def lease(number: signal.Signals) -> Callable[[Ground, Ca], float]:
        return lambda place, ca: takeover.lease_after(place, ca, ttl, number)

    def freeze(strike: Strike, grip: takeover.Grip) -> Callable[[Ground, Ca], float]:
        return lambda place, ca: takeover.zombie_writes(place, ca, ttl, strike, grip)

    each = range(repeats)
    return {
        "sigkill": [on(where, kill) for where in (None, cluster) for _ in each],
        "sigterm": [on(cluster, term) for _ in each],
        "lease_sigkill": [on(cluster, lease(signal.SIGKILL)) for _ in each],
        "lease_sigterm": [on(cluster, lease(signal.SIGTERM)) for _ in each],
        "sigstop": [
            on(cluster, freeze(strike, grip)) for strike in takeover.FREEZES for grip in takeover.GRIPS for _ in each
        ],
    }


def figures(tallies: list[Tally], measured: Measured, ttl: float) -> None:
    for tally in tallies:
        figure(f"kill_points_fired_{tally.engine}", tally.percent, "percent", 100, met=not tally.unfired)
    bad = sum(len(tally.bad) for tally in tallies)
    figure("kill_lost_or_doubled_jobs", bad, "jobs", 0, met=bad == 0)
    slowest = {name: max(values) for name, values in measured.items()}
    figure("takeover_after_sigkill", slowest["sigkill"], "s", ttl + GRACE, met=slowest["sigkill"] <= ttl + GRACE)
    figure("takeover_after_sigterm", slowest["sigterm"], "s", SIGTERM_GOAL, met=slowest["sigterm"] <= SIGTERM_GOAL)
    for name, goal in (("sigkill", ttl + GRACE), ("sigterm", SIGTERM_GOAL)):
        took = slowest[f"lease_{name}"]
        figure(f"lease_moves_after_{name}", took, "s", goal, met=took <= goal)
    zombies = sum(measured["sigstop"])
    figure("zombie_writes_after_sigstop", zombies, "writes", 0, met=zombies == 0)


def figure(name: str, value: float, unit: str, goal: float, *, met: bool) -> None:
    shown = f"{value:.2f}".rstrip("0").rstrip(".")
    print(f"FIGURE {name} {shown} {unit} goal {goal:g} {'met' if met else 'short'}", flush=True)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
