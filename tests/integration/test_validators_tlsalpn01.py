"""tls-alpn-01 against real TLS servers, whose certificates are wrong in every way there is."""

import asyncio
import ipaddress
import ssl
import warnings
from collections.abc import AsyncIterator, Sequence

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from tests.support.challenge_server import (
    NAME,
    PROOF,
    WebServer,
    a_certificate,
    a_challenge,
    a_validator,
    digest_of,
    server_context,
    told,
)
from tests.support.dns_server import DnsServer
from tests.support.http_server import TcpServer
from tests.support.ports import free_port
from tests.support.reaper import PATIENCE

from holdfast import network
from holdfast.ports import Tls
from holdfast.validators.verdict import ChallengeToCheck, Invalid, Valid, ValidationResult

pytestmark = pytest.mark.anyio

RIGHT = digest_of(PROOF)
ACME = ("acme-tls/1",)
Pair = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


@pytest.fixture
async def names() -> AsyncIterator[DnsServer]:
    async with DnsServer() as server:
        server.add(NAME, "A", "127.0.0.1")
        yield server


async def validated(
    names: DnsServer,
    pair: Pair,
    *,
    alpn: Sequence[str] = ACME,
    challenge: ChallengeToCheck | None = None,
    seen: list[str] | None = None,
    host: str = "127.0.0.1",
) -> tuple[ValidationResult, WebServer]:
    context = server_context(*pair, alpn=alpn, seen=seen)
    async with WebServer(told(), host=host, tls=context) as server:
        verdict = await a_validator(names.address, tls_port=server.port).check(challenge or a_challenge("tls-alpn-01"))
    return verdict, server


def dns_name(text: str = NAME) -> x509.DNSName:
    return x509.DNSName(text)


def problem(verdict: ValidationResult) -> tuple[str, bool]:
    assert isinstance(verdict, Invalid), verdict
    return verdict.problem.type, verdict.retryable


async def test_the_right_certificate_is_the_proof(names: DnsServer) -> None:
    seen: list[str] = []
    verdict, server = await validated(names, a_certificate([dns_name()], RIGHT), seen=seen)
    assert isinstance(verdict, Valid), verdict
    assert seen == [NAME]
    assert server.asked == []  # nothing is said after the handshake
    assert verdict.evidence["tries"] == [f"127.0.0.1 port {server.port}: connected"]


@pytest.mark.parametrize("content", ["3003020100", "30060101ff020100"])
async def test_other_extensions_are_no_business_of_ours(names: DnsServer, content: str) -> None:
    """Not even one that is not allowed: Apache's mod_md writes CA:FALSE with a path length."""
    more = x509.UnrecognizedExtension(x509.ObjectIdentifier("2.5.29.19"), bytes.fromhex(content))
    verdict, _ = await validated(names, a_certificate([dns_name()], RIGHT, more=[more]))
    assert isinstance(verdict, Valid), verdict


async def test_the_case_of_a_name_does_not_matter(names: DnsServer) -> None:
    verdict, _ = await validated(names, a_certificate([dns_name(NAME.upper())], RIGHT))
    assert isinstance(verdict, Valid), verdict


@pytest.mark.parametrize(
    ("address", "reverse"),
    [("127.0.0.1", "1.0.0.127.in-addr.arpa"), ("::1", "1." + "0." * 31 + "ip6.arpa")],
)
async def test_an_address_is_proved_by_its_reverse_name_and_an_address_in_the_certificate(
    names: DnsServer, address: str, reverse: str
) -> None:
    seen: list[str] = []
    challenge = a_challenge("tls-alpn-01", address)
    pair = a_certificate([x509.IPAddress(ipaddress.ip_address(address))], RIGHT)
    verdict, _ = await validated(names, pair, challenge=challenge, seen=seen, host=address)
    assert isinstance(verdict, Valid), verdict
    assert seen == [reverse]
    assert not names.asked


