"""Tx is the open transaction: written-out SQL with :named parameters, one text for both engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache
from itertools import chain
from typing import Any, Final, Protocol

Row = Mapping[str, Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_CHANGES: Final = ("INSERT", "UPDATE", "DELETE")  # how a statement with RETURNING begins
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

    epoch: int  # grows when the database may have lost commits (a failover); fences start above it

    def begin(self, *, write: bool) -> None: ...
    def now_us(self) -> int: ...
    def execute(self, sql: str, params: Mapping[str, object]) -> int: ...
    def query(self, sql: str, params: Mapping[str, object]) -> list[Row]: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class Tx:
    """The open transaction. Journal entries, alerts, jobs and wake-ups collect here until just before COMMIT."""

    __slots__ = ("_now", "_session", "alerts", "audits", "epoch", "events", "origin", "owed_jobs", "wakes", "wrote")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._now: datetime | None = None
        self.epoch = session.epoch
        self.audits: list[tuple[str, str, str, str]] = []  # actor, action, subject, details
        self.events: list[tuple[str, str, str, str]] = []  # name, subject, job id, details
        self.origin: Mapping[str, str] = {}  # where the request came from, for the audit log
        self.alerts: list[tuple[str, str, Mapping[str, Any]]] = []  # name, subject, details: for the before-commit hook
        self.owed_jobs: list[tuple[Any, ...]] = []  # rows of jobs, in the order of their columns
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

    def now(self) -> datetime:
        """The database's clock, read once a transaction."""
        if self._now is None:
            self._now = from_micros(self._session.now_us())
        return self._now

    def told_now(self, micros: int) -> None:
        """Take the database's time from a row that was read anyway, in place of another query."""
        if self._now is None:
            self._now = from_micros(micros)


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
