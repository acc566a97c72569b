"""One mapper between frozen values and rows: which columns a value has, and how it is written to them and read back.

A column has the name and the type of its field, unless its Table says otherwise. Each Table is worked out once, when
its module is loaded; after that, writing and reading are a few dictionary operations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import lru_cache, partial
from operator import attrgetter, itemgetter
from types import NoneType, UnionType
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from holdfast.core.own_ca.acme import Identifier
from holdfast.store.tx import Row, from_micros, to_micros

T = TypeVar("T")
_MICROSECOND: Final = timedelta(microseconds=1)


class Codec(NamedTuple):
    """How a column holds a value; neither function is asked about None. A function that is None changes nothing."""

    write: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] | None = None


class Part(NamedTuple):
    """A field whose value has several columns of the same row."""

    table: Table[Any]
    absent: str | None = None  # where this column is NULL, the field is None


class Table(Generic[T]):
    """The columns of a kind of value, in one table of the database.

    `columns` renames fields, `codecs` replaces how they are held, `parts` spreads them over several columns, and
    `without` leaves them out: values that are read have their defaults.
    """

    def __init__(
        self,
        kind: type[T],
        name: str = "",
        *,
        prefix: str = "",
        columns: Mapping[str, str] | None = None,
        codecs: Mapping[str, Codec] | None = None,
        parts: Mapping[str, Part] | None = None,
        without: Collection[str] = (),
    ) -> None:
        renamed, given, self._parts = columns or {}, codecs or {}, dict(parts or {})
        hints = get_type_hints(kind)
        own = [each.name for each in fields(kind) if each.name not in without]  # type: ignore[arg-type]
        plain = [each for each in own if each not in self._parts]
        self._column = {each: renamed.get(each, prefix + each) for each in plain}
        self._codec = {each: given.get(each) or codec_of(hints[each]) for each in plain}
        self.names = tuple(column for each in own for column in self._columns_of(each))
        self.columns = ", ".join(self.names)
        self.name = name
        self.insert = self.inserting()
        self.read: Callable[[Row], T] = self._reader(kind, without)
        self._values = self._writer()

    def _columns_of(self, field: str) -> Sequence[str]:
        return self._parts[field].table.names if field in self._parts else (self._column[field],)

    def _reader(self, kind: Any, left_out: Collection[str]) -> Callable[[Row], T]:
        """Each slot is set by itself, which takes half the time of calling the constructor with that many names."""
        slot = {each.name: getattr(kind, each.name).__set__ for each in fields(kind)}
        as_is = [name for name, codec in self._codec.items() if codec.read is None]
        plain, pick = tuple(slot[name] for name in as_is), _picker(tuple(self._column[name] for name in as_is))
        decoded = tuple((slot[n], self._column[n], codec.read) for n, codec in self._codec.items() if codec.read)
        parts = tuple((slot[name], part.table.read, part.absent) for name, part in self._parts.items())
        defaults = tuple((slot[each.name], _default(each)) for each in fields(kind) if each.name in left_out)
        new, check = partial(object.__new__, kind), getattr(kind, "__post_init__", None)

        def read(row: Row) -> T:
            value: T = new()
            for put, held in zip(plain, pick(row), strict=True):
                put(value, held)
            for put, column, decode in decoded:
                held = row[column]
                put(value, None if held is None else decode(held))
            for put, inner, absent in parts:
                put(value, None if absent is not None and row[absent] is None else inner(row))
            for put, default in defaults:
                put(value, default())
            if check is not None:
                check(value)
            return value

        return read

    def _writer(self) -> Callable[[T], dict[str, object]]:
        columns, pick = tuple(self._column.values()), _getter(tuple(self._column))
        encoded = tuple(
            (self._column[name], codec.write) for name, codec in self._codec.items() if codec.write is not None
        )
        parts = tuple((attrgetter(name), part.table) for name, part in self._parts.items())

        def values(value: T) -> dict[str, object]:
            found: dict[str, object] = dict(zip(columns, pick(value), strict=True))
            for column, encode in encoded:
                held = found[column]
                if held is not None:
                    found[column] = encode(held)
            for inner, table in parts:
                found.update(table.values(inner(value)))
            return found

        return values

    def values(self, value: T | None) -> dict[str, object]:
        """A value as its columns hold it; all of them are NULL without one."""
        return dict.fromkeys(self.names) if value is None else self._values(value)

    def row(self, value: T) -> tuple[object, ...]:
        """The same as a row, in the order of `columns`."""
        found = self._values(value)
        return tuple([found[name] for name in self.names])

    def stored(self, field: str, value: object) -> dict[str, object]:
        """One field as its columns hold it, for statements that write only what changed."""
        if field in self._parts:
            return self._parts[field].table.values(value)
        write = self._codec[field].write
        return {self._column[field]: value if value is None or write is None else write(value)}

    def changes(self, changed: Mapping[str, object]) -> dict[str, object]:
        return {column: held for name, value in changed.items() for column, held in self.stored(name, value).items()}

    def inserting(self, *more: str) -> str:
        """The statement that adds a row; with more columns than the value has, if they are named."""
        names = (*self.names, *more)
        return f"INSERT INTO {self.name} ({', '.join(names)}) VALUES ({', '.join(f':{each}' for each in names)})"

    def of(self, alias: str) -> str:
        """The columns as they are written where several tables are joined."""
        return ", ".join(f"{alias}.{name}" for name in self.names)


def assignments(names: Iterable[str]) -> str:
    """What stands after SET, for these columns and parameters of the same names."""
    return ", ".join(f"{name} = :{name}" for name in names)


def _default(field: Field[object]) -> Callable[[], object]:
    if field.default_factory is not MISSING:
        return field.default_factory
    if field.default is MISSING:
        raise TypeError(f"{field.name} has no default, and no column")
    return lambda: field.default


def _picker(names: tuple[str, ...]) -> Callable[[Row], tuple[object, ...]]:
    return itemgetter(*names) if len(names) > 1 else lambda row: tuple(row[name] for name in names)


def _getter(names: tuple[str, ...]) -> Callable[[object], tuple[object, ...]]:
    return attrgetter(*names) if len(names) > 1 else lambda value: tuple(getattr(value, name) for name in names)


# ── How each type is held ──


def codec_of(hint: object) -> Codec:
    """How a column holds a field of this type; TypeError if there is no codec for it."""
    kind = _without_none(hint)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return codec_of(type(inner[0]))
    if origin in (tuple, Sequence) and inner[0] in _ITEMS:
        return _ITEMS[inner[0]]
    if origin is tuple and _has_json(inner[0]):
        return _jsons(inner[0])
    if origin in (dict, Mapping):
        return MAPPING
    if kind in _CODECS:
        return _CODECS[kind]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return Codec({each: each.value for each in kind}.__getitem__, {each.value: each for each in kind}.__getitem__)
    if _has_json(kind):
        return _json(kind)
    raise TypeError(f"no column can hold {hint}")


def _without_none(hint: object) -> object:
    if get_origin(hint) not in (Union, UnionType):
        return hint
    [kind] = [each for each in get_args(hint) if each is not NoneType]
    return kind


def _has_json(kind: object) -> bool:
    return is_dataclass(kind) and hasattr(kind, "to_json") and hasattr(kind, "from_json")


def _json(kind: Any) -> Codec:
    """A frozen value that can be written as JSON: many rows have the same text, which is read once."""
    return Codec(
        lambda value: json.dumps(value.to_json()), lru_cache(256)(lambda text: kind.from_json(json.loads(text)))
    )


def _jsons(kind: Any) -> Codec:
    def read(text: str) -> tuple[Any, ...]:
        return tuple(kind.from_json(each) for each in json.loads(text))

    return Codec(lambda value: json.dumps([each.to_json() for each in value]), lru_cache(256)(read))


def _read_mapping(text: str) -> dict[str, object]:
    found: dict[str, object] = {} if text == "{}" else json.loads(text)
    return found


def _read_list(text: str) -> tuple[object, ...]:
    return () if text == "[]" else tuple(json.loads(text))


@lru_cache(maxsize=1024)
def identifiers_of(text: str) -> tuple[Identifier, ...]:
    """Read in every step of an issuance: a few hundred of them are under way at a time."""
    return tuple(Identifier(*each) for each in json.loads(text))


def identifiers_text(identifiers: tuple[Identifier, ...]) -> str:
    return json.dumps([(each.type, each.value) for each in identifiers])


@lru_cache(maxsize=256)
def _items(text: str) -> tuple[tuple[str, object], ...]:
    return tuple(json.loads(text).items())


@lru_cache(maxsize=256)
def _shared(text: str) -> Mapping[str, object]:
    found: Mapping[str, object] = json.loads(text)
    return found


MAPPING: Final = Codec(lambda value: json.dumps(dict(value)), _read_mapping)
LABELS: Final = Codec(lambda value: json.dumps(dict(value), sort_keys=True), lambda text: dict(_items(text)))
SETTINGS: Final = Codec(lambda value: json.dumps(dict(value)), _shared)  # few rows, read often, and never changed
IDENTIFIERS_ONCE: Final = Codec(identifiers_text, identifiers_of)  # no other row has the same: nothing to remember
_ITEMS: Final[Mapping[Any, Codec]] = {
    str: Codec(lambda value: json.dumps(list(value)), lru_cache(256)(_read_list)),
    Mapping[str, Any]: Codec(lambda value: json.dumps(list(value)), _read_list),
    Identifier: Codec(lru_cache(1024)(identifiers_text), identifiers_of),
}
_CODECS: Final[Mapping[Any, Codec]] = {
    str: Codec(),
    int: Codec(),
    float: Codec(),
    bool: Codec(None, bool),
    bytes: Codec(None, bytes),
    datetime: Codec(to_micros, from_micros),
    timedelta: Codec(lambda span: span // _MICROSECOND, lambda micros: timedelta(microseconds=micros)),
    frozenset[str]: Codec(lambda value: json.dumps(sorted(value)), lambda text: frozenset(json.loads(text))),
}
