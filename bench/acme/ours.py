"""Our server for the benchmark: `holdfast serve` as an operator runs it, on SQLite or on PostgreSQL, fsync on."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.postgres import Cluster, free_port

from bench.acme.drive import Server
from bench.acme.processes import fetch, running, spawn
from bench.acme.space import Ports

COMMITS = "holdfast_store_commits_total"
ENOUGH = "1000000"  # a limit that is not met here
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
LOG_END = 600  # characters shown when it does not start


@contextmanager
def sqlite(folder: Path, ports: Ports) -> Iterator[Server]:
    with _serving("holdfast-sqlite", folder, ports, {}) as (server, pid):
        yield _server("holdfast-sqlite", server, {"server": pid})


@contextmanager
def postgresql(
    folder: Path, ports: Ports, cluster: Cluster, *, processes: int = 1, source: Path | None = None
) -> Iterator[Server]:
    """`source`: the source folder of another version, which is run instead of this one."""
    url = cluster.create_database()
    env = {"HOLDFAST_STORE_URL": url, **({} if source is None else {"PYTHONPATH": str(source.absolute())})}
    options = () if processes == 1 else ("--processes", str(processes))
    with _serving("holdfast-postgresql", folder, ports, env, *options) as (server, pid):
        yield _server("holdfast-postgresql", server, {"server": pid, "database": cluster.pid})
    cluster.drop_database(url)


def _settings(folder: Path, ports: Ports, acme: int, metrics: int) -> dict[str, str]:
    """The defaults, but for where things are and for limits that a load from one address would meet."""
    return {
        "HOLDFAST_STORE_DATA_DIR": str(folder / "data"),
        "HOLDFAST_SERVER_LISTEN": f"127.0.0.1:{metrics}",
        "HOLDFAST_ACME_LISTEN": f"127.0.0.1:{acme}",
        "HOLDFAST_ACME_BASE_URL": f"https://localhost:{acme}",
        "HOLDFAST_ACME_RESOLVERS": f"127.0.0.1:{ports.dns}",
        "HOLDFAST_ACME_HTTP_PORT": str(ports.http),
        "HOLDFAST_ACME_NETWORKS": "127.0.0.0/8",
        "HOLDFAST_ACME_ORDERS_PER_ACCOUNT": ENOUGH,
        "HOLDFAST_ACME_REQUESTS_PER_ADDRESS": ENOUGH,
        "HOLDFAST_ACME_REQUESTS_PER_ACCOUNT": ENOUGH,
        "HOLDFAST_ACME_PENDING_PER_ADDRESS": ENOUGH,
        "HOLDFAST_ACME_PENDING_PER_ACCOUNT": ENOUGH,
        "HOLDFAST_ACME_NAMES_PER_ADDRESS": ENOUGH,
        "HOLDFAST_ACME_NAMES_PER_ACCOUNT": ENOUGH,
        "HOLDFAST_ACME_ACCOUNTS_PER_ADDRESS": ENOUGH,
    }


@contextmanager
def _serving(
    name: str, folder: Path, ports: Ports, store: Mapping[str, str], *options: str
) -> Iterator[tuple[tuple[int, int], int]]:
    """Start it and wait for its directory; its last words are the error if it does not come up."""
    folder.mkdir()
    acme, metrics = free_port(), free_port()
    env = {**_settings(folder, ports, acme, metrics), **store}
    with (folder / "log").open("w+b") as log:
        process = spawn([HOLDFAST, "serve", *options], folder=folder, env=env, log=log)
        try:
            with running(process, _directory(acme), name=name):
                yield (acme, metrics), process.pid
        except (OSError, TimeoutError, subprocess.SubprocessError) as why:
            said = (folder / "log").read_text(errors="replace")[-LOG_END:]
            raise OSError(f"{why}: {said}") from why


def _directory(port: int) -> str:
    return f"https://localhost:{port}/acme/default/directory"


def _server(name: str, ports: tuple[int, int], processes: Mapping[str, int]) -> Server:
    acme, metrics = ports
    return Server(name, _directory(acme), processes, commits=lambda: _commits(f"http://127.0.0.1:{metrics}/metrics"))


def _commits(url: str) -> float | None:
    """Durable commits so far, as it counts them itself; None if it does not."""
    lines = [line for line in fetch(url).splitlines() if line.startswith(COMMITS)]
    return sum(float(line.rpartition(" ")[2]) for line in lines) if lines else None
