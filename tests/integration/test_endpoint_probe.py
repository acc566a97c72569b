"""What a real server shows is what we see, and what we say of it is what openssl says."""

import asyncio
import ssl
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support import served
from tests.support.dns_server import DnsServer
from tests.support.http_server import TcpServer
from tests.support.ports import free_port
from tests.support.reaper import PATIENCE
from tests.support.served import HOST, NAME, Issuing, Pair

from holdfast.core.endpoint import Endpoint, EndpointProtocol, Expected, Sighting, SightingProblem, Verdict, judge
from holdfast.core.reasons import Reason
from holdfast.endpoints import probe
from holdfast.network import SystemNet
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio
LOOPBACK = ("127.0.0.0/8", "::1/128")
SHORT = 0.5  # seconds that hostile servers get


@pytest.fixture
def folder() -> Iterator[Path]:
    with served.open_folder() as made:
        yield made


@pytest.fixture
def issuing(folder: Path) -> Issuing:
    return Issuing(folder)


async def look(
    port: int,
    protocol: str = "tls",
    *,
    host: str = NAME,
    addresses: Sequence[str] = (HOST,),
    each: float = PATIENCE,
    networks: Sequence[str] = LOOPBACK,
    resolvers: Sequence[str] = (),
    **more: object,
) -> tuple[Sighting, ...]:
    place = Endpoint(host=host, port=port, protocol=EndpointProtocol(protocol), addresses=tuple(addresses))
    eye = probe.make(SystemNet(), SystemRandom(), resolvers=resolvers, networks=networks, each=each)
    return await eye.look(replace(place, **more))  # type: ignore[arg-type]


def expecting(pair: Pair, key: str | None = None) -> Expected:
    return Expected(label="version 7", leaf=pair.leaf, chain=pair.chain[1:], key=key)  # type: ignore[arg-type]


def judged(sightings: Sequence[Sighting], *expected: Expected, previous: Sequence[str] = ()) -> Verdict:
    return judge(expected, previous, sightings, now=datetime.now(UTC), name=NAME)


# ── Each protocol, with the server that most people run ──


@pytest.mark.parametrize("protocol", served.STARTTLS)
async def test_the_whole_chain_is_seen_after_starttls(folder: Path, issuing: Issuing, protocol: str) -> None:
    pair = issuing.pair(kind="rsa")
    with served.STARTTLS[protocol](folder, pair) as port:
        sightings = await look(port, protocol, samples=2)
        theirs = await asyncio.to_thread(served.shown_to_openssl, port, protocol)
    assert [each.chain for each in sightings] == [pair.chain, pair.chain] == [theirs, theirs]
    verdict = judged(sightings, expecting(pair))
    assert verdict.served
    assert verdict.sentence == f"2 of 2 samples at {HOST} show version 7."
    assert sightings[0].names == (NAME,)
    assert sightings[0].issuer == "CN=Test Intermediate"


@pytest.mark.parametrize("protocol", [each for each in EndpointProtocol if each != "tls"])
async def test_a_server_without_starttls_is_told_from_one_that_is_away(
    folder: Path, issuing: Issuing, protocol: EndpointProtocol
) -> None:
    """A web server speaks first in none of these protocols, and understands none."""

    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        await writer.drain()

    async with TcpServer(web) as server:
        [seen] = await look(server.port, protocol.value, each=10)
    assert seen.problem in (SightingProblem.PROTOCOL, SightingProblem.REFUSED)
    [away] = await look(free_port(), protocol.value)
    assert away.problem is SightingProblem.REFUSED


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        ("smtp", [b"220 mx\r\n", b"250-mx\r\n250 SIZE\r\n"]),
        ("smtp", [b"220-mx\r\n220 mx\r\n", b"250 STARTTLS\r\n", b"454 not now\r\n"]),
        ("smtp", [b"554 go away\r\n"]),
        ("imap", [b"* PREAUTH welcome back\r\n"]),
        ("imap", [b"* OK hello\r\n", b"a1 BAD what\r\n"]),
        ("pop3", [b"-ERR busy\r\n"]),
        ("pop3", [b"+OK\r\n", b"-ERR no\r\n"]),
        ("ftp", [b"220-long\r\n  house rules\r\n220 end\r\n", b"530 no\r\n"]),
        ("ldap", [b"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\x02\x04\x00\x04\x00"]),
        ("postgres", [b"N"]),
        ("postgres", [b"E"]),
        ("mysql", [b"\x07\x00\x00\x00\xff\x6a\x04Host!"]),
        ("mysql", [b"\x20\x00\x00\x00\x0a5.5\x00" + bytes(27)]),
        ("xmpp", [b"<stream:stream><stream:features/>"]),
        ("xmpp", [b"<stream:stream><stream:features><a/></stream:features>"]),
    ],
)
async def test_a_server_that_declines_is_no_upgrade(protocol: str, said: list[bytes]) -> None:
    async def declines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in said:
            if answer is not said[0] or protocol in ("ldap", "postgres", "xmpp"):
                await reader.read(4096)
            writer.write(answer)
        await reader.read(4096)

    async with TcpServer(declines) as server:
        [seen] = await look(server.port, protocol)
    assert seen.problem is SightingProblem.PROTOCOL, seen.why
    assert judged([seen]).reason is Reason.ENDPOINT_TLS_FAILED


