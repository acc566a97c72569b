"""PostgreSQL: READ COMMITTED with compare-and-set, a client deadline on every call, NOTIFY only as a hint."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq.abc import PGresult
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
from holdfast.store.tx import PARAMETER, Row

PREPARE_AFTER: Final = 5  # uses
MOST_KNOWN: Final = 256  # statements of a connection; the one that was not used for longest goes first
_LOCK: Final = re.compile(r"/\* (FOR UPDATE(?: SKIP LOCKED)?) \*/")
_FINE: Final = frozenset({pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.EMPTY_QUERY})
_Column = tuple[str, Callable[[Any], Any]]
_TEXT, _BINARY = pq.Format.TEXT, pq.Format.BINARY


class StatementFailed(Exception):
    """What the server said, in one line; without a state it said nothing, and the connection is gone."""

    def __init__(self, message: str, state: str = "") -> None:
        super().__init__(message)
        self.state = state


class _Statement:
    """A text with the types of its parameters, as one connection knows it."""

    __slots__ = ("columns", "name", "prepared", "uses")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.uses, self.prepared = 0, False
        self.columns: Sequence[_Column] = ()  # once there was an answer: names, and how to read


class Statements:
    """Runs statements on one connection, each in one blocking call that does not delay others."""

    def __init__(self, connection: psycopg.Connection[object], *, prepares: bool = True) -> None:
        self._connection = connection
        self._prepares = prepares
        self._line = connection.pgconn
        self._known: OrderedDict[tuple[bytes, tuple[int, ...]], _Statement] = OrderedDict()
        self._named = 0

    def command(self, text: bytes) -> str:
        """Run what has neither parameters nor rows; the server's word for what it did."""
        return (self._answer(self._line.exec_, text).command_status or b"").decode()

    def execute(self, sql: str, params: Mapping[str, object]) -> int:
        """How many rows it changed; -1 for what changes none."""
        changed = self._run(sql, params)[1].command_tuples
        return -1 if changed is None else changed

    def query(self, sql: str, params: Mapping[str, object]) -> list[Row]:
        statement, result = self._run(sql, params)
        columns = statement.columns = statement.columns or self._columns(result)
        value = result.get_value
        return [
            {name: None if (raw := value(row, n)) is None else load(raw) for n, (name, load) in enumerate(columns)}
            for row in range(result.ntuples)
        ]

    def _run(self, sql: str, params: Mapping[str, object]) -> tuple[_Statement, PGresult]:
        text, names = translate(sql)
        types, forms, values = [], [], []
        for name in names:
            value = params[name]
            kind, form, write = _WRITTEN[type(value)]
            types.append(kind)
            forms.append(form)
            values.append(write(value))
        statement = self._statement(text, tuple(types))
        if statement.prepared:
            return statement, self._answer(self._line.exec_prepared, statement.name, values, forms)
        if not names:
            return statement, self._answer(self._line.exec_, text)  # perhaps several, as those of a schema step
        return statement, self._answer(self._line.exec_params, text, values, types, forms)

    def _statement(self, text: bytes, types: tuple[int, ...]) -> _Statement:
        statement = self._known.get((text, types))
        if statement is None:
            self._named += 1
            statement = self._known[text, types] = _Statement(b"s%d" % self._named)
            self._forget()
        else:
            self._known.move_to_end((text, types))
        statement.uses += 1
        if self._prepares and statement.uses > PREPARE_AFTER and not statement.prepared:
            self._answer(self._line.prepare, statement.name, text, types)
            statement.prepared = True
        return statement

    def _forget(self) -> None:
        if len(self._known) > MOST_KNOWN:
            oldest = self._known.popitem(last=False)[1]
            if oldest.prepared:
                self.command(b"DEALLOCATE " + oldest.name)

    def _columns(self, result: PGresult) -> Sequence[_Column]:
        adapters, found = self._connection.adapters, list[_Column]()
        for n in range(result.nfields):
            loader = adapters.get_loader(result.ftype(n), _TEXT) or adapters.get_loader(_oid("text"), _TEXT)
            if loader is None:
                raise AssertionError("psycopg reads texts")
            found.append(((result.fname(n) or b"").decode(), loader(result.ftype(n), self._connection).load))
        return found

    def _answer(self, call: Callable[..., PGresult], *args: object) -> PGresult:
        try:
            result = call(*args)
        except (MemoryError, psycopg.OperationalError):  # nothing could be sent at all
            raise StatementFailed(_message_line(self._line.error_message)) from None
        if result.status not in _FINE:
            state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
            primary = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
            raise StatementFailed(_message_line(primary or result.error_message), state)
        return result


