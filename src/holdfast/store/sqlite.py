"""SQLite: WAL, synchronous FULL, one process, one writer that is also the only checkpointer."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sqlite3
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Final

from holdfast.errors import (
    Duplicate,
    OutcomeUnknown,
    StoreDamaged,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    StoreUnfit,
    TxConflict,
)
from holdfast.ports import Clock
from holdfast.store.tx import Row, to_micros

FROM_BACKUP: Final = "Move it away and restore a backup: holdfast backup restore FILE"
MACHINE_ID: Final = Path("/etc/machine-id")
OLDEST: Final = (3, 35, 0)  # RETURNING
APPLICATION_ID: Final = 0x486F6C64  # "Hold": what file(1) shows
OUR_TABLES: Final = frozenset({"schema_lock", "schema_migrations"})  # in every database of ours, of whatever version
_MAGIC: Final = b"SQLite format 3\x00"
_RETRYABLE: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_NO_ROOM: Final = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
}


class SqliteEngine:
    """One file, one process. The instance lock and the file's size are checked before SQLite may touch it."""

    name = "sqlite"
    writers = 1
    readers = 2
    near = True
    shared = False

    def __init__(self, path: Path, clock: Clock) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise StoreRefused(
                f"SQLite {sqlite3.sqlite_version} is too old: Holdfast needs 3.35 or newer.",
                "Use a newer Python build, or PostgreSQL (store.url).",
            )
        self.path = path
        self._clock = clock
        self._lock = _take_instance_lock(path)
        try:
            self._admit()
        except BaseException:
            self._lock.close()
            raise

    def _admit(self) -> None:
        """Refuse a file that lost its content; let SQLite finish what a crash interrupted, and look again."""
        wal = self.path.with_name(self.path.name + "-wal")
        recovering = wal.exists() and wal.stat().st_size > 0
        if not self.path.exists():
            if recovering:  # beside a new file it would be taken for that one's
                raise StoreRefused(
                    f"{self.path} is missing, but its log {wal.name} is there.",
                    "Move the log away, then: holdfast backup restore FILE. To start anew, remove the log yourself.",
                )
            _create(self.path, self._clock)
            return
        cut = _cut(self.path)
        if recovering or not cut:
            self._refuse_strangers()
        if recovering:
            if cut:
                self._refuse_holes(cut)
            self._recover()
            cut = _cut(self.path)
        if cut:
            raise _malformed(self.path, cut)

    def _refuse_strangers(self) -> None:
        """A file of another program: our tables would be made beside its own. Looked at, and never written to."""
        if _marked(self.path):
            return
        session = open_read_only(self.path, self._clock)
        try:
            [mark] = session.query("PRAGMA application_id", {})
            tables = {row["name"] for row in session.query("SELECT name FROM sqlite_master WHERE type = 'table'", {})}
        except StoreError:
            return  # opening it for good reports the error
        finally:
            session.close()
        ours = mark["application_id"] == APPLICATION_ID or (not mark["application_id"] and tables >= OUR_TABLES)
        if tables and not ours:
            raise StoreRefused(
                f"{self.path} is a database of another program (it has a table {min(tables)!r}).",
                "Name a file of Holdfast's own, or one that does not exist yet (store.url, store.data_dir).",
            )

    def _refuse_holes(self, cut: str) -> None:
        """After a crash the file may be short, the rest being in the WAL. Pages in neither would be read as zeros."""
        session = open_read_only(self.path, self._clock)
        try:
            sound = session.query("PRAGMA quick_check(1)", {}) == [{"quick_check": "ok"}]
        except StoreError:
            sound = False
        finally:
            session.close()
        if not sound:
            raise _malformed(self.path, cut)

    def _recover(self) -> None:
        session = self.connect(write=True, deadline=5.0)
        try:
            session.query("PRAGMA wal_checkpoint(TRUNCATE)", {})
        except StoreError as error:
            raise _malformed(self.path, str(error)) from error
        finally:
            session.close()

    def connect(self, *, write: bool, deadline: float) -> SqliteSession:
        try:
            connection = open_connection(str(self.path), self._clock, write=write, deadline=deadline)
            return SqliteSession(connection, clock=lambda: to_micros(self._clock.now()), place=_place(self.path))
        except sqlite3.OperationalError as error:
            raise StoreUnavailable(f"{self.path} cannot be opened: {error}") from error
        except sqlite3.DatabaseError as error:
            raise _malformed(self.path, str(error)) from error

    def listen(self, heard: Callable[[], None]) -> None:
        """One process: its own commits are all the news there is."""

    def close(self) -> None:
        self._lock.close()


