"""`make bench-api`: lists of the API, asked one after the other, among a hundred thousand certificates.

`holdfast serve` runs as an operator runs it, on a store that was filled before, and has nothing else to do. What is
measured is what a client waits: the request over TCP, the statements, and the whole answer; and the processor time of
the server and its database. All certificates end within 90 days, and a hundred thousand attempts ended in the last 30.
"""

import argparse
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import uvloop
from tests.support.postgres import Cluster, free_port

from bench.acme.processes import cpu_seconds, running, spawn
from bench.figures import figure
from bench.renew.scan import Table, furnish
from bench.renew.server import HOLDFAST, POSTGRESQL, SQLITE, Store
from holdfast.operations.installation.observe import SHARE

GOAL_MS = 50.0
CHAIN = "-----BEGIN CERTIFICATE-----\n" + ("A" * 64 + "\n") * 50 + "-----END CERTIFICATE-----\n"  # as long as most are
# The first page as people and programs ask for it, and what they look for.
LISTS: Mapping[str, Mapping[str, Any]] = {
    "first_page": {},
    "page_of_500": {"limit": 500},
    "of_one_owner": {"owner": "team-7"},
    "by_label": {"label": "tier=3"},
    "expiring_soon": {"expires_before": "SOON"},
    "text_search": {"q": "n00077"},
    "text_search_for_nothing": {"q": "not-there"},
    "text_search_for_all": {"q": "scan.test"},
    "with_total": {"total": "true"},
}
OTHERS = ("issuances", "approvals")
NUMBERS = ("summary", "expiry", "outcomes", "issuance-rate")
MORE = ("UPDATE certificates SET owner = 'team-' || (CAST(substr(name, 6, 3) AS INTEGER) % 50)",
        """UPDATE certificates SET labels = '{"tier": "' || (CAST(substr(name, 7, 2) AS INTEGER) % 5) || '"}'""",
        f"UPDATE certificate_versions SET chain_pem = '{CHAIN}'")  # fmt: skip
# What triggers keep, for rows that were written without them.
KEPT = (
    """UPDATE certificates SET ends_at = (SELECT not_after FROM certificate_versions AS held
                                          WHERE held.id = certificates.current_version)""",
    """INSERT INTO certificate_names (name, certificate, text) SELECT name, id, name FROM certificates
        WHERE true ON CONFLICT DO NOTHING""",
)
EVERY_US = 25_000_000  # between the ends of two attempts: a hundred thousand of them in 29 days
# One in fifty failed; of three CAs.
ATTEMPTS = """INSERT INTO issuances (id, certificate, generation, state, issuer, cause, identifiers, requested_by,
                                     started_at, ended_at, reason)
    SELECT 'attempt_' || substr(id, 13), id, 1, CASE WHEN {n} % 50 = 0 THEN 'failed' ELSE 'issued' END,
           CASE {n} % 3 WHEN 0 THEN 'own' WHEN 1 THEN 'second' ELSE 'third' END, 'DUE_LIFETIME', identifiers, 'system',
           {now} - ({n} + 1) * {every} - 5000000 - {n} % 1000, {now} - ({n} + 1) * {every},
           CASE WHEN {n} % 100 = 0 THEN 'CA_DOWN' WHEN {n} % 50 = 0 THEN 'DNS_TXT_NOT_VISIBLE' END
      FROM certificates"""
WAITING = """INSERT INTO approvals (id, issuance, certificate, state, requested_by, asked_at, expires_at)
    SELECT 'approval_' || substr(id, 9), id, certificate, 'pending', 'bench', started_at, started_at + 99 * 86400000000
      FROM issuances ORDER BY id LIMIT 1000"""


@contextmanager
def serving(folder: Path, store: Store) -> Iterator[tuple[str, int]]:
    """Its address, and its process."""
    acme, port = free_port(), free_port()
    env = {
        "HOLDFAST_STORE_DATA_DIR": str(folder),
        "HOLDFAST_SERVER_LISTEN": f"127.0.0.1:{port}",
        "HOLDFAST_ACME_LISTEN": f"127.0.0.1:{acme}",
        "HOLDFAST_METRICS_INTERVAL": "0s",
        **({"HOLDFAST_STORE_URL": store.where} if store.where.startswith("postgresql:") else {}),
    }
    with (folder / "log").open("w+b") as log:
        process = spawn([HOLDFAST, "serve"], folder=folder, env=env, log=log)
        with running(process, f"http://127.0.0.1:{port}/health/ready", name="holdfast"):
            yield f"http://127.0.0.1:{port}", process.pid


def a_token(data: Path) -> str:
    transport = httpx2.HTTPTransport(uds=str(data / "holdfast.sock"))
    with httpx2.Client(transport=transport, base_url="http://local", headers={"X-Holdfast-User": "bench"}) as api:
        answer = api.post("/api/v1/tokens", json={"name": "bench", "role": "viewer"})
        return str(answer.raise_for_status().json()["token"])


