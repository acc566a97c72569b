"""`holdfast serve` as an operator runs it, fsync on, and its store by plain SQL: what happened is not asked of it."""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from tests.support.postgres import Cluster, free_port

from bench.acme.processes import dismiss, hear, python, running, spawn, tell

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
ENOUGH = "1000000"  # a limit that is not met here
LOG_END = 600  # characters shown when it does not start
SQLITE, POSTGRESQL = "sqlite", "postgresql"


class Unmeasured(Exception):
    """Something did not work, so there is no figure; the text says what."""


@dataclass(frozen=True, slots=True)
class Store:
    where: str  # a file, or the URL of a PostgreSQL database

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        with closing(self._connection()) as connection:
            return list(connection.execute(text).fetchall())

    def change(self, *texts: str) -> None:
        """All of them in one transaction."""
        with closing(self._connection()) as connection, connection:
            for text in texts:
                connection.execute(text)

    def unsafely(self, *texts: str) -> None:
        """For millions of rows in a file that nobody has open: nothing is synced, and no log is written."""
        with closing(sqlite3.connect(self.where, isolation_level=None)) as connection:
            for text in ("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", "PRAGMA cache_size = -65536"):
                connection.execute(text)
            for text in ("BEGIN", *texts, "COMMIT", "PRAGMA journal_mode = WAL"):
                connection.execute(text)

    def _connection(self) -> Any:
        if self.where.startswith("postgresql:"):
            return psycopg.connect(self.where)
        return sqlite3.connect(self.where, timeout=30)


@dataclass(frozen=True, slots=True)
class Server:
    """One that runs."""

    name: str
    data: Path
    directory: str
    http_port: int  # where it validates http-01
    store: Store
    pids: tuple[int, ...]  # itself, and its database


@contextmanager
def names() -> Iterator[int]:
    """A DNS server, by its port, to which every name is 127.0.0.1."""
    port = free_port()
    process = python("bench.acme.answerer", "--dns", str(port), "--http", str(free_port()))
    try:
        tell(process, "{}")  # no accounts: certbot answers for itself
        if hear(process) != "ready":
            raise Unmeasured("the DNS server did not start")
        yield port
    finally:
        dismiss(process)


@contextmanager
def on_sqlite(folder: Path, dns: int) -> Iterator[Server]:
    store = Store(str(folder / "data" / "holdfast.sqlite"))
    with _serving(SQLITE, folder, dns, store) as server:
        yield server


@contextmanager
def on_postgresql(folder: Path, dns: int, cluster: Cluster) -> Iterator[Server]:
    url = cluster.create_database()
    with _serving(POSTGRESQL, folder, dns, Store(url), cluster.pid) as server:
        yield server
    cluster.drop_database(url)


@contextmanager
def _serving(name: str, folder: Path, dns: int, store: Store, *database: int) -> Iterator[Server]:
    """Start it and wait for its directory; its last words are the error if it does not come up."""
    folder.mkdir()
    acme, http_port = free_port(), free_port()
    directory = f"https://localhost:{acme}/acme/default/directory"
    with (folder / "log").open("w+b") as log:
        process = spawn([HOLDFAST, "serve"], folder=folder, env=_settings(folder, dns, acme, http_port, store), log=log)
        try:
            with running(process, directory, name=name):
                yield Server(name, folder / "data", directory, http_port, store, (process.pid, *database))
        except (OSError, TimeoutError) as why:
            raise Unmeasured(f"{why}: {(folder / 'log').read_text(errors='replace')[-LOG_END:]}") from why


def _settings(folder: Path, dns: int, acme: int, http_port: int, store: Store) -> dict[str, str]:
    """The defaults, but for where things are, and for what a year brings and a minute does not.

    Certificates become due all at once here, so it looks every second: what is measured is not how long it sleeps.
    Renewals are weeks apart, so proofs are made anew: one that ends within the hour is not used again.
    """
    return {
        "HOLDFAST_STORE_DATA_DIR": str(folder / "data"),
        "HOLDFAST_SERVER_LISTEN": f"127.0.0.1:{free_port()}",
        "HOLDFAST_ACME_LISTEN": f"127.0.0.1:{acme}",
        "HOLDFAST_ACME_BASE_URL": f"https://localhost:{acme}",
        "HOLDFAST_ACME_RESOLVERS": f"127.0.0.1:{dns}",
        "HOLDFAST_ACME_HTTP_PORT": str(http_port),
        "HOLDFAST_ACME_NETWORKS": "127.0.0.0/8",
        "HOLDFAST_ACME_AUTHZ_LIFETIME": "30m",
        "HOLDFAST_ACME_ORDERS_PER_ACCOUNT": ENOUGH,
        "HOLDFAST_ACME_REQUESTS_PER_ADDRESS": ENOUGH,
        "HOLDFAST_ACME_REQUESTS_PER_ACCOUNT": ENOUGH,
        "HOLDFAST_ACME_PENDING_PER_ADDRESS": ENOUGH,
        "HOLDFAST_ACME_PENDING_PER_ACCOUNT": ENOUGH,
        "HOLDFAST_ACME_NAMES_PER_ADDRESS": ENOUGH,
        "HOLDFAST_ACME_NAMES_PER_ACCOUNT": ENOUGH,
        "HOLDFAST_SCHEDULER_RENEWAL_INTERVAL": "1s",
        **({"HOLDFAST_STORE_URL": store.where} if store.where.startswith("postgresql:") else {}),
    }