def _message_line(message: bytes) -> str:
    return (message.decode(errors="replace").strip() or "the connection is closed").splitlines()[0]


# ── Our SQL and our values, as the server wants them ──


@lru_cache(maxsize=2048)
def translate(sql: str) -> tuple[bytes, tuple[str, ...]]:
    """Our SQL with numbers for the names of its parameters, and with the lock clause that SQLite reads as a comment."""
    names = tuple(dict.fromkeys(PARAMETER.findall(sql)))
    numbered = PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", sql)
    return _LOCK.sub(r"\1", numbered).encode(), names


def _text(value: str) -> bytes:
    if "\0" in value:  # libpq would end the text there, without a word
        raise StatementFailed("PostgreSQL text fields cannot contain NUL (0x00) bytes", "22021")
    return value.encode()


def _oid(name: str) -> int:
    return psycopg.adapters.types[name].oid


# By type: what the server is told that it is, in which form, and how it is written. What a text is, its place says.
# Every whole number is a bigint: so the same statement is the same one, however large its numbers are.
_WRITTEN: Final[Mapping[type, tuple[int, int, Callable[[Any], bytes | None]]]] = {
    str: (0, _TEXT, _text),
    int: (_oid("int8"), _TEXT, lambda value: b"%d" % value),
    bool: (_oid("bool"), _TEXT, lambda value: b"t" if value else b"f"),
    float: (_oid("float8"), _TEXT, lambda value: repr(value).encode()),
    bytes: (_oid("bytea"), _BINARY, lambda value: value),
    type(None): (0, _TEXT, lambda value: None),
}


CHANNEL: Final = "holdfast"
RIGHTS: Final = (
    "Give Holdfast a database of its own (CREATE DATABASE holdfast OWNER the_user), or the right to make tables "
    "in this one (GRANT USAGE, CREATE ON SCHEMA public TO the_user)."
)
_CONFLICTS: Final = {"40001", "40P01", "55P03"}
# Classes of SQLSTATE that say "not now": connection, resources (disk full among them), operator intervention, system.
_PASSING: Final = ("08", "53", "57", "58")
# What a server says to a write once it is a standby: behind a pooler or a proxy the connection outlives the switchover.
_READ_ONLY: Final = "25006"
_NOT_SUPPORTED: Final = "0A000"
# What is said of a prepared statement that stayed behind in another session, or that another client prepared.
_OTHER_SESSION: Final = frozenset({"26000", "42P05"})
SESSIONS_TRIED: Final = 3  # to find out whether a pooler hands ours on
STANDBY: Final = "it is a standby, or read-only. Name the primary in store.url, best all servers that may become one"
MOST_FOR_ONE_HOST: Final = 5.0  # seconds, of several hosts
POOLED: Final = (
    'Let PgBouncer pool by session (pool_mode = session), or set store.pooler to "transaction". '
    "Name the server itself in store.migrate_url for changes of the schema."
)


