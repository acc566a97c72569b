"""PostgreSQL: READ COMMITTED with compare-and-set, a client deadline on every call, NOTIFY only as a hint."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from holdfast.errors import (
    Duplicate,
    OutcomeUnknown,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    StoreUnfit,
    TxConflict,
)
from holdfast.secret import Secret
from holdfast.store.libpq import Failed, Statements
from holdfast.store.tx import Row

CHANNEL: Final = "holdfast"
RIGHTS: Final = (
    "Give Holdfast a database of its own (CREATE DATABASE holdfast OWNER the_user), or the right to make tables "
    "in this one (GRANT USAGE, CREATE ON SCHEMA public TO the_user)."
)
_CONFLICTS: Final = {"40001", "40P01", "55P03"}
# Classes of SQLSTATE that say "not now": connection, resources (disk full among them), operator intervention, system.
_PASSING: Final = ("08", "53", "57", "58")


class PostgresEngine:
    """A server that several replicas share. Every connection remembers the timeline it was opened on."""

    name = "postgresql"
    readers = 2
    near = False
    shared = True

    def __init__(self, url: Secret[str], *, connections: int) -> None:
        self.writers = connections
        self._url = url
        try:
            where = conninfo_to_dict(url.reveal())
        except psycopg.ProgrammingError:  # its text repeats the address, password and all
            raise StoreRefused(
                "store.url is not a PostgreSQL address.", "Write it as postgresql://user@host:5432/name."
            ) from None
        self.where = f"{where.get('host', 'localhost')}:{where.get('port', 5432)}/{where.get('dbname', '')}"
        self._own_pids: set[int] = set()
        self._listener: _Listener | None = None

    def connect(self, *, write: bool, deadline: float) -> PostgresSession:
        connection = self.open(deadline=deadline)
        self._own_pids.add(connection.info.backend_pid)
        try:
            epoch = _timeline(connection)
        except psycopg.Error as error:
            connection.close()
            raise StoreUnavailable(f"PostgreSQL at {self.where} does not answer: {_first_line(error)}") from error
        return PostgresSession(connection, epoch)

    def open(self, *, deadline: float) -> psycopg.Connection[Row]:
        limit = int(deadline * 1000)
        try:
            return psycopg.connect(
                self._url.reveal(),
                autocommit=True,
                row_factory=dict_row,
                connect_timeout=max(2, int(deadline)),
                target_session_attrs="read-write",  # never an old primary that became a standby
                tcp_user_timeout=max(1000, limit),
                # A client that is frozen inside a transaction holds locks that all others need: the server ends it.
                options=f"-c statement_timeout={limit} -c idle_in_transaction_session_timeout={limit} -c timezone=UTC",
                application_name="holdfast",
            )
        except psycopg.Error as error:
            raise StoreUnavailable(f"PostgreSQL at {self.where} cannot be reached: {_first_line(error)}") from error

    def listen(self, heard: Callable[[], None]) -> None:
        self._listener = _Listener(self, heard, self._own_pids)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()


class PostgresSession:
    """One connection in autocommit mode; transactions are opened by hand."""

    def __init__(self, connection: psycopg.Connection[Row], epoch: int) -> None:
        self._connection = connection
        self._statements = Statements(connection)
        self.epoch = epoch

    @property
    def broken(self) -> bool:
        return self._connection.closed or self._connection.broken

    def begin(self, *, write: bool) -> None:
        self._command(b"BEGIN" if write else b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def now_us(self) -> int:
        return int(self.query("SELECT now_us() AS now", {})[0]["now"])

    def execute(self, sql: str, params: Mapping[str, Any]) -> int:
        try:
            return self._statements.execute(sql, params)
        except Failed as error:
            raise self._translated(error) from error

    def query(self, sql: str, params: Mapping[str, Any]) -> list[Row]:
        try:
            return self._statements.query(sql, params)
        except Failed as error:
            raise self._translated(error) from error

    def commit(self) -> None:
        try:
            done = self._statements.command(b"COMMIT")
        except Failed as error:
            problem = self._translated(error)
            if isinstance(problem, StoreUnavailable):
                self._connection.close()
                raise OutcomeUnknown(f"the answer to COMMIT was lost: {error}") from error
            raise problem from error
        if done == "ROLLBACK":
            raise StoreError("the transaction had failed and was rolled back")

    def rollback(self) -> None:
        if self.broken:
            return
        try:
            self._statements.command(b"ROLLBACK")
        except Failed:
            self._connection.close()

    def relax(self) -> None:
        self._command(b"SET LOCAL synchronous_commit TO OFF")

    def notify(self) -> None:
        with contextlib.suppress(Failed):
            self._statements.command(f"NOTIFY {CHANNEL}".encode())

    def abort(self) -> None:
        _cut(self._connection)

    def close(self) -> None:
        self._connection.close()

    def _command(self, text: bytes) -> None:
        try:
            self._statements.command(text)
        except Failed as error:
            raise self._translated(error) from error

    def _translated(self, error: Failed) -> Exception:
        if error.state in _CONFLICTS:
            return TxConflict(str(error))
        if error.state == "23505":
            return Duplicate(str(error))
        if self.broken or not error.state or error.state.startswith(_PASSING):
            return StoreUnavailable(f"PostgreSQL cannot do this now: {error}")
        if error.state == "42501":
            return StoreUnfit(f"PostgreSQL does not let this user do that: {error}", RIGHTS)
        return StoreError(f"SQLSTATE {error.state}: {error}")


def _timeline(connection: psycopg.Connection[Row]) -> int:
    """The timeline grows with every promotion. The insert position shows the new one at once; a checkpoint lags.

    PostgreSQL-compatible databases that never lose commits on failover have no timelines: for them it is 1.
    """
    try:
        row = connection.execute("SELECT pg_walfile_name(pg_current_wal_insert_lsn()) AS wal").fetchone()
    except (
        psycopg.errors.UndefinedFunction,
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.FeatureNotSupported,
    ):
        return 1
    return int(row["wal"][:8], 16) if row else 1


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _cut(connection: psycopg.Connection[Row]) -> None:
    """Cut the line: the thread that waits on it gets an error at once, whatever the server does."""
    with contextlib.suppress(OSError, psycopg.Error):
        line = socket.socket(fileno=os.dup(connection.fileno()))
        try:
            line.shutdown(socket.SHUT_RDWR)
        finally:
            line.close()


class _Listener:
    """A thread with a connection of its own that waits for hints from other replicas."""

    def __init__(self, engine: PostgresEngine, heard: Callable[[], None], own_pids: set[int]) -> None:
        self._engine = engine
        self._heard = heard
        self._own_pids = own_pids
        self._closing = threading.Event()
        self._connection: psycopg.Connection[Row] | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-listen", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._connection is not None:
            _cut(self._connection)  # it need not wait out its turn
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with self._engine.open(deadline=5.0) as connection:
                    self._connection = connection
                    connection.execute(f"LISTEN {CHANNEL}")
                    self._heard()  # what was missed while nobody listened
                    self._hear(connection)
            except (psycopg.Error, StoreUnavailable):
                self._closing.wait(1.0)  # polling goes on meanwhile

    def _hear(self, connection: psycopg.Connection[Row]) -> None:
        while not self._closing.is_set():
            for notice in connection.notifies(timeout=0.5, stop_after=1):
                if notice.pid not in self._own_pids:
                    self._heard()