async def test_what_a_server_smuggles_in_before_the_handshake_is_no_part_of_it(issuing: Issuing) -> None:
    """CVE-2011-0411: what comes after the go-ahead in the clear must not be taken for an answer over TLS."""
    pair = issuing.pair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.fullchain, pair.key)

    async def smuggles(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"+OK\r\n")
        await reader.readline()
        writer.write(b"+OK begin\r\n-ERR injected\r\n")
        await writer.drain()
        await writer.start_tls(context)

    async with TcpServer(smuggles) as server:
        [seen] = await look(server.port, "pop3")
    assert seen.leaf == pair.leaf


# ── Every verdict, beside openssl's ──


async def test_served_and_drift_and_an_earlier_version(folder: Path, issuing: Issuing) -> None:
    pair, other = issuing.pair(), issuing.pair()
    with served.nginx(folder, pair) as port:
        sightings = await look(port, samples=3)
        assert await asyncio.to_thread(served.openssl_trusts, port, issuing.roots)
    assert judged(sightings, expecting(pair)).served
    assert judged(sightings).served, "and without an expectation"
    assert judged(sightings, expecting(other)).reason is Reason.ENDPOINT_DRIFT
    assert judged(sightings, expecting(other), previous=[pair.leaf]).reason is Reason.ENDPOINT_OLD


@pytest.mark.parametrize("expected", [True, False])
async def test_a_missing_intermediate(folder: Path, issuing: Issuing, expected: bool) -> None:
    pair = issuing.pair()
    with served.nginx(folder, replace(pair, fullchain=pair.certificate)) as port:
        verdict = judged(await look(port), *([expecting(pair)] if expected else []))
        assert not await asyncio.to_thread(served.openssl_trusts, port, issuing.roots)
    assert verdict.reason is Reason.ENDPOINT_MISSING_INTERMEDIATE
    assert "CN=Test Intermediate, is missing" in verdict.sentence


async def test_a_certificate_for_other_names(folder: Path, issuing: Issuing) -> None:
    pair = issuing.pair("other.example.org")
    with served.nginx(folder, pair) as port:
        verdict = judged(await look(port))
        assert not await asyncio.to_thread(served.openssl_trusts, port, issuing.roots)
    assert verdict.reason is Reason.ENDPOINT_WRONG_NAME


@pytest.mark.parametrize(("days", "trusted"), [(-1, False), (5, True)])
async def test_a_certificate_at_its_end(folder: Path, issuing: Issuing, days: int, trusted: bool) -> None:
    pair = issuing.pair(days=days)
    with served.nginx(folder, pair) as port:
        sightings = await look(port)
        assert await asyncio.to_thread(served.openssl_trusts, port, issuing.roots) is trusted
    assert judged(sightings).reason is Reason.ENDPOINT_EXPIRING
    new = issuing.pair()
    late = judged(sightings, expecting(new), previous=[pair.leaf])
    assert late.reason is Reason.ENDPOINT_EXPIRING, "though it was renewed"


async def test_one_address_of_two_that_lags(folder: Path, issuing: Issuing) -> None:
    old, new = issuing.pair(), issuing.pair()
    (folder / "b").mkdir(mode=0o755)
    with served.nginx(folder, old) as port, served.nginx(folder / "b", new, listen=("127.0.0.2",), port=port):
        sightings = await look(port, addresses=(HOST, "127.0.0.2"), samples=2)
        theirs = [await asyncio.to_thread(served.shown_to_openssl, port, "tls", host=at) for at in (HOST, "127.0.0.2")]
    assert theirs == [old.chain, new.chain]
    verdict = judged(sightings, expecting(new), previous=[old.leaf])
    assert verdict.reason is Reason.ENDPOINT_LAGS
    assert verdict.sentence == f"2 of 4 samples at {HOST} show an earlier version, and 2 version 7."


