"""A store of its own for each run of a harness, on either engine: what it holds, and how to let its leases grow old."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol, TypeVar

from holdfast.secret import Secret
from holdfast.store.postgres import PostgresEngine
from holdfast.store.sqlite import SqliteSession, open_connection
from holdfast.store.tx import Session, Tx
from tests.support.child import SkewedClock
from tests.support.postgres import Cluster
from tests.support.reaper import PATIENCE

T = TypeVar("T")
LATER: Final = 3600.0  # seconds: longer than any lease


class Ground(Protocol):
    """One store, and a folder for what lies beside it."""

    engine: str
    store: str  # as a child is told
    folder: Path
    offset: float  # by how much the clock of the next child must be ahead

    def let_leases_expire(self) -> None:
        """Let every lease there is end now, as if its time had passed. Only while nobody works here."""

    def open(self) -> Session: ...

    def close(self) -> None: ...


@dataclass
class SqliteGround:
    """A file. Its clock is that of the process that has it open, so time passes by setting the next one's clock.

    To write into the file instead would recover it first, which is the successor's job and ours to test.
    """

    folder: Path
    engine: str = "sqlite"
    offset: float = 0.0

    @property
    def store(self) -> str:
        return str(self.folder / "holdfast.sqlite")

    def let_leases_expire(self) -> None:
        self.offset += LATER

    def open(self) -> Session:
        clock = SkewedClock(timedelta(seconds=self.offset))
        return SqliteSession(open_connection(self.store, clock, write=False, deadline=PATIENCE))

    def close(self) -> None:
        pass


@dataclass
class PostgresGround:
    """A database. Its clock is the server's, so time passes by moving the leases."""

    folder: Path
    cluster: Cluster
    store: str
    engine: str = "postgresql"
    offset: float = 0.0

    def let_leases_expire(self) -> None:
        session = self.open()
        try:
            for table, column in (("jobs", "lease_until"), ("leases", "until")):
                if session.query("SELECT 1 FROM pg_class WHERE relname = :table", {"table": table}):
                    session.execute(f"UPDATE {table} SET {column} = {column} - {int(LATER * 1e6)}", {})
        finally:
            session.close()

    def open(self) -> Session:
        return PostgresEngine(Secret(self.store), connections=1).connect(write=True, deadline=PATIENCE)

    def close(self) -> None:
        self.cluster.drop_database(self.store)


@contextmanager
def ground(parent: Path, cluster: Cluster | None, template: str = "template1") -> Iterator[Ground]:
    """An empty store that nobody else uses: SQLite in the folder, or a database of the cluster."""
    folder = parent / f"g{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    if cluster is None:
        yield SqliteGround(folder)
        return
    here = PostgresGround(folder, cluster, cluster.create_database(template))
    try:
        yield here
    finally:
        here.close()


def look(ground: Ground, fn: Callable[[Tx], T]) -> T:
    """Read the store from outside, as an auditor would."""
    session = ground.open()
    try:
        session.begin(write=False)
        try:
            return fn(Tx(session))
        finally:
            session.rollback()
    finally:
        session.close()
