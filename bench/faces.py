"""How quick the faces are: `holdfast --help`, and a scrape of /metrics over 100,000 certificates.

python -m bench.faces [--certificates 100000] [--runs 11]
"""

import argparse
import asyncio
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from bench.figures import figure
from holdfast.from_settings import compose
from holdfast.operations.installation.observe import Inventory
from holdfast.ports import no_points
from holdfast.store import migrate
from holdfast.store.database import Database
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx
from holdfast.telemetry import Metrics
from holdfast.world import SystemClock

HELP_GOAL, LOOK_GOAL, SCRAPE_GOAL = 150.0, 1000.0, 100.0  # milliseconds
NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :many)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--certificates", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=11)
    given = parser.parse_args()
    took, cpu = help_took(given.runs)
    figure("cli-help", took, "ms", HELP_GOAL, took <= HELP_GOAL)
    figure("cli-help-cpu", cpu, "ms", HELP_GOAL, cpu <= HELP_GOAL)  # the same on a machine with nothing else to do
    look, scrape = asyncio.run(metrics_took(given.certificates, given.runs))
    figure("metrics-look-100k", look, "ms", LOOK_GOAL, look <= LOOK_GOAL)
    figure("metrics-scrape-100k", scrape, "ms", SCRAPE_GOAL, scrape <= SCRAPE_GOAL)


def help_took(runs: int) -> tuple[float, float]:
    """By the clock, and of the processor: the quickest of all runs, as what the machine does beside is not ours."""
    program = [str(Path(sys.executable).with_name("holdfast")), "--help"]
    subprocess.run(program, capture_output=True, check=True)  # the files are in memory from here on
    found = [_timed(program) for _ in range(runs)]
    return min(clock for clock, _ in found), min(cpu for _, cpu in found)


def _timed(program: list[str]) -> tuple[float, float]:
    """Milliseconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(program, capture_output=True, check=True)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took * 1000, cpu * 1000


async def metrics_took(many: int, runs: int) -> tuple[float, float]:
    """A look at the store, and a scrape between two looks: medians."""
    with tempfile.TemporaryDirectory() as folder:
        clock = SystemClock()
        engine = SqliteEngine(Path(folder) / "holdfast.sqlite", clock)
        db = compose(engine, clock=clock, points=no_points, deadline=timedelta(minutes=5))
        try:
            await migrate.bring_up(db, points=no_points)
            await db.write(lambda tx: seed(tx, many))
            return await _looks(db, runs)
        finally:
            await db.close()


async def _looks(db: Database, runs: int) -> tuple[float, float]:
    metrics = Metrics()
    looks, scrapes = [], []
    for _ in range(runs):
        fresh = Inventory(db=db, metrics=metrics, clock=SystemClock(), every=timedelta(minutes=10), series=1000)
        for into in (looks, scrapes):
            began = time.perf_counter()
            await fresh.refresh()
            metrics.render()
            into.append((time.perf_counter() - began) * 1000)
    return statistics.median(looks), statistics.median(scrapes)


def seed(tx: Tx, many: int) -> None:
    """As many certificates as wanted, each with a version, ending one after the other."""
    tx.run("INSERT INTO key_checks (kek_id, is_current, check_box, created_at) VALUES ('k', TRUE, 'x', 1)")
    tx.run("INSERT INTO secrets (id, kek_id, wrapped, box, created_at) VALUES ('s', 'k', 'x', 'x', 1)")
    tx.run("INSERT INTO issuers (name, kind, state, created_at) VALUES ('ca', 'acme', 'active', 1)")
    tx.run(
        f"""{NUMBERS} INSERT INTO certificates (id, name, identifiers, key_kind, issuers, state, changed_by, created_at,
                   fingerprint, next_action_at, next_cause, current_version, owner)
            SELECT 'certificate_' || i, 'n' || i || '.example.com', '[["dns","n' || i || '.example.com"]]', 'ec-p256',
                   '["ca"]', 'active', 'bench', 1, 'f' || i, now_us() + i * 60000000, 'DUE_LIFETIME',
                   'version_' || i, 'team' || (i % 50) FROM n""",
        many=many,
    )
    tx.run(
        f"""{NUMBERS} INSERT INTO certificate_versions (id, certificate, generation, state, key_secret, chain_pem,
                   serial, not_before, not_after, issuer, spki_sha256, issued_at)
            SELECT 'version_' || i, 'certificate_' || i, 1, 'active', 's', printf('%.*c', 3500, 'x'), 's' || i,
                   now_us() - 2592000000000, now_us() + i * 70000000, 'ca', 'h', 1 FROM n""",
        many=many,
    )


if __name__ == "__main__":
    main()
