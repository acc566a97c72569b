"""A name server on loopback, over UDP and TCP, that answers as told: also late, never, cut off or with rubbish.

    async with DnsServer() as dns:
        dns.add("www.example.internal", "A", "127.0.0.1")
        ...  # ask dns.address
        assert dns.asked["www.example.internal", "A"] == 1

It speaks DNS by a library that the product does not use, so that the two check each other.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Self, cast

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

Key = tuple[str, str]  # the name in lower case, the type
Answer = Callable[[dns.message.Message, bool], bytes | None]  # the query, whether by TCP: the packet, or silence

SOA = "ns.example. hostmaster.example. 1 3600 600 86400"


class DnsServer:
    """Everything under every name, by default nothing: NOERROR, and no records."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.port = 0
        self.asked: Counter[Key] = Counter()
        self.by_tcp: Counter[Key] = Counter()
        self.spelled: list[str] = []  # the names as they were asked for, letter by letter
        self.ports: list[int] = []  # where the questions came from
        self.ids: list[int] = []
        self.ttl = 60
        self.soa_minimum: int | None = None  # None: empty answers have no SOA
        self._records: dict[Key, list[str]] = defaultdict(list)
        self._aliases: dict[str, str] = {}
        self._rcodes: dict[Key, dns.rcode.Rcode] = {}
        self._answers: dict[Key, Answer] = {}

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def add(self, name: str, kind: str, *values: str) -> None:
        self._records[name, kind] += values

    def remove(self, name: str, kind: str) -> None:
        self._records.pop((name, kind), None)

    def alias(self, name: str, target: str) -> None:
        self._aliases[name] = target

    def fail(self, name: str, kind: str, rcode: str) -> None:
        self._rcodes[name, kind] = dns.rcode.from_text(rcode)

    def answer(self, name: str, kind: str, answer: Answer) -> None:
        """Let a function of the test's have the say."""
        self._answers[name, kind] = answer

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        while True:  # one port for both
            self._udp, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), (self.host, 0))
            self.port = self._udp.get_extra_info("sockname")[1]
            try:
                self._tcp = await asyncio.start_server(self._serve, self.host, self.port)
                return self
            except OSError:
                self._udp.close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._udp.close()
        self._tcp.close()
        await self._tcp.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            size = int.from_bytes(await reader.readexactly(2), "big")
            answer = self.reply(await reader.readexactly(size), tcp=True)
            if answer is not None:
                writer.write(len(answer).to_bytes(2, "big") + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def reply(self, packet: bytes, *, tcp: bool) -> bytes | None:
        query = dns.message.from_wire(packet)
        question = query.question[0]
        spelled = question.name.to_text(omit_final_dot=True)
        key = (spelled.lower(), dns.rdatatype.to_text(question.rdtype))
        self.asked[key] += 1
        self.by_tcp[key] += tcp
        self.spelled.append(spelled)
        self.ids.append(query.id)
        if key in self._answers:
            return self._answers[key](query, tcp)
        response = self.response(query)
        wire = response.to_wire(max_size=65535)
        if not tcp and len(wire) > query.payload:
            cut = dns.message.make_response(query)
            cut.flags |= dns.flags.TC
            return cut.to_wire()
        return wire

    def response(self, query: dns.message.Message) -> dns.message.Message:
        """What the records say."""
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        question = query.question[0]
        kind = dns.rdatatype.to_text(question.rdtype)
        name = question.name.to_text(omit_final_dot=True).lower()
        response.set_rcode(self._rcodes.get((name, kind), dns.rcode.NOERROR))
        owner = question.name
        for _ in range(20):
            if name not in self._aliases:
                break
            response.answer.append(_rrset(owner, self.ttl, "CNAME", [f"{self._aliases[name]}."]))
            name = self._aliases[name]
            owner = dns.name.from_text(name)
        if values := self._records.get((name, kind)):
            response.answer.append(_rrset(owner, self.ttl, kind, values))
        elif self.soa_minimum is not None:
            response.authority.append(_rrset(owner, self.ttl, "SOA", [f"{SOA} {self.soa_minimum}"]))
        return response


def _rrset(owner: dns.name.Name, ttl: int, kind: str, values: list[str]) -> dns.rrset.RRset:
    return dns.rrset.from_text_list(owner, ttl, dns.rdataclass.IN, dns.rdatatype.from_text(kind), values)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._server.ports.append(addr[1])
        answer = self._server.reply(data, tcp=False)
        if answer is not None:
            self._transport.sendto(answer, addr)
