"""`make bench`: our job engine beside Procrastinate and PgQueuer, and what a claim costs in a full table.

Every figure is a ratio measured in this run. Engines take turns, each on a fresh database of one PostgreSQL on disk
with fsync on; the median of the rounds counts. The method is in bench/peers.py. One thing differs by design: each of
the peers' enqueue calls is a commit of its own, ours that wait at the same moment share one.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from tests.support.postgres import Cluster

from bench.figures import figure, skipped

PEERS = ("procrastinate", "pgqueuer")


def measured(module: str, *words: str) -> dict[str, float] | None:
    """Run one measurement in a process of its own; None if it could not be made."""
    done = subprocess.run(
        [sys.executable, "-m", module, *words], capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode != 0:
        print(
            f"{module} {words[0]}: {done.stderr.strip().splitlines()[-1] if done.stderr else 'failed'}", file=sys.stderr
        )
        return None
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def jobs(cluster: Cluster, folder: Path, rounds: int, number: int) -> None:
    rates: dict[str, list[float]] = defaultdict(list)
    common = ["--jobs", str(number), "--slots", "16", "--inflight", "16"]
    for turn in range(rounds):
        for peer in PEERS:
            url = cluster.create_database()
            _note(rates, peer, number, measured("bench.peers", peer, "--dsn", url, *common))
            cluster.drop_database(url)
        url = cluster.create_database()
        _note(rates, "holdfast-postgresql", number, measured("bench.ours", "jobs", "--store", url, *common))
        cluster.drop_database(url)
        file = str(folder / f"jobs-{turn}.sqlite")
        _note(rates, "holdfast-sqlite", number, measured("bench.ours", "jobs", "--store", file, *common))
    median = {name: statistics.median(values) for name, values in rates.items()}
    for name, values in rates.items():
        print(f"{name:20} {median[name]:8.0f} jobs/s enqueue to done   ({', '.join(f'{v:.0f}' for v in values)})")
    missing = [peer for peer in PEERS if peer not in median]
    if missing:  # the best of the peers is not known unless all were measured
        skipped("jobs_postgresql_vs_best_peer", f"{missing[0]} could not be measured")
    elif "holdfast-postgresql" in median:
        ratio = median["holdfast-postgresql"] / max(median[peer] for peer in PEERS)
        figure("jobs_postgresql_vs_best_peer", round(ratio, 2), "x", ">=1.5", ratio >= 1.5)
    if "procrastinate" not in median:
        skipped("jobs_sqlite_vs_procrastinate_postgresql", "Procrastinate could not be measured")
    elif "holdfast-sqlite" in median:
        ratio = median["holdfast-sqlite"] / median["procrastinate"]
        figure("jobs_sqlite_vs_procrastinate_postgresql", round(ratio, 2), "x", ">=3", ratio >= 3)


def _note(rates: dict[str, list[float]], name: str, number: int, result: dict[str, float] | None) -> None:
    if result is not None:
        rates[name].append(number / result["total_s"])


def claims(cluster: Cluster, folder: Path, finished: int, future: int) -> None:
    """The two tables take turns, so that a busy moment of the machine hits both."""
    for store in ("postgresql", "sqlite"):
        costs: dict[str, list[float]] = {"empty": [], "full": []}
        for turn in range(3):
            for name, rows in (("empty", (0, 0)), ("full", (finished, future))):
                file = folder / f"claim-{name}-{turn}.sqlite"
                where = cluster.create_database() if store == "postgresql" else str(file)
                words = ["claims", "--store", where, "--finished", str(rows[0]), "--future", str(rows[1])]
                result = measured("bench.ours", *words)
                if result is not None:
                    costs[name].append(result["median_ms"])
                if store == "postgresql":
                    cluster.drop_database(where)
                else:
                    file.unlink()
        empty, full = (statistics.median(costs[name]) for name in ("empty", "full"))
        print(f"claim of 16 on {store}: {empty:.2f} ms in an empty table, {full:.2f} ms in a full one")
        figure(f"claim_cost_{store}_full_vs_empty", round(full / empty, 2), "x", "<=1.5", full / empty <= 1.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--finished", type=int, default=1_000_000)
    parser.add_argument("--future", type=int, default=100_000)
    wanted = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        with Cluster(durable=True) as cluster:
            jobs(cluster, folder, wanted.rounds, wanted.jobs)
            claims(cluster, folder, wanted.finished, wanted.future)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
