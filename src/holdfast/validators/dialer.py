"""Connections of validators: a name is resolved once, every address is checked, and a checked one is dialled."""

from __future__ import annotations

import ipaddress
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.pki.names import IPAddress
from holdfast.ports import Net, NetProblem, Stream, Tls
from holdfast.validators.resolver import Resolver
from holdfast.validators.verdict import ChallengeFailed, Trace

# ── Which addresses may be dialled ──
# Public addresses, and private ones only if the operator lists them.
#
# A name under a stranger's control may point anywhere, so every address that we must not talk to is named here, after
# the IANA registries of special-purpose addresses (RFC 6890). An IPv4 address inside an IPv6 one counts like itself.


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
        2002::/16           a 6to4 address, which nothing relays any more (RFC 7526)
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

# Of the rest of IPv6, only this is global unicast (RFC 4291 §2.4): `::192.0.2.1`, for one, is not.
_GIVEN_OUT: Final = (
    *_ranges("2000::/3 unicast\n64:ff9b::/96 NAT64"),
    *_V6.if_inside,
    *_V6.if_listed,
)
_NOT_GIVEN_OUT: Final = "an address that is not given out (RFC 4291)"


class Addresses:
    """The rule, with the networks that the operator lists."""

    def __init__(self, allowed: Iterable[str] = (), *, only: str = "") -> None:
        """`only` is the setting that lists the networks, if no other address may be dialled, be it public."""
        networks = [ipaddress.ip_network(text) for text in allowed]
        self._only = only
        self._v4 = _listed(networks, 4)
        self._v6 = _listed(networks, 6)

    def denied(self, address: IPAddress) -> str | None:
        """Why it must not be dialled, as "a private address (RFC 1918)"; None if it may be."""
        number = int(address)
        if self._only and not _holds(self._v4 if address.version == 4 else self._v6, number):
            return f"an address that {self._only} does not list"
        if address.version == 4:
            return _denied(number, _V4, self._v4)
        reason = _denied(number, _V6, self._v6) or (None if _holds(_GIVEN_OUT, number) else _NOT_GIVEN_OUT)
        return reason or next(filter(None, map(_denied_within, _embedded(number))), None)

    def private(self, address: IPAddress) -> bool:
        """Whether the address is private, so that nothing read there may be shown to clients."""
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
    if number >> 32 & 0xFDFFFFFF == 0x00005EFE:  # ISATAP (RFC 5214), under any prefix
        found.append(low)
    return found


EVERYBODYS: Final = Addresses()


# ── Dialling ──
# The one way out: resolve once, check every address, connect to one that passed, on a port that we know.


RETRYABLE: Final = frozenset({"refused", "reset", "timeout", "unreachable"})
BY_SETTING: Final = "The audit log of the CA says why; its operator can allow private addresses: acme.networks."
LOOPBACK: Final[Sequence[IPAddress]] = (ipaddress.IPv6Address("::1"), ipaddress.IPv4Address("127.0.0.1"))


@dataclass(frozen=True, slots=True)
class DialedConnection:
    """A connection, and whom it leads to."""

    stream: Stream
    private: bool  # the address is one that only the operator's list allows


class TooCrowded(Exception):
    """As many checks as may be talk to this address already."""


class Crowd:
    """How many checks talk to each address: one server, however many names lead to it, does not hold all of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._there: Counter[str] = Counter()

    def enter(self, address: str) -> None:
        if self._there[address] >= self._most:
            raise TooCrowded(address)
        self._there[address] += 1

    def leave(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            self._there[address] -= 1
            if not self._there[address]:
                del self._there[address]


class NotPermitted(Exception):
    """An address that our rule forbids; the text says what kind of address it is."""


class SafeDialer:
    """Dials for strangers. An address that was checked is the address that is dialled: no name is resolved twice."""

    def __init__(
        self,
        net: Net,
        resolver: Resolver,
        addresses: Addresses,
        *,
        ports: frozenset[int] | None,
        each: float,
        crowd: Crowd | None = None,
    ):
        self._crowd = crowd or Crowd(sys.maxsize)
        self._net = net
        self._resolver = resolver
        self._addresses = addresses
        self._ports = ports  # None: any, for those who name one themselves
        self._each = each  # seconds for one address, so that a dead IPv6 leaves time for IPv4

    async def connect(self, host: str, port: int, trace: Trace, *, tls: Tls | None = None) -> DialedConnection:
        """ChallengeFailed if there is no address that we may dial, or that answers."""
        if self._ports is not None and port not in self._ports:
            raise ChallengeFailed("connection", f"Port {port} is not one that we connect to.")
        found = await self.resolve(host)
        trace.resolved[host] = [str(address) for address in found]
        problem = NetProblem("unreachable", "there is no address")
        for address in _in_turn(self._permitted(host, found, trace)):
            trace.address = str(address)
            if trace.address not in trace.held:
                self._crowd.enter(trace.address)
                trace.held.append(trace.address)
            try:
                stream = await self.dial(address, port, tls=tls)
            except NetProblem as why:
                problem = why
                trace.tries.append(f"{address} port {port}: {why.kind}")
            else:
                trace.tries.append(f"{address} port {port}: connected")
                return DialedConnection(stream, self._addresses.private(address))
        raise refused(host, problem)

    async def dial(self, address: IPAddress, port: int, *, tls: Tls | None = None) -> Stream:
        """One address; NotPermitted or NetProblem if there is no connection to it."""
        if reason := self._addresses.denied(address):
            raise NotPermitted(reason)
        return await self._net.connect(str(address), port, tls=tls, deadline_for=self._each)

    async def resolve(self, host: str) -> list[IPAddress]:
        """An address is its own answer. There is one way to write it: what else looks like one is asked for in DNS.

        localhost is always this machine (RFC 6761 §6.3); dialled only if the operator lists it.
        """
        if host == "localhost" or host.endswith(".localhost"):
            return list(LOOPBACK)
        try:
            return [ipaddress.ip_address(host)]
        except ValueError:
            return await self._resolver.addresses(host)

    def _permitted(self, host: str, found: Sequence[IPAddress], trace: Trace) -> list[IPAddress]:
        """A stranger does not learn what kind of address a name of ours has: that is in the evidence, for operators."""
        if not found:
            raise ChallengeFailed("dns", f"{host} has no address: there is no A and no AAAA record.")
        reasons = {address: self._addresses.denied(address) for address in found}
        permitted = [address for address, reason in reasons.items() if reason is None]
        if not permitted:
            trace.more["denied"] = next(filter(None, reasons.values()))
            raise ChallengeFailed("connection", f"We do not connect to where {host} leads. {BY_SETTING}")
        return permitted


def _in_turn(addresses: Sequence[IPAddress]) -> list[IPAddress]:
    """The first of each family, IPv6 before IPv4: a challenge response is at one of them."""
    first = {address.version: address for address in reversed(addresses)}
    return [first[version] for version in (6, 4) if version in first]


def refused(host: str, why: NetProblem) -> ChallengeFailed:
    """What a failure of the network means for the one who wants a certificate."""
    word = "tls" if why.kind == "tls" else "connection"
    return ChallengeFailed(word, f"{host}: {why}.", retryable=why.kind in RETRYABLE)
