"""Tx is the open transaction: written-out SQL with :named parameters, one text for both engines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

from holdfast.core.witness import Fact

Row = Mapping[str, Any]

PAGE: Final = 50  # rows of one INSERT: the quickest on SQLite
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_CHANGES: Final = ("INSERT", "UPDATE", "DELETE")  # how a statement with RETURNING begins
PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_PLAIN: Final = frozenset({str, int, bytes, bool, float, type(None)})


def to_micros(at: datetime) -> int:
    """Instants are stored as microseconds since 1970: one type, one arithmetic, on both engines."""
    return (at - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def instant(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


class Session(Protocol):
    """One connection, used by one thread. It turns driver errors into ours and knows nothing of our tables."""

    combines: bool  # several changes may be one statement: WITH takes INSERT, UPDATE and DELETE
    epoch: int  # grows when the database may have lost commits (a failover); fences start above it
    place: str  # which server and database, or which file, this is; empty if that cannot be told

    def begin(self, *, write: bool) -> None: ...
    def now_us(self) -> int: ...
    def execute(self, sql: str, params: Mapping[str, object]) -> int: ...
    def query(self, sql: str, params: Mapping[str, object]) -> list[Row]: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class Sealed(NamedTuple):
    """Where the audit log ends with this transaction, and where it began with it."""

    before: int
    seq: int
    hash: str


@dataclass(frozen=True, slots=True)
class Change:
    """An INSERT, UPDATE or DELETE that returns no rows, to be run together with others."""

    sql: str
    params: Mapping[str, object]


def change(sql: str, **params: object) -> Change:
    return Change(sql, params)


class Tx:
    """The open transaction. Journal entries, alerts, jobs and wake-ups collect here until just before COMMIT."""

    __slots__ = (
        "_now", "_session", "alerts", "audits", "epoch", "events", "facts", "origin", "owed_jobs", "place", "sealed",
        "wakes", "wrote",
    )  # fmt: skip

    def __init__(self, session: Session) -> None:
        self._session = session
        self._now: datetime | None = None
        self.epoch = session.epoch
        self.place = session.place
        self.audits: list[tuple[str, str, str, str]] = []  # actor, action, subject, details
        self.events: list[tuple[str, str, str, str]] = []  # name, subject, job id, details
        self.origin: Mapping[str, str] = {}  # where the request came from, for the audit log
        self.alerts: list[tuple[str, str, Mapping[str, Any]]] = []  # name, subject, details: for the before-commit hook
        self.owed_jobs: list[tuple[Any, ...]] = []  # rows of jobs, in the order of their columns
        self.facts: list[Fact] = []  # of our CAs: for the witness, before COMMIT
        self.sealed: Sealed | None = None  # once its audit entries have their numbers
        self.wakes = False  # there is new work: tell the workers after COMMIT
        self.wrote = False  # something was changed: COMMIT will wait for the disk

    def run(self, sql: str, **params: object) -> int:
        """Execute one statement and return how many rows it changed."""
        changed = self._session.execute(sql, _bound(params))
        if changed > 0:
            self.wrote = True
        return changed

    def rows(self, sql: str, **params: object) -> list[Row]:
        rows = self._session.query(sql, _bound(params))
        if rows and not self.wrote:
            self.wrote = sql.startswith(_CHANGES)
        return rows

    def row(self, sql: str, **params: object) -> Row | None:
        rows = self._session.query(sql, _bound(params))
        if rows and not self.wrote:
            self.wrote = sql.startswith(_CHANGES)
        return rows[0] if rows else None

    def together(self, *changes: Change) -> list[int]:
        """Run changes of different rows; how many rows each changed. None sees what one after it changes, and none
        may need to see what one before it did.

        Where the engine can, they are one statement: on PostgreSQL each statement is a way to the server and back.
        """
        if len(changes) == 1 or not self._session.combines:
            return [self.run(each.sql, **each.params) for each in changes]
        params = {f"s{n}_{name}": value for n, each in enumerate(changes) for name, value in each.params.items()}
        row = self._session.query(_combined(tuple(each.sql for each in changes)), _bound(params))[0]
        counts = [int(row[f"s{n}"]) for n in range(len(changes))]
        self.wrote = self.wrote or any(counts)
        return counts

    def move(self, delete: str, into: str, *, columns: str, also: Mapping[str, str], **params: object) -> list[Row]:
        """Delete rows and insert them elsewhere; the columns of what was moved. `also`: columns with fixed words."""
        names, words = ", ".join(also), ", ".join(f"'{word}'" for word in also.values())
        insert = f"INSERT INTO {into} ({names}, {_names_of(columns)})"
        if not self._session.combines:
            return self._moved(self.rows(f"{delete} RETURNING {columns}", **params), insert, tuple(also.values()))
        rows = self._session.query(
            f"""WITH gone AS ({delete} RETURNING {columns}),
                     kept AS ({insert} SELECT {words}, {_names_of(columns)} FROM gone)
                SELECT {_names_of(columns)} FROM gone""",
            _bound(params),
        )
        self.wrote = self.wrote or bool(rows)
        return rows

    def _moved(self, rows: list[Row], insert: str, words: tuple[str, ...]) -> list[Row]:
        for start in range(0, len(rows), PAGE):
            text, values = value_list([(*words, *row.values()) for row in rows[start : start + PAGE]])
            self.run(f"{insert} {text}", **values)
        return rows

    def now(self) -> datetime:
        """The database's clock, read once a transaction."""
        if self._now is None:
            self._now = from_micros(self._session.now_us())
        return self._now

    def told_now(self, micros: int) -> None:
        """Take the database's time from a row that was read anyway, in place of another query."""
        if self._now is None:
            self._now = from_micros(micros)


@lru_cache(maxsize=512)
def _combined(texts: tuple[str, ...]) -> str:
    parts = [PARAMETER.sub(lambda found, n=n: f":s{n}_{found[1]}", text) for n, text in enumerate(texts)]  # type: ignore[misc]
    changes = ", ".join(f"s{n} AS ({part} RETURNING 1)" for n, part in enumerate(parts))
    return f"WITH {changes} SELECT {', '.join(f'(SELECT COUNT(*) FROM s{n}) AS s{n}' for n in range(len(parts)))}"


def _names_of(columns: str) -> str:
    """`id, now_us() AS finished_at` has the names `id, finished_at`."""
    return ", ".join(each.rpartition(" ")[2] for each in columns.split(", "))


def _bound(params: dict[str, object]) -> dict[str, object]:
    for name, value in params.items():
        if type(value) not in _PLAIN:
            params[name] = _storable(value)
    return params


def _storable(value: object) -> object:
    if isinstance(value, datetime):
        return to_micros(value)
    if isinstance(value, timedelta):
        return value // _MICROSECOND
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"a {type(value).__name__} cannot be stored")


def value_list(rows: Sequence[tuple[object, ...]]) -> tuple[str, dict[str, object]]:
    """Text and parameters of `VALUES (…), (…)`: how one statement names many rows on both engines."""
    text, names = _list_of(len(rows), len(rows[0]) if rows else 0)
    return text, dict(zip(names, chain.from_iterable(rows), strict=True))


@lru_cache(maxsize=1024)
def _list_of(height: int, width: int) -> tuple[str, tuple[str, ...]]:
    lines = [[f"v{r}_{c}" for c in range(width)] for r in range(height)]
    text = ", ".join("(" + ", ".join(f":{name}" for name in line) + ")" for line in lines)
    return f"VALUES {text}", tuple(chain.from_iterable(lines))