async def test_twins_are_seen_by_asking_for_each_kind_of_key(folder: Path, issuing: Issuing) -> None:
    rsa, ecdsa = issuing.pair(kind="rsa"), issuing.pair(kind="ecdsa")
    with served.nginx(folder, rsa, ecdsa) as port:
        sightings = await look(port, keys=("rsa", "ecdsa"))
        ciphers = {"rsa": "ECDHE-RSA-AES128-GCM-SHA256", "ecdsa": "ECDHE-ECDSA-AES128-GCM-SHA256"}
        theirs = [
            await asyncio.to_thread(served.shown_to_openssl, port, "tls", "-tls1_2", "-cipher", each)
            for each in ciphers.values()
        ]
    assert [each.chain for each in sightings] == theirs == [rsa.chain, ecdsa.chain]
    assert judged(sightings, expecting(rsa, "rsa"), expecting(ecdsa, "ecdsa")).served
    forgotten = judged(sightings, expecting(rsa, "rsa"), expecting(issuing.pair(), "ecdsa"), previous=[ecdsa.leaf])
    assert forgotten.reason is Reason.ENDPOINT_LAGS, "only one of the twins was deployed"


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_a_server_that_demands_a_client_certificate_is_seen_all_the_same(
    folder: Path, issuing: Issuing, version: str
) -> None:
    pair, context = issuing.pair(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.fullchain, pair.key)
    context.load_verify_locations(issuing.roots)
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = context.maximum_version = getattr(ssl.TLSVersion, version.replace(".", "_"))
    async with TcpServer(_silent, tls=context) as server:
        sightings = await look(server.port)
        theirs = await asyncio.to_thread(served.shown_to_openssl, server.port, "tls")
    assert sightings[0].chain == pair.chain == theirs
    assert judged(sightings, expecting(pair)).served


async def test_a_server_of_the_last_century_is_seen_as_well(issuing: Issuing) -> None:
    pair, context = issuing.pair(kind="rsa"), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.fullchain, pair.key)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore"):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1
    async with TcpServer(_silent, tls=context) as server:
        [seen] = await look(server.port)
    assert (seen.chain, seen.tls) == (pair.chain, "TLSv1")


async def test_an_address_is_asked_for_without_a_server_name(issuing: Issuing) -> None:
    asked: list[str | None] = []
    pair, context = issuing.pair(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.fullchain, pair.key)
    context.sni_callback = lambda _line, name, _context: asked.append(name)
    async with TcpServer(_silent, tls=context) as server:
        [by_address] = await look(server.port, host=HOST, addresses=())
        [by_name] = await look(server.port, host=HOST, addresses=(), server_name=NAME)
    assert by_address.leaf == by_name.leaf == pair.leaf
    assert asked == [None, NAME]


async def test_a_key_that_does_not_fit_its_certificate_is_a_tls_problem(issuing: Issuing) -> None:
    """A handshake proves the key: what is shown without that proof is not seen."""
    right = issuing.pair()
    wrong = next(each for each in iter(issuing.pair, None) if len(_der(each)) == len(_der(right)))
    async with TcpServer(_mixed(right, wrong)) as server:
        [seen] = await look(server.port)
        trusted = await asyncio.to_thread(served.openssl_trusts, server.port, issuing.roots)
    assert (seen.problem, seen.leaf, trusted) == (SightingProblem.TLS, "", False)


def _der(pair: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())


