"""DNS questions of solvers: the servers of a zone, the target of an alias, and one server's view of a record."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from typing import Final

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype

from holdfast.ports import Net, NetProblem, Random
from holdfast.solvers.base import never, not_now
from holdfast.validators.resolver import server

_TRY_FOR: Final = 3.0  # seconds for one server
_ROUNDS: Final = 2
_MOST_ALIASES: Final = 8
_MOST_SERVERS: Final = 16
_ANSWERS: Final = (dns.rcode.NOERROR, dns.rcode.NXDOMAIN)


class DnsClient:
    """Remembers nothing. Names are absolute, and without the final dot."""

    def __init__(self, net: Net, random: Random, servers: Sequence[str]) -> None:
        self._net = net
        self._random = random
        self._servers = [server(text) for text in servers]  # that answer for all names

    async def exchange(
        self, address: str, port: int, query: dns.message.Message, *, tcp: bool, deadline_for: float = _TRY_FOR
    ) -> bytes:
        """One message and the answer to it, as it came; NetProblem if there is none."""
        return await self._net.ask(
            address, port, query.to_wire(), tcp=tcp, deadline_for=deadline_for, fits=_fits(query.id, query.question)
        )

    async def ask_at(
        self, address: str, port: int, name: str, kind: str, *, recurse: bool = False
    ) -> dns.message.Message:
        """What this one server says; NetProblem if it does not."""
        flags = dns.flags.RD if recurse else 0
        number = int.from_bytes(self._random.token(2), "big")
        query = dns.message.make_query(dns.name.from_text(name), kind, use_edns=0, payload=1232, flags=flags, id=number)
        for tcp in (False, True):
            answer = _read(await self.exchange(address, port, query, tcp=tcp))
            if not answer.flags & dns.flags.TC:
                return answer
        raise NetProblem("reset", "an answer by TCP was cut off")

    async def ask(self, name: str, kind: str) -> dns.message.Message:
        """One server after the other, until one answers; that there is no such name is an answer."""
        why = "no name servers are configured"
        for address, port in self._servers * _ROUNDS:
            try:
                answer = await self.ask_at(address, port, name, kind, recurse=True)
            except NetProblem as problem:
                why = str(problem)
                continue
            if answer.rcode() in _ANSWERS:
                return answer
            why = dns.rcode.to_text(answer.rcode())
        raise not_now(f"DNS, {kind} of {name}: {why}.")

    # ── What they mean ──

    async def target(self, name: str) -> str:
        """Where the aliases of a name lead: _acme-challenge may be delegated to a zone that we can change (CNAME)."""
        seen = [name]
        while (alias := _first(await self.ask(seen[-1], "CNAME"), seen[-1], "CNAME")) is not None:
            if len(seen) > _MOST_ALIASES:
                raise never(f"The aliases of {name} are too many, or go round in a circle.")
            seen.append(alias)
        return seen[-1]

    async def zone(self, name: str) -> str:
        """The zone that a name is in: the nearest name above it, or it, that has an SOA record."""
        labels = name.split(".")
        for at in range(len(labels)):
            above = ".".join(labels[at:])
            if _texts(await self.ask(above, "SOA"), above, "SOA"):
                return above
        raise never(f"No zone is found for {name}.")

    async def name_servers(self, zone: str) -> dict[str, list[str]]:
        """Those that the zone itself names, each with its addresses, IPv4 first."""
        found: dict[str, list[str]] = {}
        for name in _texts(await self.ask(zone, "NS"), zone, "NS")[:_MOST_SERVERS]:
            host = name.rstrip(".").lower()
            found[host] = [each for kind in ("A", "AAAA") for each in _texts(await self.ask(host, kind), None, kind)]
        return found


def values(answer: dns.message.Message) -> set[bytes]:
    """The texts of all TXT records in an answer, after its aliases."""
    return {
        b"".join(record.strings) for found in answer.answer if found.rdtype == dns.rdatatype.TXT for record in found
    }


def _read(packet: bytes) -> dns.message.Message:
    try:
        return dns.message.from_wire(packet)
    except (dns.exception.DNSException, ValueError):
        raise NetProblem("reset", "an answer cannot be read") from None


def _fits(number: int, question: Sequence[object]) -> Callable[[bytes], bool]:
    def fits(packet: bytes) -> bool:
        try:
            found = dns.message.from_wire(packet, question_only=True)
        except (dns.exception.DNSException, ValueError):
            return False
        same = not found.question or list(found.question) == list(question)
        return found.id == number and bool(found.flags & dns.flags.QR) and same

    return fits


def _texts(answer: dns.message.Message, owner: str | None, kind: str) -> list[str]:
    """The records of a kind, as text; of one owner only, or of wherever the aliases led."""
    return [
        record.to_text()
        for found in answer.answer
        if found.rdtype == dns.rdatatype.from_text(kind) and (owner is None or _plain(found.name) == owner)
        for record in found
        if kind not in ("A", "AAAA") or _is_address(record.to_text())
    ]


def _first(answer: dns.message.Message, owner: str, kind: str) -> str | None:
    found = _texts(answer, owner, kind)
    return found[0].rstrip(".").lower() if found else None


def _plain(name: dns.name.Name) -> str:
    return name.to_text(omit_final_dot=True).lower()


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
