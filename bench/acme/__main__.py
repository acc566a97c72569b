"""`make bench-acme`: certificates a second of our ACME server, Caddy's and pebble, each under the same load.

One dns name an order, http-01 answered locally and really validated (by pebble not at all), every certificate
downloaded and checked. All servers run side by side for the whole time and are loaded in turns, so that a busy moment
of the machine hits all; the median of the rounds counts. Everything happens in a network of its own, because Caddy
dials port 80. The client looks again from 5 ms on, whatever Retry-After says: what is measured is the server.
Pebble can hang for good when it is asked so often: it is started anew for each run, and a run that hung does not count.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from subprocess import SubprocessError

from tests.support.postgres import Cluster, PostgresError, free_port

from bench.acme import ours, peers, report, space
from bench.acme.drive import Driver, Load, LoadFailed, Measured, Server
from bench.acme.jws import AccountKey
from bench.acme.processes import dismiss, hear, python, tell
from bench.acme.report import OURS, Results
from bench.acme.space import Ports

EIGHT, MANY = Load(8), Load(32)
SHARED = (Load(8, one_account=True), Load(32, one_account=True))
PEBBLE_TRIES = 3  # a run
PATIENCE_S = 170.0  # no round is begun that would end later


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2, help="of the load")
    parser.add_argument("--warm", type=float, default=0.7, help="seconds before counting")
    parser.add_argument("--window", type=float, default=2.5, help="seconds of counting")
    parser.add_argument("--only", nargs="*", default=["caddy", "pebble", *OURS], help="servers to measure")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that everything is cleaned up
    if not wanted.inside:
        if "pebble" in wanted.only:
            peers.install_pebble()  # here, because it needs the outer network
        if space.can_be_made():
            space.enter("bench.acme", "--inside", *sys.argv[1:])
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        results = measure(wanted, folder)
    except (LoadFailed, OSError, SubprocessError) as why:
        results = Results(missing=dict.fromkeys(wanted.only, str(why)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report.table(results)
    report.figures(results)


def measure(wanted: argparse.Namespace, folder: Path) -> Results:
    results, began = Results(), time.monotonic()
    if wanted.inside:
        space.furnish(folder)
    ports = space.OWN if wanted.inside else Ports(dns=free_port(), http=free_port())
    keys = [AccountKey.new() for _ in range(MANY.lanes)]
    with ExitStack() as stack:
        answerer = stack.enter_context(answering(ports, keys))
        driver = stack.enter_context(
            Driver(
                processes=wanted.processes,
                keys=keys,
                answerer=answerer,
                folder=folder,
                warm_s=wanted.warm,
                window_s=wanted.window,
            )
        )
        servers = start(stack, wanted, folder, ports, results)
        last_s = 0.0
        for turn in range(wanted.rounds):
            if (now := time.monotonic()) - began + last_s > PATIENCE_S:
                break
            play(driver, servers, results, turn, folder if "pebble" in wanted.only else None)
            last_s = time.monotonic() - now
    return results


@contextmanager
def answering(ports: Ports, keys: list[AccountKey]) -> Iterator[int]:
    process = python("bench.acme.answerer", "--dns", str(ports.dns), "--http", str(ports.http))
    try:
        tell(process, json.dumps({str(number): key.thumbprint for number, key in enumerate(keys)}))
        if hear(process) != "ready":
            raise LoadFailed("the answerer did not start")
        yield process.pid
    finally:
        dismiss(process)


def start(
    stack: ExitStack, wanted: argparse.Namespace, folder: Path, ports: Ports, results: Results
) -> dict[str, Server]:
    """Start all but pebble; what cannot be had is noted with the reason."""
    servers = {}
    for name in [each for each in ("caddy", *OURS) if each in wanted.only]:
        try:
            if name == "caddy":
                servers[name] = stack.enter_context(the_caddy(folder, ports))
            elif name == "holdfast-sqlite":
                servers[name] = stack.enter_context(ours.sqlite(folder / name, ports))
            else:
                cluster = stack.enter_context(Cluster(durable=True))
                servers[name] = stack.enter_context(ours.postgresql(folder / name, ports, cluster))
        except (OSError, TimeoutError, PostgresError, LoadFailed) as why:
            results.missing[name] = " ".join(str(why).split())[:500]
    return servers


def the_caddy(folder: Path, ports: Ports) -> AbstractContextManager[Server]:
    program = peers.find_caddy()
    if program is None:
        raise LoadFailed("Caddy is not installed")
    if ports != space.OWN:
        raise LoadFailed("Caddy dials port 80, which takes a network of our own: run as root, with unshare")
    return peers.caddy(program, folder / "caddy", dns=ports.dns)


def play(driver: Driver, servers: dict[str, Server], results: Results, turn: int, pebbles: Path | None) -> None:
    """One round: servers take turns at each load; what is only for information runs once."""
    loads = []
    for own, shared in zip((EIGHT, MANY), SHARED, strict=True):
        loads += [(name, own) for name in servers] + [(name, shared) for name in servers if name in OURS]
    if turn == 0:
        loads += [(name, Load(1) if name in OURS else SHARED[0]) for name in servers]
    if pebbles:
        attempt(results, "pebble", EIGHT, turn, partial(of_pebble, driver, pebbles))
    for name, load in loads:
        attempt(results, name, load, turn, partial(driver.measure, servers[name], load))


def attempt(results: Results, name: str, load: Load, turn: int, run: Callable[[], Measured]) -> None:
    try:
        results.note(name, load, turn, run())
    except (LoadFailed, OSError, TimeoutError) as why:
        results.lost[name] += why.orders if isinstance(why, LoadFailed) else 0
        print(f"{name}, {load}: {why}", file=sys.stderr)
        results.missing.setdefault(name, " ".join(str(why).split())[:300])


def of_pebble(driver: Driver, folder: Path) -> Measured:
    """Measure a fresh one, and if it hangs another: asked every 100 ms it would not, but be slowed by our pauses."""
    program = shutil.which("pebble")
    if program is None:
        raise LoadFailed("pebble is not installed, and apt could not install it")
    for _ in range(PEBBLE_TRIES):
        own = Path(tempfile.mkdtemp(prefix="pebble-", dir=folder))
        with peers.pebble(program, own) as server, suppress(LoadFailed):
            run = driver.measure(server, EIGHT)
            if not run.hung:
                return run
        print("pebble hung; started anew", file=sys.stderr)
    raise LoadFailed("pebble hung in every run")


if __name__ == "__main__":
    main()
