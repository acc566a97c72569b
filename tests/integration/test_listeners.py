"""Listeners on real sockets, on both loops: what a client without credentials may take of them, and for how long."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Final, Literal, NamedTuple

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from starlette.types import Receive, Scope, Send
from tests.support.engine import PATIENCE, eventually
from tests.support.pki import a_key, root

from holdfast.listening.admission import Admission, Tally
from holdfast.listening.bounds import Bounds, RefusalReason
from holdfast.secret import Secret
from holdfast.web.bounded import LARGEST_BODY, MOST_PIPELINED
from holdfast.web.serve import ListenerTls, bind, bind_local, serving

pytestmark = pytest.mark.anyio
Kind = Literal["tcp", "tls", "unix"]
KINDS: Final = pytest.mark.parametrize("kind", ["tcp", "tls", "unix"])
GET: Final = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LIVE: Final = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
LONG: Final = 2 * PATIENCE  # a bound that is not met
SOON: Final = 0.2  # one that is


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


class Recorded(Tally):
    def __init__(self) -> None:
        self.reasons: list[RefusalReason] = []
        self.most = self.now = 0

    def refused(self, reason: RefusalReason) -> None:
        self.reasons.append(reason)

    def held(self, connections: int) -> None:
        self.now = connections
        self.most = max(self.most, connections)


class Line(NamedTuple):
    """A client's end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def said(self) -> bytes:
        """All that the server says, until it ends the connection."""
        said = b""
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    piece = await self.reader.read(65536)
                except ConnectionError:
                    return said
                if not piece:
                    return said
                said += piece

    async def asked(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of one answer, on a connection that may go on."""
        self.writer.write(request)
        async with asyncio.timeout(PATIENCE):
            head = await self.reader.readuntil(b"\r\n\r\n")
            [length] = [row for row in head.lower().split(b"\r\n") if row.startswith(b"content-length:")]
            return int(head.split()[1]), await self.reader.readexactly(int(length.partition(b":")[2]))

    async def sends_until_told(self, piece: bytes, *, every: float = 0.0) -> tuple[int, int]:
        """Send the same again and again; the status that ends it, and how many bytes went out."""
        sent, answer = 0, asyncio.ensure_future(self.said())
        async with asyncio.timeout(PATIENCE):
            while not answer.done():
                try:
                    self.writer.write(piece)
                    await self.writer.drain()
                    sent += len(piece)
                except ConnectionError:
                    break
                await asyncio.wait({answer}, timeout=every)
        return _status(await answer), sent


def _status(answer: bytes) -> int:
    return int(answer.split()[1]) if answer else 0


class Site:
    """A listener, and an application whose answers may be held back."""

    def __init__(self, connect: Callable[[str], Awaitable[Line]]) -> None:
        self._connect = connect
        self.tally = Recorded()
        self.release = asyncio.Event()
        self.at_work = self.gone = 0
        self.lines: list[Line] = []

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/early":
            await _send(send, b"early")
            return
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone += 1
                return
            more = message["more_body"]
        if scope["path"] == "/held":
            self.at_work += 1
            await self.release.wait()
        if scope["path"] == "/endless":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
                if (await asyncio.wait({waiting := asyncio.ensure_future(receive())}, timeout=0))[0]:
                    self.gone += 1
                    return
                waiting.cancel()
        await _send(send, b"hello")

    async def line(self, host: str = "127.0.0.1") -> Line:
        self.lines.append(await self._connect(host))
        return self.lines[-1]

    async def held(self, count: int, host: str = "127.0.0.1") -> list[Line]:
        """So many connections whose requests are at work."""
        before = self.at_work
        lines = [await self.line(host) for _ in range(count)]
        for line in lines:
            line.writer.write(GET.replace(b"/ ", b"/held ", 1))
        await eventually(lambda: self.at_work == before + count)
        return lines


async def _send(send: Send, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _tls() -> ListenerTls:
    tls, key = ListenerTls(), a_key(number=101)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    tls.load(root(number=101).public_bytes(Encoding.PEM), Secret(pem))
    return tls


@asynccontextmanager
async def serves(kind: Kind, bounds: Bounds, tmp_path: Path) -> AsyncIterator[Site]:
    tls, context = None, None
    if kind == "tls":
        tls, context = _tls(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    path = tmp_path / "socket"
    line = bind_local(path) if kind == "unix" else bind("127.0.0.1", 0)
    port = 0 if kind == "unix" else line.getsockname()[1]

    async def connect(host: str) -> Line:
        if kind == "unix":
            return Line(*await asyncio.open_unix_connection(path))
        return Line(*await asyncio.open_connection("127.0.0.1", port, ssl=context, local_addr=(host, 0)))

    site = Site(connect)
    async with serving(site.app, line, tls, bounds=bounds, tally=site.tally):
        try:
            yield site
        finally:
            site.release.set()
            for each in site.lines:
                each.writer.transport.abort()
            await eventually(lambda: site.tally.now == 0)  # no seat is lost, however a connection ended


# ── The head ──


@KINDS
async def test_an_endless_header_is_refused_at_the_bound(kind: Kind, tmp_path: Path) -> None:
    async with serves(kind, Bounds(head_for=LONG, head_size=8192), tmp_path) as site:
        line = await site.line()
        line.writer.write(b"GET / HTTP/1.1\r\nX: ")
        status, sent = await line.sends_until_told(b"a" * 1024)
        assert (status, site.tally.reasons) == (431, [RefusalReason.HEAD_SIZE])
        assert sent < 16 << 20  # what the kernel buffers, and what is thrown away until the client has heard
        assert await (await site.line()).asked(GET) == (200, b"hello")


@KINDS
async def test_too_many_header_fields_are_refused(kind: Kind, tmp_path: Path) -> None:
    async with serves(kind, Bounds(head_for=LONG), tmp_path) as site:
        line = await site.line()
        line.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + 99 * b"A: b\r\n" + b"\r\n")
        assert _status(await line.reader.readuntil(b"hello")) == 200
        line.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + 101 * b"A: b\r\n")
        answer = await line.said()
        assert (_status(answer), site.tally.reasons) == (431, [RefusalReason.HEAD_FIELDS])
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["detail"].endswith("listeners.head_fields allows.")


async def test_fields_that_are_few_and_together_too_large_are_refused(tmp_path: Path) -> None:
    async with serves("tcp", Bounds(head_for=LONG, head_size=8192), tmp_path) as site:
        line = await site.line()
        line.writer.write(b"GET / HTTP/1.1\r\n" + 5 * (b"A: " + 2000 * b"b" + b"\r\n") + b"\r\n")
        assert (_status(await line.said()), site.tally.reasons) == (431, [RefusalReason.HEAD_SIZE])


@pytest.mark.parametrize("piece", [b"a" * 1024, b"\r\nX: b"], ids=["one endless trailer", "endless trailers"])
async def test_trailers_are_bounded_like_a_head(piece: bytes, tmp_path: Path) -> None:
    async with serves("tcp", Bounds(head_for=LONG, body_for=LONG, head_size=8192), tmp_path) as site:
        line = await site.line()
        line.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: ")
        status, _ = await line.sends_until_told(piece)
        assert (status, site.gone) == (431, 1)
        assert site.tally.reasons[0] in (RefusalReason.HEAD_SIZE, RefusalReason.HEAD_FIELDS)


async def test_empty_lines_before_a_request_are_bounded_like_a_head(tmp_path: Path) -> None:
    async with serves("tcp", Bounds(head_for=LONG, head_size=8192), tmp_path) as site:
        line = await site.line()
        await line.sends_until_told(b"\r\n" * 512)
        assert site.tally.reasons == [RefusalReason.HEAD_SIZE]


@KINDS
async def test_a_head_that_drips_is_refused_when_its_time_is_over(kind: Kind, tmp_path: Path) -> None:
    async with serves(kind, Bounds(head_for=SOON, idle_for=LONG), tmp_path) as site:
        line = await site.line()
        line.writer.write(b"GET / HTTP/1.1\r\nX: ")
        status, _ = await line.sends_until_told(b"a", every=0.01)
        assert (status, site.tally.reasons) == (408, [RefusalReason.HEAD_TIMEOUT])


async def test_the_head_of_a_second_request_has_as_much_time_as_the_first(tmp_path: Path) -> None:
    async with serves("tcp", Bounds(head_for=SOON, idle_for=LONG), tmp_path) as site:
        line = await site.line()
        assert await line.asked(GET) == (200, b"hello")
        status, _ = await line.sends_until_told(b"G", every=LONG)
        assert (status, site.tally.reasons) == (408, [RefusalReason.HEAD_TIMEOUT])


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_a_connection_that_says_nothing_is_closed(kind: Kind, tmp_path: Path) -> None:
    async with serves(kind, Bounds(head_for=SOON), tmp_path) as site:
        assert await (await site.line()).said() == b""
        assert site.tally.reasons == [RefusalReason.HEAD_TIMEOUT]


async def test_a_handshake_that_is_not_begun_is_given_up(tmp_path: Path) -> None:
    async with serves("tls", Bounds(head_for=SOON), tmp_path) as site:
        port = (await site.line()).writer.get_extra_info("peername")[1]
        silent = Line(*await asyncio.open_connection("127.0.0.1", port))
        assert await silent.said() == b""
        silent.writer.close()
        assert RefusalReason.HANDSHAKE in site.tally.reasons


async def test_a_long_answer_does_not_count_as_a_late_head(tmp_path: Path) -> None:
    async with serves("tcp", Bounds(head_for=SOON, idle_for=LONG), tmp_path) as site:
        [line] = await site.held(1)
        line.writer.write(GET[:10])  # of the next request
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3 * SOON):
                await line.reader.read(1)
        site.release.set()
        assert _status(await line.reader.readuntil(b"hello")) == 200


# ── The body ──


@KINDS
async def test_a_body_that_drips_is_refused_when_its_time_is_over(kind: Kind, tmp_path: Path) -> None:
    async with serves(kind, Bounds(body_for=SOON, idle_for=LONG), tmp_path) as site:
        line = await site.line()
        line.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        status, _ = await line.sends_until_told(b"a", every=0.01)
        assert (status, site.tally.reasons) == (408, [RefusalReason.BODY_TIMEOUT])
        await eventually(lambda: site.gone == 1)


async def test_a_body_that_comes_fast_enough_may_take_longer(tmp_path: Path) -> None:
    async with serves("tcp", Bounds(body_for=SOON), tmp_path) as site:
        line = await site.line()
        line.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000001\r\n\r\n" + bytes(1_000_000))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3 * SOON):
                await line.reader.read(1)
        assert await line.asked(b"a") == (200, b"hello")


async def test_a_body_that_goes_on_after_its_answer_is_cut_in_time(tmp_path: Path) -> None:
    async with serves("tcp", Bounds(body_for=SOON, idle_for=LONG), tmp_path) as site:
        line = await site.line()
        status, _ = await line.asked(b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        assert status == 200
        await line.sends_until_told(b"a", every=0.01)
        assert site.tally.reasons == [RefusalReason.BODY_TIMEOUT]


async def test_a_body_larger_than_any_that_is_read_is_refused(tmp_path: Path) -> None:
    async with serves("tcp", Bounds(), tmp_path) as site:
        line = await site.line()
        line.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (10 * LARGEST_BODY))
        status, sent = await line.sends_until_told(bytes(1 << 20))
        assert (status, site.tally.reasons) == (413, [RefusalReason.BODY_SIZE])
        assert sent < 4 * LARGEST_BODY


# ── Between requests, and after them ──


@KINDS
async def test_a_connection_without_another_request_is_closed(kind: Kind, tmp_path: Path) -> None:
    async with serves(kind, Bounds(idle_for=SOON), tmp_path) as site:
        line = await site.line()
        assert await line.asked(GET) == (200, b"hello")
        assert await line.said() == b""
        assert site.tally.reasons == []  # that is nobody's mistake


async def test_requests_piled_up_on_one_connection_are_refused(tmp_path: Path) -> None:
    async with serves("tcp", Bounds(), tmp_path) as site:
        [line] = await site.held(1)
        line.writer.write(GET * MOST_PIPELINED)
        assert site.tally.reasons == []
        line.writer.write(GET * 1000)
        assert await line.said() == b""
        assert site.tally.reasons == [RefusalReason.PIPELINED]


@pytest.mark.parametrize("kind", ["tcp", "tls"])
async def test_a_client_that_does_not_read_its_answer_is_left(kind: Kind, tmp_path: Path) -> None:
    async with serves(kind, Bounds(body_for=SOON), tmp_path) as site:
        line = await site.line()
        line.writer.transport.pause_reading()  # type: ignore[attr-defined]
        line.writer.write(GET.replace(b"/ ", b"/endless ", 1))
        await eventually(lambda: site.tally.reasons == [RefusalReason.NOT_READING])
        await eventually(lambda: site.gone == 1)


async def test_a_request_to_change_the_protocol_is_answered_like_any_other(tmp_path: Path) -> None:
    async with serves("tcp", Bounds(), tmp_path) as site:
        line = await site.line()
        asked = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
        assert await line.asked(asked) == (200, b"hello")


async def test_what_is_no_http_is_told_so(tmp_path: Path) -> None:
    async with serves("tcp", Bounds(), tmp_path) as site:
        line = await site.line()
        line.writer.write(b"\x16\x03\x01 hello\r\n\r\n")
        assert (_status(await line.said()), site.tally.reasons) == (400, [RefusalReason.BAD_REQUEST])


# ── How many ──


@KINDS
async def test_silent_connections_beyond_the_cap_make_room_for_who_asks(kind: Kind, tmp_path: Path) -> None:
    bounds = Bounds(connections=4, per_address=0, displaced_after=0.0, head_for=LONG)
    async with serves(kind, bounds, tmp_path) as site:
        silent = [await site.line() for _ in range(20)]
        assert await (await site.line()).asked(GET) == (200, b"hello")
        assert site.tally.most == 4
        assert set(site.tally.reasons) == {RefusalReason.DISPLACED}
        assert await silent[0].said() == b""


@KINDS
async def test_connections_at_work_are_not_displaced_and_the_newcomer_is_refused(kind: Kind, tmp_path: Path) -> None:
    async with serves(kind, Bounds(connections=3, displaced_after=0.0), tmp_path) as site:
        working = await site.held(3)
        try:
            answer = await (await site.line()).said()
        except ConnectionError:  # in the middle of its handshake
            answer = b""
        assert site.tally.reasons == [RefusalReason.LISTENER_FULL]
        if kind != "tls":
            assert _status(answer) == 503
            assert b"retry-after: 5\r\n" in answer
        site.release.set()
        for line in working:
            assert _status(await line.reader.readuntil(b"hello")) == 200
        await eventually(lambda: site.at_work == 3)


async def test_a_connection_that_was_just_made_is_not_displaced(tmp_path: Path) -> None:
    async with serves("tcp", Bounds(connections=2, displaced_after=LONG), tmp_path) as site:
        first, _ = [await site.line() for _ in range(2)]
        assert _status(await (await site.line()).said()) == 503
        assert await first.asked(GET) == (200, b"hello")


async def test_an_address_has_its_own_cap_and_others_are_served(tmp_path: Path) -> None:
    async with serves("tcp", Bounds(per_address=2), tmp_path) as site:
        await site.held(2)
        assert _status(await (await site.line()).said()) == 503
        assert site.tally.reasons == [RefusalReason.ADDRESS_FULL]
        assert await (await site.line("127.0.0.2")).asked(GET) == (200, b"hello")


async def test_an_address_beyond_its_cap_displaces_only_itself(tmp_path: Path) -> None:
    async with serves("tcp", Bounds(per_address=2, displaced_after=0.0, head_for=LONG), tmp_path) as site:
        other = await site.line("127.0.0.2")
        mine = [await site.line() for _ in range(5)]
        assert [await line.said() for line in mine[:3]] == [b"", b"", b""]
        assert await mine[4].asked(GET) == await other.asked(GET) == (200, b"hello")


async def test_in_a_full_listener_the_address_that_holds_most_makes_room_at_once(tmp_path: Path) -> None:
    async with serves("tcp", Bounds(connections=6, displaced_after=LONG, head_for=LONG), tmp_path) as site:
        crowd = [await site.line("127.0.0.2") for _ in range(4)]
        few = [await site.line(f"127.0.0.{number}") for number in (3, 4)]
        mine = await site.line()
        assert await crowd[0].said() == b""
        for line in (mine, *crowd[1:], *few):
            assert await line.asked(GET) == (200, b"hello")
        assert _status(await (await site.line("127.0.0.2")).said()) == 503  # it may not do the same to others
        assert site.tally.reasons == [RefusalReason.DISPLACED, RefusalReason.LISTENER_FULL]


async def test_probes_are_answered_while_all_connections_are_at_work(tmp_path: Path) -> None:
    async with serves("tcp", Bounds(connections=2, probes=2, head_for=LONG), tmp_path) as site:
        await site.held(2)
        probing = await site.line()
        assert await probing.asked(LIVE) == (200, b"hello")
        assert await probing.said() == b""  # one answer
        other = await site.line()
        other.writer.write(GET)
        answer = await other.said()
        assert (_status(answer), b"retry-after" in answer) == (503, True)


async def test_silent_connections_in_the_reserve_do_not_keep_probes_out(tmp_path: Path) -> None:
    async with serves("tcp", Bounds(connections=2, probes=2, displaced_after=LONG, head_for=LONG), tmp_path) as site:
        await site.held(2)
        for _ in range(50):
            await site.line()
        assert await (await site.line()).asked(LIVE) == (200, b"hello")
        assert site.tally.most <= 4


@pytest.mark.parametrize(
    ("hosts", "counted"),
    [
        (["2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"], [True, False, True]),
        (["::ffff:192.0.2.1", "192.0.2.1", "192.0.2.2"], [True, False, True]),
        (["10.0.0.1", "10.0.0.1", "10.0.0.1"], [True, True, True]),
        (["fe80::1%eth0", "fe80::2%eth0", ""], [True, False, True]),
    ],
    ids=["a network of IPv6", "IPv4 in IPv6", "a proxy", "a zone, and a file"],
)
async def test_what_counts_as_one_address(hosts: list[str], counted: list[bool]) -> None:
    admission = Admission(Bounds(per_address=1, uncounted=(ip_network("10.0.0.0/8"),)), Tally())
    assert [admission.enter(host, lambda: None) is not RefusalReason.ADDRESS_FULL for host in hosts] == counted
