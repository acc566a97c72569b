"""`make bench-api`: lists of the API, asked one after the other, among a hundred thousand certificates.

`holdfast serve` runs as an operator runs it, on a store that was filled before. What is measured is what a client
waits: the request over TCP, the statements, and the whole answer.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import uvloop
from tests.support.postgres import Cluster, free_port

from bench.acme.processes import cpu_seconds, running, spawn
from bench.figures import figure
from bench.renew.scan import Table, furnish
from bench.renew.server import HOLDFAST, POSTGRESQL, SQLITE, Store

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
    "with_total": {"total": "true"},
}
NUMBERS = ("summary", "expiry", "outcomes", "issuance-rate")
MORE = ("UPDATE certificates SET owner = 'team-' || (CAST(substr(name, 6, 3) AS INTEGER) % 50)",
        """UPDATE certificates SET labels = '{"tier": "' || (CAST(substr(name, 7, 2) AS INTEGER) % 5) || '"}'""",
        f"UPDATE certificate_versions SET chain_pem = '{CHAIN}'")  # fmt: skip


@contextmanager
def serving(folder: Path, store: Store) -> Iterator[tuple[str, int]]:
    """Its address, and its process."""
    acme, port = free_port(), free_port()
    env = {
        "HOLDFAST_STORE_DATA_DIR": str(folder),
        "HOLDFAST_SERVER_LISTEN": f"127.0.0.1:{port}",
        "HOLDFAST_ACME_LISTEN": f"127.0.0.1:{acme}",
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


def asked(api: httpx2.Client, query: Mapping[str, Any], number: int, path: str) -> list[float]:
    """Milliseconds of each request; of a list, each page after the one before."""
    took, cursor = [], None
    for _ in range(number):
        began = time.perf_counter()
        answer = api.get(path, params={**query, **({"cursor": cursor} if cursor else {})})
        took.append((time.perf_counter() - began) * 1000)
        if answer.is_error:
            raise SystemExit(answer.text[:500])
        body = answer.json()
        cursor = body.get("next") if isinstance(body, dict) and query == {} else None
    return sorted(took)


def measure(name: str, folder: Path, where: str, rows: int, number: int) -> None:
    table = Table(Store(where), rows, folder)
    uvloop.run(furnish(table))
    table.store.change(*MORE)
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 81 * 86400))
    with serving(folder, table.store) as (url, pid):
        headers = {"Authorization": f"Bearer {a_token(folder)}"}
        with httpx2.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as api:
            for what, query in LISTS.items():
                wanted = {key: soon if value == "SOON" else value for key, value in query.items()}
                tell(name, what, pid, lambda wanted=wanted: asked(api, wanted, number, "/api/v1/certificates"))  # type: ignore[misc]
            few = max(number // 5, 5)
            for path in NUMBERS:
                tell(name, f"stats_{path}", pid, lambda path=path: asked(api, {}, few, f"/api/v1/stats/{path}"))  # type: ignore[misc]


def tell(store: str, what: str, pid: int, ask: Callable[[], list[float]]) -> None:
    """What clients waited, and what it cost the server, which other work on the machine changes less."""
    before = cpu_seconds(pid)
    took = ask()
    cost = (cpu_seconds(pid) - before) * 1000 / len(took)
    p95 = took[int(len(took) * 0.95)]
    figure(f"api_p95_{what}_{store}", p95, "ms", GOAL_MS, p95 <= GOAL_MS)
    figure(f"api_cpu_{what}_{store}", cost, "ms", GOAL_MS, cost <= GOAL_MS)


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
