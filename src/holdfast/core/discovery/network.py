"""Scans of networks: which places a scan looks at, in which order, and why it may not."""

from __future__ import annotations

import ipaddress
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from holdfast.core.endpoint import Endpoint, EndpointProtocol, endpoint_of

MOST_PLACES: Final = 65_536  # of one scan: a /16 at one port
MOST_WHERE: Final = 256  # networks and names of one scan
MOST_PORTS: Final = 16
AT_ONCE: Final = 64  # connections of a scan: one step of its job
NETWORKS_SETTING: Final = "discovery.networks"
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
_PROTOCOLS: Final = {
    21: "ftp", 25: "smtp", 110: "pop3", 143: "imap", 389: "ldap", 587: "smtp", 3306: "mysql", 5222: "xmpp",
    5432: "postgres",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRules:
    """What the operator of this installation lets scans do."""

    networks: tuple[str, ...] = ()  # no address outside of these is dialled
    rate: int = 30  # new connections in a second, of all scans together


@dataclass(frozen=True, slots=True)
class ScanPort:
    port: int
    protocol: EndpointProtocol


def port_of(text: str) -> ScanPort:
    """What people mean by 443, 587 or smtp:2525. ValueError says what is wrong with it."""
    word, colon, number = text.strip().rpartition(":")
    if not number.isascii() or not number.isdigit() or not 0 < int(number) < 1 << 16:
        raise ValueError(f"{text!r:.40} is no port: write 443, or PROTOCOL:PORT such as smtp:2525")
    protocol = word if colon else _PROTOCOLS.get(int(number), "tls")
    if protocol not in list(EndpointProtocol):
        raise ValueError(f"{protocol!r:.20} is not a protocol that can be looked at: {', '.join(EndpointProtocol)}")
    return ScanPort(int(number), EndpointProtocol(protocol))


def network_of(text: str) -> IPNetwork | None:
    """The network that a text names, a single address among them; None: it is a name."""
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        if "/" in text:
            raise ValueError(f"{text!r:.60} is no network: write 10.1.2.0/24") from None
        return None


class ScanPlan:
    """The places of a scan, by number. All hosts are met at one port before any is met at the next."""

    def __init__(self, where: Sequence[str], ports: Sequence[str]) -> None:
        self._where: list[IPNetwork | str] = [network_of(each) or _host(each) for each in where]
        self._ports = [port_of(each) for each in ports]
        self._ends = list(accumulate(_hosts(each) for each in self._where))
        self.hosts = self._ends[-1] if self._ends else 0
        self.total = self.hosts * len(self._ports)

    @property
    def networks(self) -> list[IPNetwork]:
        return [each for each in self._where if not isinstance(each, str)]

    def places(self, first: int, number: int) -> list[Endpoint]:
        return [self._place(each) for each in range(first, min(first + number, self.total))]

    def _place(self, number: int) -> Endpoint:
        port, host = self._ports[number // self.hosts], number % self.hosts
        at = bisect_right(self._ends, host)
        which, offset = self._where[at], host - (self._ends[at - 1] if at else 0)
        name = which if isinstance(which, str) else str(_address(which, offset))
        return Endpoint(host=name, port=port.port, protocol=port.protocol)


def _host(text: str) -> str:
    """A name, with the errors that endpoints have."""
    return replace(endpoint_of(text), port=443).host


def _hosts(which: IPNetwork | str) -> int:
    """How many addresses are looked at; the network's own and its broadcast address are not."""
    if isinstance(which, str):
        return 1
    whole = which.num_addresses
    return whole - 2 if which.version == 4 and whole > 2 else whole


def _address(network: IPNetwork, offset: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    skip = 1 if network.version == 4 and network.num_addresses > 2 else 0
    return network[offset + skip]


def problem_with(plan: ScanPlan, rules: ScanRules) -> str:
    """Why a scan is refused, as a sentence; empty: it may begin."""
    if not rules.networks:
        return f"No network may be scanned: {NETWORKS_SETTING} is empty."
    allowed = [ipaddress.ip_network(each) for each in rules.networks]
    for each in plan.networks:
        if not any(_within(each, of) for of in allowed):
            listed = ", ".join(rules.networks[:5])
            return f"{each} may not be scanned: {NETWORKS_SETTING} lists {listed}."
    if plan.total > MOST_PLACES:
        return f"This would be {plan.total} places (addresses times ports), and a scan has at most {MOST_PLACES}."
    return ""


def _within(inner: IPNetwork, outer: IPNetwork) -> bool:
    if isinstance(inner, ipaddress.IPv4Network) and isinstance(outer, ipaddress.IPv4Network):
        return inner.subnet_of(outer)
    if isinstance(inner, ipaddress.IPv6Network) and isinstance(outer, ipaddress.IPv6Network):
        return inner.subnet_of(outer)
    return False