class PostgresEngine:
    """A server that several replicas share. Every connection remembers the timeline it was opened on."""

    name = "postgresql"
    readers = 2
    near = False
    shared = True

    def __init__(self, url: Secret[str], *, connections: int, pooled: bool = False) -> None:
        """`pooled`: a pooler gives each transaction another connection of its own, so that a session keeps nothing."""
        self.writers = connections
        self._url = url
        self._pooled = pooled
        try:
            where = conninfo_to_dict(url.reveal())
        except psycopg.ProgrammingError:  # its text repeats the address, password and all
            raise StoreRefused(
                "store.url is not a PostgreSQL address.", "Write it as postgresql://user@host:5432/name."
            ) from None
        self.where = f"{where.get('host', 'localhost')}:{where.get('port', 5432)}/{where.get('dbname', '')}"
        self._hosts = 1 + str(where.get("host") or where.get("hostaddr") or "").count(",")
        self._own_pids: set[int] = set()
        self._listener: _Listener | None = None
        self._sessions_kept = False  # once it was looked at
        self.through_pooler = False  # likewise

    def connect(self, *, write: bool, deadline: float) -> PostgresSession:
        connection = self.open(deadline=deadline)
        self._own_pids.add(connection.info.backend_pid)
        try:
            epoch, place = _timeline(connection), _place(connection)
            self._check_sessions(connection, deadline=deadline)
        except (psycopg.Error, StoreUnavailable, StoreUnfit) as error:
            connection.close()
            if isinstance(error, psycopg.Error):
                raise StoreUnavailable(f"PostgreSQL at {self.where} does not answer: {_first_line(error)}") from error
            raise
        return PostgresSession(connection, epoch, place, limit=int(deadline * 1000) if self._pooled else None)

    def open(self, *, deadline: float) -> psycopg.Connection[Row]:
        limit = int(deadline * 1000)
        each = deadline if self._hosts == 1 else min(deadline / self._hosts, MOST_FOR_ONE_HOST)
        try:
            connection = psycopg.connect(
                self._url.reveal(),
                autocommit=True,
                row_factory=dict_row,
                connect_timeout=max(2, int(each)),
                target_session_attrs="read-write",  # never an old primary that became a standby
                tcp_user_timeout=max(1000, limit),
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
                application_name="holdfast",
                **({"prepare_threshold": None} if self._pooled else {}),
            )
            if not self._pooled:
                connection.execute(_limits(limit, "SESSION").encode())
        except psycopg.Error as error:
            if "read-only" in str(error):  # of several hosts, the last one that answered
                raise StoreUnavailable(f"PostgreSQL at {self.where} takes no writes: {STANDBY}") from error
            raise StoreUnavailable(f"PostgreSQL at {self.where} cannot be reached: {_first_line(error)}") from error
        return connection

    def _check_sessions(self, connection: psycopg.Connection[Row], *, deadline: float) -> None:
        """Refuse a pooler that pools by transaction though no setting says so: statements that one client prepared
        would be gone, or another client's. Between a client and its server stands a pooler if the process that the
        client was told of is not the one that answers."""
        if self._sessions_kept or (mine := _pid(connection)) == connection.info.backend_pid:
            return
        self.through_pooler = True
        if self._pooled:
            return
        with contextlib.ExitStack() as others:
            for _ in range(SESSIONS_TRIED):
                other = others.enter_context(self.open(deadline=deadline))
                others.enter_context(other.transaction())
                if _pid(other) == mine or _pid(connection) != mine:  # it changed hands while we are connected
                    raise StoreUnfit(f"The pooler at {self.where} gives each transaction another session.", POOLED)
        self._sessions_kept = True

    def listen(self, heard: Callable[[], None]) -> None:
        if not self._pooled:  # a session that changes hands hears nothing: polling is always on
            self._listener = _Listener(self, heard, self._own_pids)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()


