"""Nobody makes us talk to whom we must not: not by a name, not by a redirect, not by an answer that changes."""

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from itertools import count, product

import dns.message
import dns.rrset
import pytest
from tests.support.challenge_server import (
    NAME,
    PATH,
    PROOF,
    Trap,
    Watched,
    WebServer,
    a_challenge,
    a_validator,
    page,
    redirect,
    told,
)
from tests.support.dns_server import DnsServer
from tests.support.ssrf import DENIED, ODD_HOSTS, PLAIN, IPAddress

from holdfast.validators.check import Validator
from holdfast.validators.dialer import Addresses, SafeDialer
from holdfast.validators.resolver import Resolver
from holdfast.validators.verdict import ChallengeFailed, Invalid, Trace, Valid
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio

HERE = ipaddress.ip_address("127.0.0.1")  # where the first hop of these tests is; all else on loopback is denied


@pytest.fixture
async def names() -> AsyncIterator[DnsServer]:
    async with DnsServer() as server:
        yield server


def name_of(number: int) -> str:
    return f"n{number}.example.internal"


def publish(names: DnsServer, name: str, *addresses: IPAddress) -> None:
    for address in addresses:
        names.add(name, "A" if address.version == 4 else "AAAA", str(address))


@pytest.mark.parametrize("type_", ["http-01", "tls-alpn-01"])
async def test_a_name_at_a_denied_address_is_not_dialled(names: DnsServer, type_: str) -> None:
    net = Watched()
    validator = a_validator(names.address, net=net, allowed=())
    for number, address in enumerate(DENIED if type_ == "http-01" else PLAIN):
        publish(names, name_of(number), address)
        verdict = await validator.check(a_challenge(type_, name_of(number)))
        assert isinstance(verdict, Invalid), address
        assert (verdict.problem.type, verdict.retryable) == ("connection", False), address
        assert verdict.evidence["resolved"] == {name_of(number): [str(address)]}
    assert net.dialled == []


@pytest.mark.parametrize("type_", ["http-01", "tls-alpn-01"])
async def test_a_denied_address_as_an_identifier_is_not_dialled(names: DnsServer, type_: str) -> None:
    net = Watched()
    validator = a_validator(names.address, net=net, allowed=())
    for address in DENIED:
        assert isinstance(await validator.check(a_challenge(type_, str(address))), Invalid), address
    assert net.dialled == []


async def test_a_redirect_to_a_denied_address_is_not_followed(names: DnsServer) -> None:
    """By its digits, and by a name; on the first hop after ours, and on one later. Disguised ones take turns."""
    publish(names, NAME, HERE)
    net = Watched()
    async with WebServer(told()) as web:
        validator = a_validator(names.address, net=net, http_port=web.port, allowed=["127.0.0.1/32"])
        for number, address in enumerate(each for each in DENIED if each != HERE):
            publish(names, name_of(number), address)
            digits = f"[{address}]" if address.version == 6 else str(address)
            ways = list(product((digits, name_of(number)), (1, 2)))
            for host, hops in ways if address in PLAIN else [ways[number % 4]]:
                await refuses_to_follow(validator, web, host, hops)
    assert set(net.dialled) == {("127.0.0.1", web.port)}


async def refuses_to_follow(validator: Validator, web: WebServer, host: str, hops: int) -> None:
    async def answer(head: str, writer: asyncio.StreamWriter) -> None:
        first = head.startswith(f"GET {PATH} ")
        writer.write(redirect("/next" if first and hops == 2 else f"http://{host}/latest/meta-data"))

    web.answer = answer
    verdict = await validator.check(a_challenge())
    assert isinstance(verdict, Invalid), host
    assert not verdict.retryable, host
    assert len(list(verdict.evidence["tries"])) == hops, host  # type: ignore[call-overload]


@pytest.mark.parametrize("host", ODD_HOSTS)
async def test_a_host_that_only_some_read_as_an_address_is_not_followed(names: DnsServer, host: str) -> None:
    publish(names, NAME, HERE)
    net = Watched()
    async with WebServer(told(redirect(f"http://{host}/"))) as web:
        verdict = await a_validator(names.address, net=net, http_port=web.port).check(a_challenge())
    assert isinstance(verdict, Invalid)
    assert net.dialled == [("127.0.0.1", web.port)]
    assert set(names.asked) == {(NAME, "A"), (NAME, "AAAA")}


