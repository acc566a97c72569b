"""The mapper: what is written to columns is read back as it was, and what no column can hold is found at load."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import pytest

from holdfast.core.certificate import RenewalPolicy
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.windows import MaintenanceWindow
from holdfast.store.rows import LABELS, Codec, Part, Table, assignments

AT = datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    since: datetime
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    id: str
    colour: Colour
    at: datetime
    until: datetime | None = None
    every: timedelta
    good: bool
    der: bytes
    names: tuple[str, ...] = ()
    identifiers: tuple[Identifier, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    rights: frozenset[str] = frozenset()
    rule: RenewalPolicy = field(default_factory=RenewalPolicy)
    windows: tuple[MaintenanceWindow, ...] = ()
    inner: Inner | None = None
    unkept: int = 7


TABLE = Table(
    Thing,
    "things",
    columns={"at": "made_at"},
    codecs={"labels": LABELS},
    parts={"inner": Part(Table(Inner, prefix="inner_"), absent="inner_since")},
    without={"unkept"},
)
PLAIN = Thing(id="a", colour=Colour.BLUE, at=AT, every=timedelta(days=1), good=True, der=b"der")
FULL = Thing(
    id="b",
    colour=Colour.RED,
    at=AT,
    until=AT,
    every=timedelta(microseconds=1),
    good=False,
    der=b"",
    names=("x", "y"),
    identifiers=(Identifier("dns", "*.example.com"), Identifier("ip", "192.0.2.1")),
    facts={"n": [1, None]},
    labels={"b": "2", "a": "1"},
    rights=frozenset({"export"}),
    rule=RenewalPolicy(before=timedelta(days=30), ari=False),
    windows=(MaintenanceWindow(days=frozenset({5, 6}), opens=60, closes=120),),
    inner=Inner(since=AT, count=3),
)


@pytest.mark.parametrize("thing", [PLAIN, FULL], ids=["plain", "full"])
def test_what_is_written_is_read_as_it_was(thing: Thing) -> None:
    written = TABLE.values(thing)
    assert set(written) == set(TABLE.names)
    assert TABLE.read(written) == thing
    assert TABLE.read(dict(zip(TABLE.names, TABLE.row(thing), strict=True))) == thing


def test_columns_hold_nothing_but_what_both_databases_know() -> None:
    kinds = {type(held) for thing in (PLAIN, FULL) for held in TABLE.values(thing).values()}
    assert kinds == {str, int, bool, bytes, type(None)}


def test_columns_are_the_fields_in_their_order_renamed_and_spread_where_it_is_said() -> None:
    assert TABLE.names[:3] == ("id", "colour", "made_at")
    assert TABLE.names[-2:] == ("inner_since", "inner_count")
    assert TABLE.columns == ", ".join(TABLE.names)
    assert TABLE.insert.startswith("INSERT INTO things (id, colour, made_at, ")
    assert TABLE.insert.endswith(":inner_since, :inner_count)")
    assert TABLE.of("t").startswith("t.id, t.colour, ")


def test_a_change_is_written_to_the_columns_of_its_field_alone() -> None:
    assert TABLE.changes({"at": AT, "until": None, "colour": Colour.RED}) == {
        "made_at": TABLE.values(PLAIN)["made_at"], "until": None, "colour": "red",
    }  # fmt: skip
    assert TABLE.changes({"inner": None}) == {"inner_since": None, "inner_count": None}
    assert assignments(("a", "b")) == "a = :a, b = :b"


def test_a_value_of_a_closed_list_that_nobody_knows_is_no_value() -> None:
    with pytest.raises(KeyError):
        TABLE.read({**TABLE.values(PLAIN), "colour": "green"})


def test_values_are_checked_when_they_are_read_as_when_they_are_made() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Checked:
        n: int

        def __post_init__(self) -> None:
            if self.n < 0:
                raise ValueError("below nothing")

    with pytest.raises(ValueError, match="below nothing"):
        Table(Checked).read({"n": -1})


def test_labels_that_are_read_twice_are_not_shared() -> None:
    row = TABLE.values(FULL)
    assert TABLE.read(row).labels is not TABLE.read(row).labels
    assert TABLE.read(row).facts is not TABLE.read(row).facts


@dataclass(frozen=True, slots=True)
class Strange:
    value: complex


def test_what_no_column_can_hold_is_found_when_the_table_is_made() -> None:
    with pytest.raises(TypeError, match="no column can hold <class 'complex'>"):
        Table(Strange)
    told = Table(Strange, codecs={"value": Codec(str, complex)})
    assert told.read(told.values(Strange(1j))) == Strange(1j)
    with pytest.raises(TypeError, match="value has no default, and no column"):
        Table(Strange, without={"value"})