class SqliteSession:
    """One connection; transactions are opened by hand (IMMEDIATE for writes: no upgrade, no deadlock)."""

    combines = False

    def __init__(
        self,
        connection: sqlite3.Connection,
        epoch: int = 1,
        clock: Callable[[], int] | None = None,
        place: str = "",
    ) -> None:
        self._connection = connection
        self._clock = clock  # what `now_us()` asks, too; without it that is asked
        self.epoch = epoch  # a file does not fail over; the simulator's database does
        self.place = place
        self.broken = False

    def begin(self, *, write: bool) -> None:
        self.execute("BEGIN IMMEDIATE" if write else "BEGIN", {})

    def now_us(self) -> int:
        return self._clock() if self._clock is not None else int(self.query("SELECT now_us() AS now", {})[0]["now"])

    def execute(self, sql: str, params: Mapping[str, object]) -> int:
        try:
            return self._connection.execute(sql, params).rowcount
        except sqlite3.Error as error:
            raise _translated(error) from error

    def query(self, sql: str, params: Mapping[str, object]) -> list[Row]:
        try:
            cursor = self._connection.execute(sql, params)
            cursor.row_factory = None  # the names of the columns are looked up once, and not for each row
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]
        except sqlite3.Error as error:
            raise _translated(error) from error

    def commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            problem = _translated(error)
            self.rollback()
            if self._connection.in_transaction:
                self.broken = True
                raise OutcomeUnknown(f"COMMIT failed and could not be undone: {error}") from error
            raise problem from error

    def rollback(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def relax(self) -> None:
        """The durability of a file is a setting of its connection; a relaxed write stays in memory."""

    def notify(self) -> None:
        """There is no other process to tell."""

    def abort(self) -> None:
        self._connection.interrupt()

    def stop_when(self, give_up: Callable[[], bool]) -> None:
        """Asked now and then while a statement runs."""
        self._connection.set_progress_handler(give_up, 100_000)

    def close(self) -> None:
        self._connection.close()


def open_connection(path: str, clock: Clock, *, write: bool, deadline: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=deadline, isolation_level=None, check_same_thread=False, cached_statements=512
    )
    connection.row_factory = _row
    connection.create_function("now_us", 0, lambda: to_micros(clock.now()))
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        if not write:
            connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def open_read_only(path: Path, clock: Clock) -> SqliteSession:
    """Look at a database that another process may be using: no lock, no write, no checkpoint."""
    if not path.exists():
        raise StoreRefused(f"There is no database {path}.", "Check store.data_dir and store.url.")
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
    connection.row_factory = _row
    connection.create_function("now_us", 0, lambda: to_micros(clock.now()))
    return SqliteSession(connection)


def damaged_page(path: Path, clock: Clock, *, give_up: Callable[[], bool]) -> str:
    """The first thing that is wrong with the pages of a file; "" if nothing is. StoreUnavailable: it was given up."""
    session = open_read_only(path, clock)
    try:
        session.stop_when(give_up)
        [found] = session.query("PRAGMA quick_check(1)", {})
        return "" if found["quick_check"] == "ok" else str(found["quick_check"])
    except StoreUnfit as error:
        return str(error)
    finally:
        session.close()


def _row(cursor: sqlite3.Cursor, values: tuple[object, ...]) -> Row:
    return {column[0]: value for column, value in zip(cursor.description, values, strict=True)}


def _translated(error: sqlite3.Error) -> Exception:
    code = getattr(error, "sqlite_errorcode", 0) or 0
    primary = code & 0xFF
    if primary in _RETRYABLE:
        return TxConflict(str(error))
    if primary == sqlite3.SQLITE_CONSTRAINT:
        unique = code in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
        return Duplicate(str(error)) if unique else StoreError(str(error))
    if primary in _NO_ROOM:
        return StoreUnavailable(
            f"the database file cannot be written: {error}. Free some space; work resumes by itself."
        )
    if primary in _DAMAGED:
        return StoreDamaged(f"the database file is damaged: {error}", FROM_BACKUP)
    if primary == sqlite3.SQLITE_INTERRUPT:
        return StoreUnavailable("the store took too long; nothing was changed")
    return StoreError(f"{type(error).__name__}: {error}")


# ── before SQLite touches the file ──


def _take_instance_lock(path: Path) -> IO[str]:
    """One process per file. The lock is the kernel's, so a killed process leaves none behind."""
    lock_path = path.with_name(path.name + ".lock")
    try:
        lock = lock_path.open("a+", encoding="utf-8")
    except OSError as error:
        raise StoreRefused(
            f"{lock_path} cannot be opened: {error.strerror}.",
            "Make the data folder writable (store.data_dir).",
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read(64).strip() or "unknown"
        lock.close()
        raise StoreRefused(
            f"{path} is in use by another Holdfast process (pid {holder}).",
            "SQLite serves one process. Stop the other one, or use PostgreSQL to run several (store.url).",
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def _create(path: Path, clock: Clock) -> None:
    """Under another name first: a start that is killed here never leaves the 0-byte file that the next one refuses."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # SQLite gives its other files the same mode
    connection = open_connection(str(new), clock, write=True, deadline=5.0)
    try:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    finally:
        connection.close()
    new.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _place(path: Path) -> str:
    """Which file this is, on which machine. A copy has another number, or is on another machine."""
    try:
        machine = MACHINE_ID.read_bytes().strip()
    except OSError:
        machine = b""  # in a container
    return f"file {path.stat().st_ino} on machine {hashlib.sha256(machine).hexdigest()[:8]}"


def _marked(path: Path) -> bool:
    """Whether its header says that it is ours; one that is all in the log yet says nothing."""
    with path.open("rb") as file:
        return file.read(72)[68:] == struct.pack(">I", APPLICATION_ID)


def _cut(path: Path) -> str:
    """How much of the file is missing, by its own header; "" if nothing is.

    A 0-byte file is refused: it would open as a fresh, empty database, everything silently lost.
    """
    size = path.stat().st_size
    if size == 0:
        raise StoreRefused(
            f"{path} is empty (0 bytes): its content was lost.",
            "Move it away and restore a backup: holdfast backup restore FILE. To start anew, remove the file yourself.",
        )
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except IsADirectoryError:
        raise StoreRefused(f"{path} is a folder, and not a database.", "Name a file in it (store.url).") from None
    if len(header) < 100 or not header.startswith(_MAGIC):
        raise _malformed(path, "its first bytes are not those of a SQLite database")
    (page_size,) = struct.unpack(">H", header[16:18])
    page_size = 65536 if page_size == 1 else page_size
    changes, pages = struct.unpack(">II", header[24:32])
    (valid_for,) = struct.unpack(">I", header[92:96])
    short = changes == valid_for and size < page_size * pages
    return f"it has {size} bytes of {page_size * pages}" if short else ""


def _malformed(path: Path, problem: str) -> StoreRefused:
    return StoreRefused(f"{path} is damaged: {problem}.", f"{FROM_BACKUP}; Holdfast has not changed the file.")
