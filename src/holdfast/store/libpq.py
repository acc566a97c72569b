"""Statements over libpq itself: one call and one round trip each, and what comes often is prepared.

psycopg's cursors do the same for four times the processor time. It opens the connection, and knows how to read values.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGresult

from holdfast.store.tx import Row

PREPARE_AFTER: Final = 5  # uses
MOST_KNOWN: Final = 256  # statements of a connection; the one that was not used for longest goes first
_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_LOCK: Final = re.compile(r"/\* (FOR UPDATE(?: SKIP LOCKED)?) \*/")
_FINE: Final = frozenset({pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.EMPTY_QUERY})
_Column = tuple[str, Callable[[Any], Any]]
_TEXT, _BINARY = pq.Format.TEXT, pq.Format.BINARY


class Failed(Exception):
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
    """Runs statements on one connection, each in a blocking call that holds nobody else up."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._line = connection.pgconn
        self._known: OrderedDict[tuple[bytes, tuple[int, ...]], _Statement] = OrderedDict()
        self._named = 0

    def command(self, text: bytes) -> str:
        """Run what has neither parameters nor rows; the server's word for what it did."""
        return (self._answer(self._line.exec_, text).command_status or b"").decode()

    def execute(self, sql: str, params: Mapping[str, Any]) -> int:
        """How many rows it changed; -1 for what changes none."""
        changed = self._run(sql, params)[1].command_tuples
        return -1 if changed is None else changed

    def query(self, sql: str, params: Mapping[str, Any]) -> list[Row]:
        statement, result = self._run(sql, params)
        columns = statement.columns = statement.columns or self._columns(result)
        value = result.get_value
        return [
            {name: None if (raw := value(row, n)) is None else load(raw) for n, (name, load) in enumerate(columns)}
            for row in range(result.ntuples)
        ]

    def _run(self, sql: str, params: Mapping[str, Any]) -> tuple[_Statement, PGresult]:
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
        if statement.uses > PREPARE_AFTER and not statement.prepared:
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

    def _answer(self, call: Callable[..., PGresult], *args: Any) -> PGresult:
        try:
            result = call(*args)
        except (MemoryError, psycopg.OperationalError):  # nothing could be sent at all
            raise Failed(_first_line(self._line.error_message)) from None
        if result.status not in _FINE:
            state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
            primary = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
            raise Failed(_first_line(primary or result.error_message), state)
        return result


def _first_line(message: bytes) -> str:
    return (message.decode(errors="replace").strip() or "the connection is closed").splitlines()[0]


# ── Our SQL and our values, as the server wants them ──


@lru_cache(maxsize=2048)
def translate(sql: str) -> tuple[bytes, tuple[str, ...]]:
    """Our SQL with numbers for the names of its parameters, and with the lock clause that SQLite reads as a comment."""
    names = tuple(dict.fromkeys(_PARAMETER.findall(sql)))
    numbered = _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", sql)
    return _LOCK.sub(r"\1", numbered).encode(), names


def _text(value: str) -> bytes:
    if "\0" in value:  # libpq would end the text there, without a word
        raise Failed("PostgreSQL text fields cannot contain NUL (0x00) bytes", "22021")
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
