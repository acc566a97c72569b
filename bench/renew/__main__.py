"""`make bench-renew`: due certificates of our own CA renewed by us and by certbot, and the scan for what is due.

Ours: `holdfast serve` holds so many certificates; all become due at once, by their dates, and the clock runs until the
last has its new version. It looks every second here, not every minute; the wait for that look is in the time.
certbot: one `certbot renew` for a few certificates of the same CA, by ACME and http-01. It renews one after the other,
so what many would take is reckoned from these few, not measured. Two seconds of each are its own pauses. It is run
once, against the first of the stores, and compared with all of them.
"""

import argparse
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from subprocess import SubprocessError
from typing import TypeVar

import httpx2
import psycopg
from tests.interop.packages import CannotBeHad
from tests.support.postgres import Cluster, PostgresError

from bench.renew import certbot, ours, report, scan
from bench.renew.report import Results
from bench.renew.server import POSTGRESQL, SQLITE, Unmeasured, names, on_postgresql, on_sqlite
from holdfast.errors import StoreError

T = TypeVar("T")
SMALL = 10_000
TROUBLES = (
    Unmeasured, CannotBeHad, PostgresError, StoreError, OSError, TimeoutError, SubprocessError, sqlite3.Error,
    psycopg.Error, httpx2.HTTPError,
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--certificates", type=int, default=1000, help="that we renew")
    parser.add_argument("--certbot", type=int, default=10, help="certificates that certbot renews")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the large table")
    parser.add_argument("--rounds", type=int, default=9, help="of the scan")
    parser.add_argument("--only", nargs="*", default=["renew", "scan"], choices=["renew", "scan"])
    parser.add_argument("--stores", nargs="*", default=[SQLITE, POSTGRESQL], choices=[SQLITE, POSTGRESQL])
    wanted = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that everything is cleaned up
    folder, results = Path(tempfile.mkdtemp(prefix="holdfast-bench-")), Results()
    try:
        measure(wanted, folder, results)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report.table(results, wanted.certificates)
    report.figures(results, wanted.stores)


def measure(wanted: argparse.Namespace, folder: Path, results: Results) -> None:
    with ExitStack() as stack:
        clusters: dict[str, Cluster | None] = {SQLITE: None} if SQLITE in wanted.stores else {}
        if POSTGRESQL in wanted.stores:
            found = attempt(results, POSTGRESQL, lambda: stack.enter_context(Cluster(durable=True)))
            clusters |= {} if found is None else {POSTGRESQL: found}
        if "renew" in wanted.only:
            dns = stack.enter_context(names())
            for store, cluster in clusters.items():
                attempt(results, store, partial(renewals, wanted, folder / store, results, dns, cluster))
        if "scan" in wanted.only:
            for store, cluster in clusters.items():
                attempt(results, store, partial(scans, wanted, folder / f"scan-{store}", results, store, cluster))


def renewals(wanted: argparse.Namespace, folder: Path, results: Results, dns: int, cluster: Cluster | None) -> None:
    with on_sqlite(folder, dns) if cluster is None else on_postgresql(folder, dns, cluster) as server:
        if wanted.certbot and results.certbot is None and "certbot" not in results.missing:
            run = partial(certbot.measure, folder / "certbot", server, wanted.certbot)
            results.certbot = attempt(results, "certbot", run)
        results.ours[server.name] = ours.measure(server, wanted.certificates)


def scans(wanted: argparse.Namespace, folder: Path, results: Results, store: str, cluster: Cluster | None) -> None:
    folder.mkdir()

    def new_store(rows: int) -> str:
        return str(folder / f"{rows}.sqlite") if cluster is None else cluster.create_database()

    results.scans[store] = scan.measure(folder, new_store, (SMALL, wanted.rows), wanted.rounds)


def attempt(results: Results, name: str, run: Callable[[], T]) -> T | None:
    """What cannot be measured is noted with the reason; the rest is measured all the same."""
    try:
        return run()
    except TROUBLES as why:
        print(f"{name}: {why}", file=sys.stderr, flush=True)
        results.missing.setdefault(name, " ".join(str(why).split())[:500])
        return None


if __name__ == "__main__":
    main()