def _mixed(certificate: Pair, key: Pair) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]:
    """A server that shows one certificate and signs with another's key: what it sends is changed on the way.

    Both leaves have the same length, so that the handshake stays well-formed up to the signature.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(key.certificate, key.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_peer, to_peer = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(from_peer, to_peer, server_side=True)
        while True:
            try:
                tls.do_handshake()
                return
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return
            out = to_peer.read()
            writer.write(out.replace(_der(key), _der(certificate)))
            piece = await reader.read(65536)
            if not piece:
                return
            from_peer.write(piece)

    return talk


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


async def _hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


# ── Addresses ──


async def test_every_address_of_a_name_is_dialled(folder: Path, issuing: Issuing) -> None:
    pair = issuing.pair()
    async with DnsServer() as names:
        names.add(NAME, "A", HOST)
        names.add(NAME, "A", "127.0.0.3")
        names.add(NAME, "AAAA", "::1")
        with served.nginx(folder, pair, listen=(HOST, "[::1]")) as port:
            sightings = await look(port, addresses=(), resolvers=(names.address,))
    assert {each.address: each.problem for each in sightings} == {
        "::1": None,
        HOST: None,
        "127.0.0.3": SightingProblem.REFUSED,
    }
    assert judged(sightings, expecting(pair)).reason is Reason.ENDPOINT_PARTLY_UNREACHABLE


async def test_a_name_without_an_address_is_unreachable() -> None:
    async with DnsServer() as names:
        [seen] = await look(443, addresses=(), resolvers=(names.address,))
    assert (seen.problem, seen.address) == (SightingProblem.UNREACHABLE, "")


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1", "0.0.0.0", "::ffff:127.0.0.1"])
async def test_metadata_and_link_local_addresses_are_never_dialled(address: str) -> None:
    everything = ("0.0.0.0/0", "::/0", "169.254.0.0/16", *LOOPBACK)
    [seen] = await look(80, addresses=(address,), networks=everything)
    assert seen.problem is SightingProblem.DENIED
    assert seen.why.endswith("whatever endpoints.networks lists")


async def test_a_private_address_needs_the_setting_that_its_error_names() -> None:
    port = free_port()
    [denied] = await look(port, networks=())
    [refused] = await look(port, networks=("127.0.0.1/32",))
    assert (denied.problem, refused.problem) == (SightingProblem.DENIED, SightingProblem.REFUSED)
    assert denied.why == (
        "we do not connect to 127.0.0.1, a loopback address (RFC 1122), unless endpoints.networks lists its network"
    )


# ── Servers that mean harm ──


async def _drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"2")
        await writer.drain()
        await asyncio.sleep(0.02)


async def _flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"220-" + b"x" * 1000 + b"\r\n")
        await writer.drain()


async def _one_endless_line(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"* OK " + b"x" * 65536)
        await writer.drain()


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@pytest.mark.parametrize("protocol", list(EndpointProtocol))
@pytest.mark.parametrize("talk", [_drip, _flood, _one_endless_line, _reset, _silent, _hangs])
async def test_no_server_holds_us_or_floods_us(talk: Callable[..., object], protocol: EndpointProtocol) -> None:
    async with TcpServer(talk) as server:  # type: ignore[arg-type]
        async with asyncio.timeout(PATIENCE):
            sightings = await look(server.port, protocol.value, each=SHORT, samples=3)
    assert [each.problem for each in sightings].count(None) == 0
    assert not judged(sightings).served


@pytest.mark.parametrize(("talk", "protocol"), [(_flood, "smtp"), (_one_endless_line, "imap"), (_flood, "ftp")])
async def test_a_flood_ends_at_a_bound_and_not_at_the_deadline(talk: Callable[..., object], protocol: str) -> None:
    async with TcpServer(talk) as server:  # type: ignore[arg-type]
        [seen] = await look(server.port, protocol)
    assert seen.problem is SightingProblem.PROTOCOL
    assert "more than any server" in seen.why


async def test_a_huge_chain_is_refused_and_not_read(folder: Path, issuing: Issuing) -> None:
    pair = issuing.pair()
    pair.fullchain.write_bytes(pair.certificate.read_bytes() + pair.fullchain.read_bytes() * 300)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.fullchain, pair.key)
    async with TcpServer(_silent, tls=context) as server:
        [seen] = await look(server.port)
    assert seen.problem is SightingProblem.TLS
    assert "MESSAGE_SIZE" in seen.why.upper() or "LENGTH" in seen.why.upper(), seen.why


async def test_a_long_chain_is_read_up_to_a_bound(folder: Path, issuing: Issuing) -> None:
    pair = issuing.pair()
    pair.fullchain.write_bytes(pair.fullchain.read_bytes() + issuing.root.public_bytes(served.Encoding.PEM) * 60)
    with served.nginx(folder, pair) as port:
        [seen] = await look(port)
    assert (seen.leaf, len(seen.chain)) == (pair.leaf, probe.MOST_SHOWN)


async def test_a_look_ends_in_time_though_every_sample_hangs() -> None:
    loop = asyncio.get_running_loop()
    async with TcpServer(_hangs) as server:
        began = loop.time()
        sightings = await look(server.port, each=SHORT, samples=50)
    assert len(sightings) == 50
    assert {each.problem for each in sightings} == {SightingProblem.UNREACHABLE}
    assert loop.time() - began < 10 * SHORT


async def test_no_connection_stays_open_after_a_look() -> None:
    ended = asyncio.Queue[None]()

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.put_nowait(None)

    async with TcpServer(counted) as server:
        await look(server.port, each=SHORT, samples=4)
        async with asyncio.timeout(PATIENCE):
            for _ in range(4):
                await ended.get()