def _names(content: bytes) -> x509.UnrecognizedExtension:
    return x509.UnrecognizedExtension(x509.ObjectIdentifier("2.5.29.17"), content)


OTHER_NAME = x509.OtherName(x509.ObjectIdentifier("1.3.6.1.4.1.311.20.2.3"), b"\x0c\x03www")
WRONG: dict[str, Pair] = {
    "no names": a_certificate(None, RIGHT),
    "an empty list of names": a_certificate([], RIGHT),
    "another name": a_certificate([dns_name("other.example.internal")], RIGHT),
    "a name below": a_certificate([dns_name(f"a.{NAME}")], RIGHT),
    "a wildcard above": a_certificate([dns_name("*.example.internal")], RIGHT),
    "one more name": a_certificate([dns_name(), dns_name("other.example.internal")], RIGHT),
    "the same name twice": a_certificate([dns_name(), dns_name()], RIGHT),
    "one more address": a_certificate([dns_name(), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))], RIGHT),
    "one more mailbox": a_certificate([dns_name(), x509.RFC822Name("a@example.internal")], RIGHT),
    "one more URI": a_certificate([dns_name(), x509.UniformResourceIdentifier(f"http://{NAME}")], RIGHT),
    "one more name of another kind": a_certificate([dns_name(), OTHER_NAME], RIGHT),
    "its address instead": a_certificate([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))], RIGHT),
    "the name as a URI": a_certificate([x509.UniformResourceIdentifier(NAME)], RIGHT),
    "the name as a mailbox": a_certificate([x509.RFC822Name(NAME)], RIGHT),
    "a name of the same length": a_certificate([dns_name("xxx.example.internal")], RIGHT),
    "a name with something before it": a_certificate([x509.DNSName(f"x{NAME}")], RIGHT),
    "the name with another tag": a_certificate(None, RIGHT, more=[_names(b"\x30\x16\x81\x14" + NAME.encode())]),
    "the name in a long form": a_certificate(None, RIGHT, more=[_names(b"\x30\x17\x82\x81\x14" + NAME.encode())]),
    "the name and rubbish": a_certificate(None, RIGHT, more=[_names(b"\x30\x16\x82\x14" + NAME.encode() + b"\0")]),
    "no digest": a_certificate([dns_name()], None),
    "a digest that is not critical": a_certificate([dns_name()], RIGHT, critical=False),
    "another digest": a_certificate([dns_name()], digest_of(f"{PROOF}x")),
    "a digest without its wrapping": a_certificate([dns_name()], RIGHT[2:]),
    "a digest that is cut off": a_certificate([dns_name()], RIGHT[:-1]),
    "a digest with something behind": a_certificate([dns_name()], RIGHT + b"\0"),
    "a digest in long form": a_certificate([dns_name()], b"\x04\x81\x20" + RIGHT[2:]),
    "a digest as another type": a_certificate([dns_name()], b"\x0c" + RIGHT[1:]),
    "an empty digest": a_certificate([dns_name()], b""),
    "the digest's text": a_certificate([dns_name()], b"\x04\x40" + RIGHT[2:].hex().encode()),
    "an empty certificate": a_certificate(None, None),
    "the signature of another key": a_certificate(
        [dns_name()], RIGHT, signed_by=ec.generate_private_key(ec.SECP256R1())
    ),
    "another issuer": a_certificate([dns_name()], RIGHT, issuer="somebody else"),
    "another issuer and key": a_certificate(
        [dns_name()], RIGHT, issuer="somebody else", signed_by=ec.generate_private_key(ec.SECP256R1())
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
async def test_any_other_certificate_is_no_proof(names: DnsServer, what: str) -> None:
    verdict, _ = await validated(names, WRONG[what])
    assert problem(verdict) == ("incorrectResponse", False)


@pytest.mark.parametrize(
    "names_shown",
    [
        [dns_name("1.0.0.127.in-addr.arpa")],
        [dns_name("127.0.0.1")],
        [x509.IPAddress(ipaddress.ip_address("127.0.0.2"))],
        [x509.IPAddress(ipaddress.ip_address("::ffff:127.0.0.1"))],
        [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), dns_name("1.0.0.127.in-addr.arpa")],
    ],
    ids=str,
)
async def test_an_address_is_proved_by_no_other_name(names: DnsServer, names_shown: list[x509.GeneralName]) -> None:
    challenge = a_challenge("tls-alpn-01", "127.0.0.1")
    verdict, _ = await validated(names, a_certificate(names_shown, RIGHT), challenge=challenge)
    assert problem(verdict) == ("incorrectResponse", False)


