"""Asks the configured name servers, and believes only an answer that can be to no other question than ours."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Sequence
from functools import partial
from typing import Final, Literal

from holdfast.pki.names import IPAddress
from holdfast.ports import Net, NetProblem, Random
from holdfast.validators import wire
from holdfast.validators.wire import DnsAnswer, RecordKind

ROUNDS: Final = 2  # over all servers
TRY_FOR: Final = 2.0  # seconds for one server; a lost datagram must leave time for the next one
_BRACKETED: Final = re.compile(r"\[([^\]]*)\](?::([0-9]+))?")
DnsKind = Literal["nxdomain", "servfail", "timeout", "malformed", "refused"]

_RCODES: Final[dict[int, DnsKind]] = {wire.NXDOMAIN: "nxdomain", wire.REFUSED: "refused"}  # all others: servfail
_SAID: Final[dict[DnsKind, str]] = {
    "nxdomain": "there is no such name (NXDOMAIN)",
    "servfail": "the name servers failed (SERVFAIL)",
    "timeout": "the name servers did not answer in time",
    "malformed": "the answer cannot be read",
    "refused": "the name servers refused to answer",
}


class DnsProblem(Exception):
    """A question without an answer. NXDOMAIN is among them: an empty answer is not."""

    def __init__(self, kind: DnsKind, name: str, asked: RecordKind, more: str = "") -> None:
        super().__init__(f"DNS, {asked.name} of {name}: {_SAID[kind]}{f' ({more})' if more else ''}")
        self.kind: Final = kind

    @property
    def retryable(self) -> bool:
        return self.kind in {"servfail", "timeout", "refused"}


def server(text: str) -> tuple[str, int]:
    """The address and port of a name server, written as 192.0.2.1, 192.0.2.1:5353, 2001:db8::1 or [2001:db8::1]:53."""
    bracketed = _BRACKETED.fullmatch(text)
    if bracketed:
        host, port = bracketed.groups()
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        host, port = text, None
    found = str(ipaddress.ip_address(host)), 53 if port is None else int(port)
    if not 0 < found[1] < 1 << 16:
        raise ValueError(f"{text!r} is not the address of a name server: its port is out of range")
    return found


class Resolver:
    """Remembers nothing: a TXT record is looked up when its challenge is checked."""

    def __init__(self, net: Net, random: Random, servers: Sequence[str], *, try_for: float = TRY_FOR) -> None:
        self._net = net
        self._random = random
        self._try_for = try_for
        self._servers = [server(text) for text in servers]

    async def addresses(self, name: str) -> list[IPAddress]:
        """Every address of a name, IPv6 first. One family may fail if the other has something."""
        v6, v4 = await asyncio.gather(
            self.ask(name, RecordKind.AAAA), self.ask(name, RecordKind.A), return_exceptions=True
        )
        for failed in (v6, v4):
            if isinstance(failed, BaseException) and not isinstance(failed, DnsProblem):
                raise failed
        found: list[IPAddress] = []
        if isinstance(v6, DnsAnswer):
            found += [ipaddress.IPv6Address(data) for data in v6.data if len(data) == 16]
        if isinstance(v4, DnsAnswer):
            found += [ipaddress.IPv4Address(data) for data in v4.data if len(data) == 4]
        problems = [each for each in (v4, v6) if isinstance(each, DnsProblem)]
        if problems and not found:
            raise next((each for each in problems if each.kind != "nxdomain"), problems[0])
        return found

    async def texts(self, name: str) -> list[bytes]:
        try:
            return [wire.text(data) for data in (await self.ask(name, RecordKind.TXT)).data]
        except wire.Malformed as why:
            raise DnsProblem("malformed", name, RecordKind.TXT, str(why)) from None

    async def ask(self, name: str, kind: RecordKind) -> DnsAnswer:
        """What there is under a name. Aliases that the server leaves to us are followed."""
        try:
            asked = wire.question(name, kind)
        except wire.Malformed as why:
            raise DnsProblem("malformed", name, kind, str(why)) from None
        for _ in range(wire.MAX_ALIASES + 1):
            answer = await self._ask(name, kind, asked)
            if answer.alias is None:
                return answer
            asked = answer.alias + asked[-wire.TAIL :]
        raise DnsProblem("malformed", name, kind, "it has too many aliases")

    async def _ask(self, name: str, kind: RecordKind, asked: bytes) -> DnsAnswer:
        """One server after the other, until one answers; a name that does not exist is an answer."""
        problem = DnsProblem("refused", name, kind, "there is no name server to ask")
        for address, port in self._servers * ROUNDS:
            try:
                answer = await self._exchange(address, port, asked)
            except NetProblem as why:
                problem = DnsProblem("timeout" if why.kind == "timeout" else "refused", name, kind, str(why))
            except wire.Malformed as why:
                problem = DnsProblem("malformed", name, kind, str(why))
            else:
                if answer.rcode == wire.NOERROR:
                    return answer
                problem = DnsProblem(_RCODES.get(answer.rcode, "servfail"), name, kind)
                if problem.kind == "nxdomain":
                    break
        raise problem

    async def _exchange(self, address: str, port: int, asked: bytes) -> DnsAnswer:
        """By UDP; again by TCP, which cannot be forged, if the answer was cut off or does not repeat our letters.

        Answers from this machine are not forged: there the letters keep their case, because servers that people try
        things out with, pebble-challtestsrv among them, know a name in lower case only.
        """
        noise = self._random.token(2 + len(asked))
        near = ipaddress.ip_address(address).is_loopback
        number, spelled = int.from_bytes(noise[:2], "big"), asked if near else wire.mixed(asked, noise[2:])
        fits = partial(wire.fits, number=number, asked=spelled)
        message = wire.query(number, spelled)
        for tcp in (False, True):
            packet = await self._net.ask(address, port, message, tcp=tcp, deadline_for=self._try_for, fits=fits)
            if tcp or near or wire.repeats(packet, spelled):
                answer = wire.read(packet, spelled)
                if not answer.truncated:
                    return answer
        raise wire.Malformed("an answer by TCP was cut off")
