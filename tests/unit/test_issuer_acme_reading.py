"""Reading what a CA sends: addresses, links, times and words, whatever they hold."""

from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers import reading
from holdfast.issuers.acme import reading as acme_reading
from holdfast.issuers.acme.reading import ResponseContext, links
from holdfast.issuers.reading import instant, origin, words

PLACE = ResponseContext(directory="https://CA.example/directory", hosts=("other.example:8443", "[2001:db8::1]"))


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://ca.example/x", "ca.example:443"),
        ("https://CA.Example:443/x?y=%20", "ca.example:443"),
        ("https://[2001:db8::1]:8443/", "2001:db8::1:8443"),
        ("https://192.0.2.1", "192.0.2.1:443"),
        ("https://ca.example:0/", "ca.example:0"),
        ("http://ca.example/", None),
        ("https:///path", None),
        ("https://user@ca.example/", None),
        ("https://ca.example:99999/", None),
        ("https://ca.example:443:1/", None),
        ("https://ca_example%00/", None),
        ("https://ca.example/\n", None),
        ("https://cä.example/", None),
        (f"https://ca.example/{'x' * 3000}", None),
    ],
)
def test_an_address_has_one_host_in_every_reading(url: str, found: str | None) -> None:
    assert origin(url) == found


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://ca.example/order", True),
        ("https://ca.example:443/order", True),
        ("https://ca.example:8443/order", False),
        ("https://other.example:8443/order", True),
        ("https://other.example/order", False),
        ("https://[2001:db8::1]/order", True),
        ("https://ca.example.evil.test/", False),
        ("https://sub.ca.example/", False),
    ],
)
def test_a_ca_stays_on_the_hosts_that_are_configured(url: str, *, allowed: bool) -> None:
    assert PLACE.allows(url) is allowed


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_text_makes_another_host_one_of_ours(before: str, after: str) -> None:
    for url in (f"https://{before}evil.test{after}", f"{before}https://evil.test/{after}"):
        if origin(url) not in {"ca.example:443", "other.example:8443", "2001:db8::1:443"}:
            with pytest.raises(Refused) as refused:
                PLACE.checked(url, "anything")
            assert refused.value.reason == Reason.DIRECTORY_UNSAFE


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_unreadable(body: bytes) -> None:
    with suppress(TryLater):  # and nothing else
        assert isinstance(reading.json_object(body, "It"), dict)


def test_links_are_found_by_their_relation() -> None:
    header = '<https://ca.example/dir>;rel="index", <https://ca.example/1>; rel="alternate", <https://ca.example/2>;rel=alternate'
    assert links(header, "alternate") == ["https://ca.example/1", "https://ca.example/2"]
    assert links(header, "up") == []
    assert links("<" * 100_000, "up") == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2030-01-01T00:00:00Z", datetime(2030, 1, 1, tzinfo=UTC)),
        ("2030-01-01T00:00:00.123456+01:00", datetime(2029, 12, 31, 23, 0, 0, 123456, tzinfo=UTC)),
        ("2030-01-01T00:00:00", None),
        ("tomorrow", None),
        ("9" * 100, None),
        (None, None),
        (20300101, None),
    ],
)
def test_a_time_has_its_zone_or_is_none(text: object, found: datetime | None) -> None:
    assert instant(text) == found


@given(st.text(max_size=2000))
def test_words_are_short_printable_and_on_one_line(text: str) -> None:
    shown = words(text)
    assert len(shown) <= reading.MAX_WORDS
    assert shown.isprintable()


@pytest.mark.parametrize("value", [None, [], "text", {}, {"type": 7}, {"type": None, "detail": []}, 5])
def test_what_is_no_problem_document_is_none(value: object) -> None:
    assert acme_reading.parse_problem(value) is None


def test_a_problem_of_another_family_has_no_word() -> None:
    found = acme_reading.parse_problem({"type": "about:blank", "detail": "\x1b[2J gone"})
    assert found is not None
    assert (found.word, str(found)) == ("", "[2J gone")


def test_a_problem_that_wants_a_person_says_where() -> None:
    kind = f"{acme_reading.PREFIX}userActionRequired"
    found = acme_reading.parse_problem({"type": kind, "detail": "new terms", "instance": "https://ca.example/terms"})
    assert "https://ca.example/terms" in str(found)
