"""`make bench-cores`: ACME certificates a second on PostgreSQL with 1, 2 and 4 processes, and what each costs.

All of them run side by side on one PostgreSQL and are loaded in turns. On a machine whose cores are used up by the load
itself, the figure to read is certificates per second of processor time of replicas and database. `--before FOLDER`
names the source folder of an earlier version, which is loaded in the same turns. Statements are counted in the log of a
second PostgreSQL, which is not measured otherwise.
"""

import argparse
import re
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from tests.support.postgres import Cluster, free_port

from bench.acme import ours
from bench.acme.__main__ import answering
from bench.acme.drive import Driver, Load, Measured
from bench.acme.jws import AccountKey
from bench.acme.space import Ports
from bench.figures import figure, noted

PROCESSES = (1, 2, 4)
LOADS = (Load(8), Load(32))
LOGGED = re.compile(rb"^<\d+> LOG:  (?:execute|statement)", re.MULTILINE)
MOST_STATEMENTS, MOST_OURS_MS, MOST_DATABASE_MS = 35, 8, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=3.0, help="seconds of counting")
    parser.add_argument("--before", type=Path, help="source folder of an earlier version")
    wanted = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        measure(wanted, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(wanted: argparse.Namespace, folder: Path) -> None:
    ports, keys = Ports(dns=free_port(), http=free_port()), [AccountKey.new() for _ in range(32)]
    with ExitStack() as stack:
        answerer = stack.enter_context(answering(ports, keys))
        driver = stack.enter_context(
            Driver(processes=2, keys=keys, answerer=answerer, folder=folder, warm_s=0.7, window_s=wanted.window)
        )
        rates(wanted, folder, ports, driver)
        statements(folder, ports, driver)


def rates(wanted: argparse.Namespace, folder: Path, ports: Ports, driver: Driver) -> None:
    runs: dict[tuple[str, Load], list[Measured]] = {}
    with Cluster(durable=True) as cluster, ExitStack() as stack:
        servers = {
            f"{count}": stack.enter_context(ours.postgresql(folder / f"p{count}", ports, cluster, processes=count))
            for count in PROCESSES
        }
        if wanted.before is not None:
            before = ours.postgresql(folder / "before", ports, cluster, source=wanted.before)
            servers["before"] = stack.enter_context(before)
        for _ in range(wanted.rounds):
            for load in LOADS:
                for name, server in servers.items():
                    runs.setdefault((name, load), []).append(driver.measure(server, load))
    for (name, load), found in runs.items():
        told(name, load, found)


def told(name: str, load: Load, found: list[Measured]) -> None:
    label = f"acme_postgresql_{name}_{'processes' if name.isdigit() else 'version'}_at_{load.lanes}"
    mine, database = (median(run.server_ms[what] for run in found) for what in ("server", "database"))
    noted(f"{label}_rate", median(run.rate for run in found), "certificates/s")
    noted(f"{label}_per_cpu", 1000 / (mine + database), "certificates/cpu_s")
    noted(f"{label}_failed", sum(run.failed for run in found), "orders")
    noted(f"{label}_others", median(run.others for run in found), "cores_used_by_others")
    if name == "1" and load.lanes == LOADS[0].lanes:
        figure(f"{label}_own_cpu", mine, "ms/certificate", MOST_OURS_MS, mine <= MOST_OURS_MS)
        figure(f"{label}_database_cpu", database, "ms/certificate", MOST_DATABASE_MS, database <= MOST_DATABASE_MS)
    else:
        noted(f"{label}_own_cpu", mine, "ms/certificate")
        noted(f"{label}_database_cpu", database, "ms/certificate")


def statements(folder: Path, ports: Ports, driver: Driver) -> None:
    """With 8 orders in flight; transactions that wait together share what they cost."""
    settings = {
        "log_statement": "all",
        "logging_collector": "on",
        "log_filename": "all.log",
        "log_line_prefix": "<%p> ",
    }
    cluster = Cluster(durable=True).start(settings=settings)
    try:
        log = cluster.folder / "data" / "log" / "all.log"
        with ours.postgresql(folder / "counted", ports, cluster) as server:
            driver.measure(server, LOADS[0])
            before = log.stat().st_size
            run = driver.measure(server, LOADS[0])
            counted = len(LOGGED.findall(log.read_bytes()[before:])) / run.done
    finally:
        cluster.close()
    figure("acme_postgresql_statements", counted, "statements/certificate", MOST_STATEMENTS, counted <= MOST_STATEMENTS)


if __name__ == "__main__":
    main()
