"""Where a redirect may lead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.ssrf import ODD_HOSTS

from holdfast.validators.http01 import Location, Ports, follow
from holdfast.validators.verdict import ChallengeFailed

PORTS = Ports(80, 443)
ORIGIN = Location(https=False, host="www.example.internal", port=80, target="/.well-known/acme-challenge/token")


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("http://other.example.internal/a", "http://other.example.internal/a"),
        ("https://other.example.internal/a?b=c", "https://other.example.internal/a?b=c"),
        ("HTTPS://Other.Example.Internal:443", "https://other.example.internal/"),
        ("/elsewhere", "http://www.example.internal/elsewhere"),
        ("elsewhere", "http://www.example.internal/.well-known/acme-challenge/elsewhere"),
        ("//other.example/x", "http://other.example/x"),
        ("?q", "http://www.example.internal/.well-known/acme-challenge/token?q"),
        ("http://other.example/a#fragment", "http://other.example/a"),
        ("http://other.example:443/", "http://other.example:443/"),
        ("http://192.0.2.1/", "http://192.0.2.1/"),
        ("http://[2001:DB8::0:1]/", "http://[2001:db8::1]/"),
        ("https://[2001:db8::1]:443/", "https://[2001:db8::1]/"),
        ("http://other.example/" + "a" * 1999, "http://other.example/" + "a" * 1999),
    ],
)
def test_a_redirect_leads_there(location: str, url: str) -> None:
    assert follow(ORIGIN, location.encode(), PORTS).url == url


@pytest.mark.parametrize(
    "location",
    [
        "http://other.example:8080/",
        "http://other.example:22/",
        "http://other.example:0/",
        "http://other.example:65536/",
        "http://other.example:-80/",
        "http://other.example:80a/",
        "https://other.example:8443/",
        "ftp://other.example/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:80/_x",
        "javascript:alert(1)",
        "http://user@other.example/",
        "http://user:secret@other.example/",
        "http://@other.example/",
        "http://other.example\\@evil.example/",
        "http://other.example/a b",
        "http://other.example/\r\nX-Header: 1",
        "http://other.example/\tx",
        "http://other.example/\x00",
        "http://other.example/\xe9",
        "http:///path",
        "http://",
        "http://bücher.example/",
        "http://other.example/" + "a" * 2000,
        "http://other.example/?" + "a" * 2000,
        "",
        *(f"http://{host}/" for host in ODD_HOSTS),
    ],
)
def test_a_redirect_does_not_lead_there(location: str) -> None:
    with pytest.raises(ChallengeFailed) as caught:
        follow(ORIGIN, location.encode("utf-8"), PORTS)
    assert not caught.value.retryable
    assert caught.value.problem.type == "connection"


def test_a_redirect_without_a_location_leads_nowhere() -> None:
    with pytest.raises(ChallengeFailed, match="without saying"):
        follow(ORIGIN, None, PORTS)


def test_other_ports_are_used_if_they_are_the_configured_ones() -> None:
    ports = Ports(5002, 5001)
    place = follow(ORIGIN, b"http://other.example/x", ports)
    assert (place.port, place.authority) == (5002, "other.example:5002")
    assert follow(ORIGIN, b"https://other.example/x", ports).port == 5001
    assert follow(ORIGIN, b"https://other.example:5001/x", ports).url == "https://other.example:5001/x"
    with pytest.raises(ChallengeFailed, match="port 443"):
        follow(ORIGIN, b"https://other.example:443/x", ports)


def test_an_address_has_no_server_name() -> None:
    assert follow(ORIGIN, b"https://192.0.2.1/", PORTS).server_name is None
    assert follow(ORIGIN, b"https://[2001:db8::1]/", PORTS).server_name is None
    assert follow(ORIGIN, b"https://a.example/", PORTS).server_name == "a.example"


@given(st.binary(max_size=200))
def test_any_location_leads_to_a_fit_place_or_nowhere(location: bytes) -> None:
    for prefix in (b"", b"http://", b"https://a", b"//", b"http://["):
        try:
            place = follow(ORIGIN, prefix + location, PORTS)
        except ChallengeFailed:
            continue
        assert place.port in PORTS
        assert all(0x21 <= ord(char) <= 0x7E for char in place.url)
        assert "@" not in place.host
        assert place.target.startswith("/")