class PostgresSession:
    """One connection in autocommit mode; transactions are opened by hand."""

    combines = True

    def __init__(
        self, connection: psycopg.Connection[Row], epoch: int, place: str = "", *, limit: int | None = None
    ) -> None:
        """`limit`, in milliseconds: a pooler stands between, so each transaction says for itself how long it may be."""
        self._connection = connection
        self._statements = Statements(connection, prepares=limit is None)
        self._begin = b"BEGIN" if limit is None else f"BEGIN; {_limits(limit, 'LOCAL')}".encode()
        self._writing = False
        self.epoch = epoch
        self.place = place

    @property
    def broken(self) -> bool:
        return self._connection.closed or self._connection.broken

    def begin(self, *, write: bool) -> None:
        self._writing = write
        self._command(self._begin if write else b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def now_us(self) -> int:
        return int(self.query("SELECT now_us() AS now", {})[0]["now"])

    def execute(self, sql: str, params: Mapping[str, object]) -> int:
        try:
            return self._statements.execute(sql, params)
        except StatementFailed as error:
            raise self._translated(error) from error

    def query(self, sql: str, params: Mapping[str, object]) -> list[Row]:
        try:
            return self._statements.query(sql, params)
        except StatementFailed as error:
            raise self._translated(error) from error

    def commit(self) -> None:
        try:
            done = self._statements.command(b"COMMIT")
        except StatementFailed as error:
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
        except StatementFailed:
            self._connection.close()

    def relax(self) -> None:
        self._command(b"SET LOCAL synchronous_commit TO OFF")

    def notify(self) -> None:
        with contextlib.suppress(StatementFailed):
            self._statements.command(f"NOTIFY {CHANNEL}".encode())

    def abort(self) -> None:
        _cut(self._connection)

    def close(self) -> None:
        self._connection.close()

    def _command(self, text: bytes) -> None:
        try:
            self._statements.command(text)
        except StatementFailed as error:
            raise self._translated(error) from error

    def _translated(self, error: StatementFailed) -> Exception:
        if error.state in _CONFLICTS:
            return TxConflict(str(error))
        if error.state in _OTHER_SESSION:
            self._connection.close()
            return StoreUnfit(f"A pooler gives each transaction another session: {error}.", POOLED)
        if self._became_standby(error):
            self._connection.close()
            return StoreUnavailable(f"this PostgreSQL server takes no writes any more: {error}")
        if error.state == "23505":
            return Duplicate(str(error))
        if self.broken or not error.state or error.state.startswith(_PASSING):
            return StoreUnavailable(f"PostgreSQL cannot do this now: {error}")
        if error.state == "42501":
            return StoreUnfit(f"PostgreSQL does not let this user do that: {error}", RIGHTS)
        return StoreError(f"SQLSTATE {error.state}: {error}")

    def _became_standby(self, error: StatementFailed) -> bool:
        if error.state == _NOT_SUPPORTED:
            return "recovery" in str(error)
        return error.state == _READ_ONLY and self._writing


def _limits(milliseconds: int, scope: str) -> str:
    """A client that is frozen inside a transaction holds locks that all others need: the server ends it."""
    limits = {"statement_timeout": str(milliseconds), "idle_in_transaction_session_timeout": str(milliseconds)}
    return "; ".join(f"SET {scope} {name} TO '{value}'" for name, value in (limits | {"timezone": "UTC"}).items())


def _pid(connection: psycopg.Connection[Row]) -> int:
    row = connection.execute("SELECT pg_backend_pid() AS pid").fetchone()
    return 0 if row is None else int(row["pid"])


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


def _place(connection: psycopg.Connection[Row]) -> str:
    """The cluster by its identifier, which initdb draws, and the database in it; a standby has those of its primary."""
    try:
        row = connection.execute(
            """SELECT (SELECT system_identifier FROM pg_control_system()) AS server,
                      (SELECT oid FROM pg_database WHERE datname = current_database()) AS database"""
        ).fetchone()
    except (
        psycopg.errors.UndefinedFunction,
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.FeatureNotSupported,
    ):
        return ""
    return f"database {row['database']} of server {row['server']}" if row else ""


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
            for notification in connection.notifies(timeout=0.5, stop_after=1):
                if notification.pid not in self._own_pids:
                    self._heard()
