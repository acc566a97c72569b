"""Each name has one spelling, or is refused for a reason that can be read."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.pki import names
from holdfast.pki.refused import NameRefused

LABEL = st.from_regex(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,20}[a-zA-Z0-9])?", fullmatch=True).filter(lambda t: t[2:4] != "--")
NAME = st.builds(
    lambda star, labels, last: ("*." if star else "") + ".".join([*labels, last]),
    st.booleans(),
    st.lists(LABEL, max_size=5),
    LABEL.filter(lambda label: not re.fullmatch(r"[0-9]+|0x[0-9a-f]*", label.lower())),
)


@given(NAME)
def test_a_good_name_is_taken_in_lower_case_and_stays_as_it_is_then(text: str):
    assert names.dns_name(text) == text.lower()
    assert names.dns_name(names.dns_name(text)) == text.lower()


@settings(max_examples=500)
@given(st.text(max_size=300) | st.from_regex(r"[*.xn0-9a-f:\-_]{1,40}", fullmatch=True))
def test_whatever_is_not_refused_is_made_of_letters_digits_hyphens_and_one_star(text: str):
    try:
        name = names.dns_name(text)
    except NameRefused:
        return
    assert re.fullmatch(r"(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name)
    assert len(name) <= 253
    assert not re.fullmatch(r"[0-9.]+", name)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "name-empty"),
        ("*", "name-wildcard"),
        ("*.", "name-trailing-dot"),
        ("a*.example.com", "name-wildcard"),
        ("a.*.example.com", "name-wildcard"),
        ("*.*.example.com", "name-wildcard"),
        ("**.example.com", "name-wildcard"),
        ("example.com.", "name-trailing-dot"),
        (".example.com", "name-empty-label"),
        ("a..example.com", "name-empty-label"),
        ("*..example.com", "name-empty-label"),
        (f"{'a' * 64}.example.com", "name-label-too-long"),
        (".".join(["a" * 49] * 5) + ".abcd", "name-too-long"),
        ("under_score.example.com", "name-characters"),
        ("-a.example.com", "name-characters"),
        ("a-.example.com", "name-characters"),
        ("a!b.example.com", "name-characters"),
        ("user@example.com", "name-characters"),
        ("https://example.com", "name-characters"),
        ("example.com:443", "name-characters"),
        ("ab--cd.example.com", "name-reserved-label"),
        ("a b.example.com", "name-space"),
        ("a\N{NO-BREAK SPACE}b.example.com", "name-space"),
        ("example.com\n", "name-control-character"),
        ("a\0.example.com", "name-control-character"),
        ("\x7f.example.com", "name-control-character"),
        ("a\x1b[31m.example.com", "name-control-character"),
        ("\udcff.example.com", "name-control-character"),
        ("a\N{RIGHT-TO-LEFT OVERRIDE}.example.com", "name-hidden-character"),
        ("a\N{ZERO WIDTH JOINER}.example.com", "name-hidden-character"),
        ("\N{ZERO WIDTH NO-BREAK SPACE}a.example.com", "name-hidden-character"),
        ("bücher.example", "name-not-ascii"),
        ("exаmple.com", "name-not-ascii"),
        ("example。com", "name-not-ascii"),
        ("xn--.example.com", "name-characters"),
        ("xn--a.example.com", "name-idna"),
        ("xn--zzzzzzzzzz99999.example.com", "name-idna"),
        ("xn--example-.com", "name-characters"),
        ("xn--abc-.example.com", "name-characters"),
        ("xn--bcher-kvb.example.com", "name-idna"),
        ("xn--lzg.example.com", "name-idna"),
        ("192.0.2.1", "name-is-address"),
        ("*.192.0.2.1", "name-is-address"),
        ("::1", "name-is-address"),
        ("[::1]", "name-is-address"),
        ("127.1", "name-is-address"),
        ("2130706433", "name-is-address"),
        ("0x7f.1", "name-is-address"),
        ("a.0x7f", "name-is-address"),
        ("1.2.3.4.5", "name-is-address"),
    ],
)
def test_a_bad_name_is_refused_for_its_own_reason(text: str, code: str):
    with pytest.raises(NameRefused) as refused:
        names.dns_name(text)
    assert refused.value.code == code
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    "text",
    [
        "localhost",
        "a.b",
        "1.example",
        "3com.com",
        "xn--bcher-kva.example",
        "*.xn--p1ai",
        "a-b.example",
        "x" * 63,
        "a--b.c",
    ],
)
def test_a_name_that_is_unusual_but_right_is_taken(text: str):
    assert names.dns_name(text) == text


def test_the_longest_name_is_taken_and_one_character_more_is_not():
    longest = ".".join(["a" * 49] * 5) + ".abc"
    assert len(longest) == 253
    assert names.dns_name(longest) == longest
    with pytest.raises(NameRefused):
        names.dns_name(longest + "d")


def test_a_wildcard_can_be_ruled_out():
    with pytest.raises(NameRefused) as refused:
        names.dns_name("*.example.com", wildcard=False)
    assert refused.value.code == "name-wildcard"


# ── Addresses ──


@given(st.ip_addresses())
def test_an_address_is_spelled_in_one_way_or_refused(address):
    mapped = getattr(address, "ipv4_mapped", None) is not None
    if mapped or address.is_multicast or address.is_unspecified or str(address) == "255.255.255.255":
        with pytest.raises(NameRefused):
            names.ip_address(address.exploded)
    else:
        assert names.ip_address(address.exploded) == str(address)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "ip-malformed"),
        ("1.2.3", "ip-malformed"),
        ("1.2.3.04", "ip-malformed"),
        ("10.0.0.0/8", "ip-malformed"),
        ("example.com", "ip-malformed"),
        ("fe80::1%eth0", "ip-scoped"),
        ("::ffff:192.0.2.1", "ip-mapped"),
        ("0.0.0.0", "ip-not-a-host"),
        ("::", "ip-not-a-host"),
        ("224.0.0.1", "ip-not-a-host"),
        ("ff02::1", "ip-not-a-host"),
        ("255.255.255.255", "ip-not-a-host"),
    ],
)
def test_a_bad_address_is_refused_for_its_own_reason(text: str, code: str):
    with pytest.raises(NameRefused) as refused:
        names.ip_address(text)
    assert refused.value.code == code


def test_an_address_of_version_6_is_shortened():
    assert names.ip_address("2001:DB8:0:0:0:0:0:1") == "2001:db8::1"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("bücher.example", "Write xn--bcher-kva.example."),
        ("*.BÜCHER.example", "Write *.xn--bcher-kva.example."),
        ("example。com", "Write example.com."),
        ("ü" * 300, "Write each label in its 'xn--' form (an A-label)."),
        ("☃️..example", "Write each label in its 'xn--' form (an A-label)."),
    ],
    ids=["plain", "wildcard", "wide-dot", "too-long", "no-name"],
)
def test_a_name_that_is_not_ascii_is_refused_with_the_form_that_is_wanted(name: str, wanted: str) -> None:
    with pytest.raises(NameRefused) as refused:
        names.dns_name(name)
    assert refused.value.hint == wanted