@dataclass(slots=True)
class Meter:
    """What clients waited, and the processor time of the server and of its database: other work changes that less."""

    pids: tuple[int, ...]
    took: list[float] = field(default_factory=list)  # milliseconds
    spent: float = 0.0

    @contextmanager
    def request(self) -> Iterator[None]:
        before, began = self.seconds(), time.perf_counter()
        yield
        self.took.append((time.perf_counter() - began) * 1000)
        self.spent += (self.seconds() - before) * 1000

    def seconds(self) -> float:
        return sum(map(cpu_seconds, self.pids))

    def tell(self, what: str) -> None:
        p95, cost = sorted(self.took)[int(len(self.took) * 0.95)], self.spent / len(self.took)
        figure(f"api_p95_{what}", p95, "ms", GOAL_MS, p95 <= GOAL_MS)
        figure(f"api_cpu_{what}", cost, "ms", GOAL_MS, cost <= GOAL_MS)


def asked(meter: Meter, api: httpx2.Client, query: Mapping[str, Any], number: int, path: str) -> None:
    """Of a list, each page after the one before."""
    cursor = None
    for _ in range(number):
        with meter.request():
            answer = api.get(path, params={**query, **({"cursor": cursor} if cursor else {})})
        if answer.is_error:
            raise SystemExit(answer.text[:500])
        body = answer.json()
        cursor = body.get("next") if isinstance(body, dict) and query == {} else None


def scraped(meter: Meter, api: httpx2.Client, number: int) -> None:
    """Each a look at the store: the server takes the next one when twenty times as long has passed."""
    for _ in range(number):
        with meter.request():
            text = api.get("/metrics").raise_for_status().text
        [looked] = re.findall(r"^holdfast_store_gauges_took_seconds (\S+)$", text, re.MULTILINE)
        time.sleep(SHARE * float(looked) + 0.1)


def settle(pids: tuple[int, ...]) -> None:
    """Wait until what has to be done at a start is done: a hundred thousand ends are looked at for the first time."""
    idle, before = Meter(pids), -1.0
    while (now := idle.seconds()) - before > 0.1:
        before = now
        time.sleep(3)


def furnished(name: str, folder: Path, where: str, rows: int) -> Store:
    table = Table(Store(where), rows, folder)
    uvloop.run(furnish(table))
    attempts = ATTEMPTS.format(n="CAST(substr(name, 2, 8) AS BIGINT)", now=int(time.time() * 1e6), every=EVERY_US)
    table.store.change(*MORE, *KEPT, attempts, WAITING)
    if name == POSTGRESQL:
        with closing(psycopg.connect(where, autocommit=True)) as connection:
            connection.execute("VACUUM ANALYZE")  # as autovacuum does within the minute
    return table.store


def measure(name: str, folder: Path, where: str, rows: int, number: int) -> None:
    store = furnished(name, folder, where, rows)
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 81 * 86400))
    with serving(folder, store) as (url, pid):
        headers = {"Authorization": f"Bearer {a_token(folder)}"}
        with httpx2.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as api:
            pids = (pid, *(backends(store) if name == POSTGRESQL else ()))
            settle(pids)
            for what, ask in requests(soon, number):
                meter = Meter(pids)
                ask(meter, api)
                meter.tell(f"{what}_{name}")


def requests(soon: str, number: int) -> Iterator[tuple[str, Callable[[Meter, httpx2.Client], None]]]:
    for what, query in LISTS.items():
        wanted = {key: soon if value == "SOON" else value for key, value in query.items()}
        yield what, partial(asked, query=wanted, number=number, path="/api/v1/certificates")
    for name in OTHERS:
        yield f"{name}_of_500", partial(asked, query={"limit": 500}, number=number, path=f"/api/v1/{name}")
    for name in NUMBERS:
        yield f"stats_{name}", partial(asked, query={}, number=number, path=f"/api/v1/stats/{name}")
    yield "metrics", partial(scraped, number=max(number // 10, 5))


def backends(store: Store) -> tuple[int, ...]:
    """The processes of PostgreSQL that work for the server: it keeps its connections."""
    return tuple(row[0] for row in store.rows("SELECT pid FROM pg_stat_activity WHERE application_name = 'holdfast'"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=200, help="of each kind")
    parser.add_argument("--stores", nargs="*", default=[SQLITE, POSTGRESQL], choices=[SQLITE, POSTGRESQL])
    wanted = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        for name in wanted.stores:
            data = folder / name
            data.mkdir(mode=0o700)
            if name == SQLITE:
                measure(name, data, str(data / "holdfast.sqlite"), wanted.rows, wanted.requests)
            else:
                with Cluster(tmpfs=True) as cluster:
                    measure(name, data, cluster.create_database(), wanted.rows, wanted.requests)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