async def test_of_several_addresses_only_those_that_may_be_are_dialled(names: DnsServer) -> None:
    bad = ["10.0.0.1", "169.254.169.254", "127.0.0.2", "fe80::1", "fd00::1", "::ffff:127.0.0.1"]
    publish(names, NAME, *map(ipaddress.ip_address, bad), HERE)
    net = Watched()
    async with WebServer(told(page(PROOF.encode()))) as web:
        validator = a_validator(names.address, net=net, http_port=web.port, allowed=["127.0.0.1/32"])
        assert isinstance(await validator.check(a_challenge()), Valid)
    assert net.dialled == [("127.0.0.1", web.port)]


async def test_a_port_that_is_not_ours_is_not_dialled_whoever_asks() -> None:
    net = Watched()
    async with Trap() as trap:
        dialer = SafeDialer(
            net, Resolver(net, SystemRandom(), []), Addresses(["127.0.0.1/32"]), ports=frozenset({80, 443}), each=1.0
        )
        with pytest.raises(ChallengeFailed, match=f"Port {trap.port}"):
            await dialer.connect("127.0.0.1", trap.port, Trace())
        assert trap.connections == 0
    assert net.dialled == []


async def test_an_alias_to_a_denied_address_is_not_dialled(names: DnsServer) -> None:
    names.alias(NAME, "metadata.example.internal")
    publish(names, "metadata.example.internal", ipaddress.ip_address("169.254.169.254"))
    net = Watched()
    assert isinstance(await a_validator(names.address, net=net).check(a_challenge()), Invalid)
    assert net.dialled == []


TRIES = 3000


async def test_a_name_server_that_changes_its_mind_never_gets_us_to_the_denied_address(names: DnsServer) -> None:
    """Rebinding: the answer that is checked is the answer that is used, however quickly they change.

    127.0.0.2 stands for the public server, 127.0.0.1 for what must not be reached; both listen on the same port.
    """
    turns = count()

    def alternating(query: dns.message.Message, tcp: bool) -> bytes:
        address = ("127.0.0.1", "127.0.0.2")[next(turns) % 2]
        response = dns.message.make_response(query)
        response.answer.append(dns.rrset.from_text(query.question[0].name, 0, "IN", "A", address))
        return response.to_wire()

    names.answer(NAME, "A", alternating)
    net = Watched()
    async with Trap() as trap, WebServer(told(page(b"not the proof")), host="127.0.0.2", port=trap.port) as web:
        validator = a_validator(names.address, net=net, http_port=trap.port, allowed=["127.0.0.2/32"])
        for _ in range(TRIES // 20):
            verdicts = await asyncio.gather(*(validator.check(a_challenge()) for _ in range(20)))
            assert all(isinstance(verdict, Invalid) for verdict in verdicts)
        assert trap.connections == 0
        assert web.connections == TRIES // 2  # it is no test if nothing is dialled at all
    assert set(net.dialled) == {("127.0.0.2", trap.port)}
    assert names.asked[NAME, "A"] == TRIES  # once for each, never again for the connection


async def test_a_redirect_to_the_same_name_is_checked_anew(names: DnsServer) -> None:
    """The first hop is well, the second finds the name elsewhere."""
    turns = count()

    def alternating(query: dns.message.Message, tcp: bool) -> bytes:
        address = ("127.0.0.2", "127.0.0.1")[next(turns) % 2]
        response = dns.message.make_response(query)
        response.answer.append(dns.rrset.from_text(query.question[0].name, 0, "IN", "A", address))
        return response.to_wire()

    names.answer(NAME, "A", alternating)
    async with Trap() as trap, WebServer(told(redirect("/next")), host="127.0.0.2", port=trap.port) as web:
        validator = a_validator(names.address, http_port=trap.port, allowed=["127.0.0.2/32"])
        for _ in range(100):
            verdict = await validator.check(a_challenge())
            assert isinstance(verdict, Invalid)
            assert "a loopback address" in str(verdict.evidence["denied"])
        assert (trap.connections, web.connections) == (0, 100)
