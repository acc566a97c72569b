"""What clients write, read into wishes and contacts: whatever it is, the answer is a value or an ACME error."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.acme.accounts import contacts
from holdfast.acme.answer import problem_answer, retry_after, rfc3339
from holdfast.acme.certificates import wants_single
from holdfast.acme.orders import identifiers, parse_new_order
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.own_ca.problem import AcmeError

texts = st.text(max_size=30) | st.sampled_from(["dns", "ip", "a.example", "*.a.example", "192.0.2.1", "::1", "xn--"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)
named = st.fixed_dictionaries({"type": texts, "value": texts}) | values
wishes = st.fixed_dictionaries(
    {},
    optional={
        "identifiers": st.lists(named, max_size=4) | values,
        "notBefore": st.datetimes().map(lambda at: at.isoformat() + "Z") | values,
        "notAfter": st.datetimes().map(str) | values,
        "profile": values,
        "replaces": values,
    },
)


T = TypeVar("T")


def outcome(read: Callable[[], T]) -> T | AcmeError:
    """What it returns, or the ACME error it raises; any other error fails the test."""
    try:
        return read()
    except AcmeError as error:
        return error


@given(wishes)
def test_a_wish_is_read_or_refused(content: dict[str, Any]) -> None:
    read = outcome(lambda: parse_new_order(content))
    if isinstance(read, AcmeError):
        assert problem_answer(read.problem).status == 400
    else:
        assert 1 <= len(read.identifiers) <= 100
        assert identifiers([each.to_json() for each in read.identifiers]) == read.identifiers  # one spelling


@given(values)
def test_contacts_are_read_or_refused(value: Any) -> None:
    read = outcome(lambda: contacts(value))
    if isinstance(read, AcmeError):
        assert read.problem.type in ("malformed", "invalidContact", "unsupportedContact")
    else:
        assert all(each.lower().startswith("mailto:") for each in read)


@given(st.text() | st.lists(st.sampled_from(["application/pkix-cert", ";q=", "0.5", ",", "*/*", "="])).map("".join))
def test_every_accept_header_is_understood(text: str) -> None:
    assert wants_single(text) in (True, False)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2030-01-02T03:04:05Z", (2030, 1, 2, 3, 4, 5)),
        ("2030-01-02t03:04:05z", (2030, 1, 2, 3, 4, 5)),
        ("2030-01-02T03:04:05.999Z", (2030, 1, 2, 3, 4, 5)),
        ("2030-01-02T03:04:05.123456789Z", (2030, 1, 2, 3, 4, 5)),
        ("2030-01-02T05:04:05+02:00", (2030, 1, 2, 3, 4, 5)),
        ("2030-01-01T23:04:05-04:00", (2030, 1, 2, 3, 4, 5)),
    ],
)
def test_dates_of_rfc_3339_are_read(text: str, at: tuple[int, ...]) -> None:
    content = {"identifiers": [{"type": "dns", "value": "a.example"}], "notBefore": text}
    assert parse_new_order(content).not_before == datetime(*at, tzinfo=UTC)  # type: ignore[misc,arg-type]


def test_names_keep_their_order_and_come_once() -> None:
    asked = [
        ("dns", "B.example"),
        ("ip", "192.0.2.1"),
        ("dns", "a.example"),
        ("dns", "b.EXAMPLE"),
        ("dns", "*.b.example"),
    ]
    found = identifiers([{"type": kind, "value": value, "more": 1} for kind, value in asked])
    assert found == (
        Identifier("dns", "b.example"),
        Identifier("ip", "192.0.2.1"),
        Identifier("dns", "a.example"),
        Identifier("dns", "*.b.example"),
    )


def test_the_identifier_of_a_subproblem_is_never_longer_than_is_useful() -> None:
    with pytest.raises(AcmeError) as refused:
        identifiers([{"type": "dns", "value": "a" * 50_000}, {"type": "x" * 50_000, "value": ""}])
    assert len(problem_answer(refused.value.problem).body) < 5000


def test_seconds_to_wait_are_whole_and_never_none() -> None:
    assert [retry_after(each)[1] for each in (0, 0.2, 1, 1.2, -5)] == [b"1", b"1", b"1", b"2", b"1"]


def test_instants_are_written_in_utc_and_whole_seconds() -> None:
    assert rfc3339(datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)) == "2030-01-02T03:04:05Z"