async def test_a_server_that_knows_no_alpn_is_no_proof(names: DnsServer) -> None:
    """Its certificate may be for anybody: shared hosts let customers upload certificates."""
    verdict, _ = await validated(names, a_certificate([dns_name()], RIGHT), alpn=())
    assert problem(verdict) == ("incorrectResponse", False)


async def test_a_server_of_other_protocols_is_no_proof(names: DnsServer) -> None:
    verdict, _ = await validated(names, a_certificate([dns_name()], RIGHT), alpn=("h2", "http/1.1"))
    assert problem(verdict)[0] in {"tls", "incorrectResponse"}  # some servers break off, some go on without


async def test_older_versions_of_tls_are_refused(names: DnsServer) -> None:
    context = server_context(*a_certificate([dns_name()], RIGHT), alpn=ACME)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore"):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with WebServer(told(), tls=context) as server:
        verdict = await a_validator(names.address, tls_port=server.port).check(a_challenge("tls-alpn-01"))
    assert problem(verdict)[0] in {"tls", "connection"}  # asyncio's server hangs up without a word
    for alpn in (ACME, ()):
        assert network._context(Tls(server_name=None, alpn=tuple(alpn))).minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_both_present_versions_of_tls_are_spoken(names: DnsServer, version: ssl.TLSVersion) -> None:
    context = server_context(*a_certificate([dns_name()], RIGHT), alpn=ACME)
    context.minimum_version = context.maximum_version = version
    async with WebServer(told(), tls=context) as server:
        verdict = await a_validator(names.address, tls_port=server.port).check(a_challenge("tls-alpn-01"))
    assert isinstance(verdict, Valid), verdict


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-x\r\n", b"\x15\x03\x03\x00\x02\x02\x28"]
)
async def test_a_server_that_speaks_something_else_is_no_proof(names: DnsServer, said: bytes) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(said)
        await writer.drain()
        await reader.read()

    async with TcpServer(speak) as server:
        verdict = await a_validator(names.address, tls_port=server.port).check(a_challenge("tls-alpn-01"))
    assert problem(verdict) == ("tls", False)


async def test_a_server_that_hangs_up_in_the_handshake_is_worth_another_try(names: DnsServer) -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.close()

    async with TcpServer(leave) as server:
        verdict = await a_validator(names.address, tls_port=server.port).check(a_challenge("tls-alpn-01"))
    assert problem(verdict) == ("connection", True)


async def test_a_server_that_never_shakes_hands_is_left_when_the_time_is_up(names: DnsServer) -> None:
    left = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        left.set()

    async with TcpServer(wait) as server:
        verdict = await a_validator(names.address, tls_port=server.port, timeout=0.3).check(a_challenge("tls-alpn-01"))
        assert problem(verdict) == ("connection", True)
        async with asyncio.timeout(PATIENCE):
            await left.wait()


async def test_nobody_listening_is_worth_another_try(names: DnsServer) -> None:
    verdict = await a_validator(names.address, tls_port=free_port()).check(a_challenge("tls-alpn-01"))
    assert problem(verdict) == ("connection", True)


async def test_a_wildcard_cannot_be_proved_so(names: DnsServer) -> None:
    verdict = await a_validator(names.address).check(a_challenge("tls-alpn-01", f"*.{NAME}"))
    assert problem(verdict) == ("rejectedIdentifier", False)
