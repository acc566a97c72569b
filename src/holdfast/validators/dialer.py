"""The one way out: resolve once, check every address, connect to one that passed, on a port that we know."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.ports import Net, NetProblem, Stream, Tls
from holdfast.validators.addresses import Addresses, IPAddress
from holdfast.validators.resolver import Resolver
from holdfast.validators.verdict import Failed, Trace

RETRYABLE: Final = frozenset({"refused", "reset", "timeout", "unreachable"})
LOOPBACK: Final[Sequence[IPAddress]] = (ipaddress.IPv6Address("::1"), ipaddress.IPv4Address("127.0.0.1"))


@dataclass(frozen=True, slots=True)
class Line:
    """A connection, and whom it leads to."""

    stream: Stream
    private: bool  # the address is one that only the operator's list allows


class SafeDialer:
    """Dials for strangers. An address that was checked is the address that is dialled: no name is resolved twice."""

    def __init__(self, net: Net, resolver: Resolver, addresses: Addresses, *, ports: frozenset[int], each: float):
        self._net = net
        self._resolver = resolver
        self._addresses = addresses
        self._ports = ports
        self._each = each  # seconds for one address, so that a dead IPv6 leaves time for IPv4

    async def connect(self, host: str, port: int, trace: Trace, *, tls: Tls | None = None) -> Line:
        """Failed if there is nobody that we may, or can, talk to."""
        if port not in self._ports:
            raise Failed("connection", f"Port {port} is not one that we connect to.")
        found = await self._resolve(host)
        trace.resolved[host] = [str(address) for address in found]
        problem = NetProblem("unreachable", "there is no address")
        for address in _in_turn(self._permitted(host, found)):
            trace.address = str(address)
            try:
                stream = await self._net.connect(str(address), port, tls=tls, deadline_for=self._each)
            except NetProblem as why:
                problem = why
                trace.tries.append(f"{address} port {port}: {why.kind}")
            else:
                trace.tries.append(f"{address} port {port}: connected")
                return Line(stream, self._addresses.private(address))
        raise refused(host, problem)

    async def _resolve(self, host: str) -> list[IPAddress]:
        """An address is its own answer. There is one way to write it: what else looks like one is asked for in DNS.

        localhost is this machine, whatever name servers say (RFC 6761 §6.3); dialled only if the operator lists it.
        """
        if host == "localhost" or host.endswith(".localhost"):
            return list(LOOPBACK)
        try:
            return [ipaddress.ip_address(host)]
        except ValueError:
            return await self._resolver.addresses(host)

    def _permitted(self, host: str, found: Sequence[IPAddress]) -> list[IPAddress]:
        if not found:
            raise Failed("dns", f"{host} has no address: there is no A and no AAAA record.")
        reasons = {address: self._addresses.denied(address) for address in found}
        permitted = [address for address, reason in reasons.items() if reason is None]
        if not permitted:
            reason = next(filter(None, reasons.values()))
            raise Failed("connection", f"We do not connect to {host}: it is at {reason}.")
        return permitted


def _in_turn(addresses: Sequence[IPAddress]) -> list[IPAddress]:
    """The first of each family, IPv6 before IPv4: a proof is in one place, not wherever we find it in the end."""
    first = {address.version: address for address in reversed(addresses)}
    return [first[version] for version in (6, 4) if version in first]


def refused(host: str, why: NetProblem) -> Failed:
    """What a failure of the network means for the one who wants a certificate."""
    word = "tls" if why.kind == "tls" else "connection"
    return Failed(word, f"{host}: {why}.", retryable=why.kind in RETRYABLE)
