"""Which addresses may be dialled."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.ssrf import DENIED, LOOPBACK, NEVER, PRIVATE, PUBLIC, ends, wrapped

from holdfast.validators.dialer import EVERYBODYS, Addresses

EVERYTHING = ("0.0.0.0/0", "::/0")


@pytest.mark.parametrize("address", DENIED, ids=str)
def test_what_is_not_everybodys_is_denied_with_a_reason(address: ipaddress.IPv4Address) -> None:
    assert EVERYBODYS.denied(address)


@pytest.mark.parametrize("text", PUBLIC)
def test_what_is_everybodys_may_be_dialled(text: str) -> None:
    assert EVERYBODYS.denied(ipaddress.ip_address(text)) is None


@pytest.mark.parametrize("address", sorted(ends([*NEVER, *LOOPBACK]), key=str), ids=str)
def test_a_list_of_everything_opens_only_what_is_private(address: ipaddress.IPv4Address) -> None:
    assert Addresses(EVERYTHING).denied(address)


@pytest.mark.parametrize("network", NEVER)
def test_what_is_never_dialled_cannot_be_listed(network: str) -> None:
    rule = Addresses([network])
    assert all(rule.denied(address) for address in ends([network]))


@pytest.mark.parametrize("network", [*PRIVATE, *LOOPBACK])
def test_what_the_operator_lists_may_be_dialled_and_stays_private(network: str) -> None:
    rule = Addresses([network])
    assert [rule.denied(address) for address in ends([network])] == [None] * len(list(ends([network])))
    assert all(rule.private(address) for address in ends([network]))
    others = ends([each for each in [*PRIVATE, *LOOPBACK] if each != network])
    assert all(rule.denied(address) for address in others)


def test_a_part_of_a_private_network_opens_that_part_alone() -> None:
    rule = Addresses(["10.1.0.0/16", "127.0.0.2/32", "fd12::/16"])
    assert rule.denied(ipaddress.ip_address("10.1.255.255")) is None
    assert rule.denied(ipaddress.ip_address("127.0.0.2")) is None
    assert rule.denied(ipaddress.ip_address("fd12::1")) is None
    for text in ("10.2.0.0", "10.0.255.255", "127.0.0.1", "127.0.0.3", "fd11::1", "fd13::1"):
        assert rule.denied(ipaddress.ip_address(text))


def test_metadata_inside_a_listed_network_stays_shut() -> None:
    rule = Addresses(["100.64.0.0/10", "fc00::/7", "169.254.0.0/16", "fd00:ec2::254/128"])
    for text in ("100.100.100.200", "fd00:ec2::254", "169.254.169.254", "fd20:ce::254"):
        assert rule.denied(ipaddress.ip_address(text))


@given(st.ip_addresses(v=4))
def test_an_address_in_disguise_is_never_better_off_than_itself(address: ipaddress.IPv4Address) -> None:
    listed = Addresses([*PRIVATE, *LOOPBACK])
    for disguised in wrapped(address).values():
        if EVERYBODYS.denied(address):
            assert listed.denied(disguised) or disguised == ipaddress.IPv6Address("::1")


@given(st.ip_addresses())
def test_what_the_standard_library_holds_for_special_is_denied_too(address: ipaddress.IPv4Address) -> None:
    if address in ipaddress.ip_network("64:ff9b::/96"):
        return  # it calls NAT64 reserved, which for a network without IPv4 is the whole rest of the world
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert EVERYBODYS.denied(address)


def test_the_reason_reads_on_after_a_verb() -> None:
    assert EVERYBODYS.denied(ipaddress.ip_address("10.0.0.1")) == "a private address (RFC 1918)"
    inner = EVERYBODYS.denied(ipaddress.ip_address("64:ff9b::10.0.0.1"))
    assert inner == "an IPv6 address around a private address (RFC 1918)"


@pytest.mark.parametrize("text", ["10.0.0.1/8", "ten", "10.0.0.0/33", ""])
def test_a_listed_network_that_is_none_is_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match=r"network|host bits|address"):
        Addresses([text])
