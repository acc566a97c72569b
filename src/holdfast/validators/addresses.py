"""Which addresses a check may dial: everybody's, and of one's own only those that the operator lists.

A name under a stranger's control may point anywhere, so every address that we must not talk to is named here, after
the IANA registries of special-purpose addresses (RFC 6890). An IPv4 address inside an IPv6 one counts like itself.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class _Range(NamedTuple):
    first: int
    last: int
    reason: str


class _Rules(NamedTuple):
    """For one version of IP. The first range that holds an address decides."""

    never: tuple[_Range, ...]
    if_inside: tuple[_Range, ...]  # only by a listed network that lies inside the range: 0.0.0.0/0 does not mean it
    if_listed: tuple[_Range, ...]


def _ranges(table: str) -> tuple[_Range, ...]:
    lines = (line.split(maxsplit=1) for line in table.strip().splitlines())
    found = ((ipaddress.ip_network(network), reason.strip()) for network, reason in lines)
    return tuple(_Range(int(net.network_address), int(net.broadcast_address), reason) for net, reason in found)


_V4: Final = _Rules(
    never=_ranges("""
        0.0.0.0/8           an address of "this network" (RFC 791)
        169.254.0.0/16      a link-local address (RFC 3927), where clouds keep their metadata
        100.100.100.200/32  a cloud's metadata service
        168.63.129.16/32    a cloud's metadata service
        192.0.0.0/24        an address for protocols (RFC 6890)
        192.0.2.0/24        an address for documentation (RFC 5737)
        192.31.196.0/24     an AS112 address (RFC 7535)
        192.52.193.0/24     an AMT address (RFC 7450)
        192.88.99.0/24      a 6to4 relay (RFC 7526)
        192.175.48.0/24     an AS112 address (RFC 7534)
        198.18.0.0/15       an address for benchmarks (RFC 2544)
        198.51.100.0/24     an address for documentation (RFC 5737)
        203.0.113.0/24      an address for documentation (RFC 5737)
        224.0.0.0/4         a multicast address (RFC 5771)
        255.255.255.255/32  the broadcast address (RFC 919)
        240.0.0.0/4         a reserved address (RFC 1112)
    """),
    if_inside=_ranges("127.0.0.0/8 a loopback address (RFC 1122)"),
    if_listed=_ranges("""
        10.0.0.0/8      a private address (RFC 1918)
        100.64.0.0/10   a shared address (RFC 6598)
        172.16.0.0/12   a private address (RFC 1918)
        192.168.0.0/16  a private address (RFC 1918)
    """),
)

_V6: Final = _Rules(
    never=_ranges("""
        ::/128              the unspecified address (RFC 4291)
        ::ffff:0:0/96       an IPv4 address in disguise (RFC 4291)
        64:ff9b:1::/48      an IPv4 address behind a local translator (RFC 8215)
        fd00:ec2::/32       a cloud's metadata service
        fd20:ce::254/128    a cloud's metadata service
        100::/63            a discard-only or dummy prefix (RFC 6666, RFC 9780)
        2001::/23           an address for protocols (RFC 2928)
        2001:db8::/32       an address for documentation (RFC 3849)
        2620:4f:8000::/48   an AS112 address (RFC 7534)
        3fff::/20           an address for documentation (RFC 9637)
        5f00::/16           a segment-routing address (RFC 9602)
        fe80::/10           a link-local address (RFC 4291)
        fec0::/10           a site-local address (RFC 3879)
        ff00::/8            a multicast address (RFC 4291)
    """),
    if_inside=_ranges("::1/128 a loopback address (RFC 4291)"),
    if_listed=_ranges("fc00::/7 a private address (RFC 4193)"),
)

# Of the rest of IPv6, only this is anybody's (RFC 4291 §2.4): so `::192.0.2.1`, for one, is nobody's.
_GIVEN_OUT: Final = (
    *_ranges("2000::/3 unicast\n64:ff9b::/96 NAT64"),
    *_V6.if_inside,
    *_V6.if_listed,
)
_NOT_GIVEN_OUT: Final = "an address that is not given out (RFC 4291)"


class Addresses:
    """The rule, with the networks that the operator lists."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        networks = [ipaddress.ip_network(text) for text in allowed]
        self._v4 = _listed(networks, 4)
        self._v6 = _listed(networks, 6)

    def denied(self, address: IPAddress) -> str | None:
        """Why it must not be dialled, as "a private address (RFC 1918)"; None if it may be."""
        if address.version == 4:
            return _denied(int(address), _V4, self._v4)
        number = int(address)
        reason = _denied(number, _V6, self._v6) or (None if _holds(_GIVEN_OUT, number) else _NOT_GIVEN_OUT)
        return reason or next(filter(None, map(_denied_within, _embedded(number))), None)

    def private(self, address: IPAddress) -> bool:
        """Whether it is one's own, so that what is read there is nobody else's business."""
        return EVERYBODYS.denied(address) is not None


def _listed(networks: Sequence[IPNetwork], version: int) -> tuple[_Range, ...]:
    ours = (net for net in networks if net.version == version)
    return tuple(_Range(int(net.network_address), int(net.broadcast_address), str(net)) for net in ours)


def _holds(ranges: Sequence[_Range], number: int) -> _Range | None:
    for found in ranges:
        if found.first <= number <= found.last:
            return found
    return None


def _denied(number: int, rules: _Rules, listed: Sequence[_Range]) -> str | None:
    if found := _holds(rules.never, number):
        return found.reason
    if found := _holds(rules.if_inside, number):
        explicit = [net for net in listed if found.first <= net.first and net.last <= found.last]
        return None if _holds(explicit, number) else found.reason
    if found := _holds(rules.if_listed, number):
        return None if _holds(listed, number) else found.reason
    return None


def _denied_within(number: int) -> str | None:
    """An address behind a translator or a tunnel: what the operator lists is meant to be reached without one."""
    reason = _denied(number, _V4, ())
    return f"an IPv6 address around {reason}" if reason else None


def _embedded(number: int) -> list[int]:
    """The IPv4 addresses that an IPv6 address leads to; the wrappings that are denied as such are not opened."""
    low, found = number & 0xFFFFFFFF, []
    if number >> 32 == 0x64FF9B << 64:  # NAT64 (RFC 6052); with DNS64, all that an IPv6-only network sees of the others
        found.append(low)
    if number >> 112 == 0x2002:  # 6to4 (RFC 3056)
        found.append(number >> 80 & 0xFFFFFFFF)
    if number >> 32 & 0xFDFFFFFF == 0x00005EFE:  # ISATAP (RFC 5214), under whatever prefix
        found.append(low)
    return found


EVERYBODYS: Final = Addresses()
