"""HTTP to remotes, against small real servers that drip, hang, lie and send too much."""

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.http_server import HOST, Talk, TcpServer
from tests.support.reaper import PATIENCE
from tests.support.secrets_planted import ADDRESS_PASSWORD, ADDRESS_TOKEN, MARK, NETRC_PASSWORD

from holdfast.errors import TryLater
from holdfast.ports import Request, Response
from holdfast.world import HttpTransport

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\n"


class Remote(TcpServer):
    """Reads the head of each request, then lets `answer` do as it likes with the line."""

    def __init__(self, answer: Talk) -> None:
        super().__init__(self._answer_all)
        self.asked: list[str] = []
        self._answer = answer

    def url(self, path: str = "/") -> str:
        return f"http://{HOST}:{self.port}{path}"

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            self.asked.append(head.decode("latin-1"))
            await self._answer(reader, writer)
            await writer.drain()


def saying(text: bytes) -> Talk:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(text)

    return answer


def body(content: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return OK + lines + b"Content-Length: %d\r\n\r\n" % len(content) + content


@pytest.fixture
async def transport() -> AsyncIterator[HttpTransport]:
    transport = HttpTransport()
    yield transport
    await transport.close()


async def get(transport: HttpTransport, url: str, **wishes: object) -> Response:
    return await transport.request(Request(method="GET", url=url, **wishes))  # type: ignore[arg-type]


async def refused(transport: HttpTransport, url: str, **wishes: object) -> TryLater:
    with pytest.raises(TryLater) as caught:
        await get(transport, url, **wishes)
    return caught.value


# ── answers ──


@pytest.mark.parametrize("status", [200, 204, 400, 404, 429, 500, 503])
async def test_any_status_is_an_answer(transport: HttpTransport, status: int) -> None:
    async with Remote(saying(b"HTTP/1.1 %d x\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n" % status)) as remote:
        answer = await get(transport, remote.url())
    assert (answer.status, answer.headers["retry-after"], answer.body) == (status, "7", b"")


async def test_a_request_arrives_as_it_was_given(transport: HttpTransport) -> None:
    got: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readexactly(5))
        writer.write(body(b"thanks"))

    async with Remote(answer) as remote:
        request = Request(method="POST", url=remote.url("/orders?x=1"), headers={"X-Key": "k1"}, body=b"hello")
        response = await transport.request(request)
    assert response.body == b"thanks"
    assert got == [b"hello"]
    assert remote.asked[0].startswith("POST /orders?x=1 HTTP/1.1\r\n")
    assert "x-key: k1\r\n" in remote.asked[0].lower()


async def test_a_packed_answer_is_unpacked(transport: HttpTransport) -> None:
    packed = gzip.compress(b"plain text " * 1000)
    async with Remote(saying(body(packed, b"Content-Encoding: gzip"))) as remote:
        assert (await get(transport, remote.url())).body == b"plain text " * 1000


async def test_a_redirect_is_an_answer_and_not_an_order(transport: HttpTransport) -> None:
    async with Remote(saying(body(b"internal"))) as inside:
        moved = b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % inside.url("/secret").encode()
        async with Remote(saying(moved)) as outside:
            answer = await get(transport, outside.url())
    assert (answer.status, answer.headers["location"]) == (302, inside.url("/secret"))
    assert inside.asked == []


# ── the environment has no say ──


async def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Remote(saying(body(b"from the proxy"))) as proxy, Remote(saying(body(b"direct"))) as remote:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url())
        transport = HttpTransport()
        assert (await get(transport, remote.url())).body == b"direct"
        await transport.close()
    assert proxy.asked == []


async def test_passwords_of_the_environment_are_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login me password {NETRC_PASSWORD}")
    monkeypatch.setenv("NETRC", str(netrc))
    async with Remote(saying(body(b""))) as remote:
        transport = HttpTransport()
        await get(transport, remote.url())
        await transport.close()
    assert "authorization" not in remote.asked[0].lower()


async def test_cookies_of_one_request_are_not_sent_with_the_next(transport: HttpTransport) -> None:
    """Two accounts at one CA share this client: what the CA told the one is none of the other's business."""
    async with Remote(saying(body(b"", b"Set-Cookie: session=first; Path=/"))) as remote:
        await get(transport, remote.url())
        await get(transport, remote.url())
    assert ["cookie" in asked.lower() for asked in remote.asked] == [False, False]


# ── no answer, or not in time ──


async def test_a_remote_that_never_answers_is_given_up_at_the_deadline(transport: HttpTransport) -> None:
    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the other side hangs up

    async with Remote(silence) as remote:
        why = await refused(transport, remote.url(), deadline_for=0.2)
    assert why.reason == "TIMEOUT"
    assert "did not answer in 0.2 s" in str(why)


@pytest.mark.parametrize("where", ["in the head", "in the body"])
async def test_a_remote_that_drips_is_given_up_at_the_deadline_of_the_whole_exchange(
    transport: HttpTransport, where: str
) -> None:
    """Each byte comes in time: a timeout of single reads would wait for ever."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK if where == "in the head" else OK + b"Content-Length: 1000000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with Remote(drip) as remote:
        why = await refused(transport, remote.url(), deadline_for=0.3)
        await asyncio.wait_for(remote.left.wait(), PATIENCE)  # the line was cut, not left to drip
    assert why.reason == "TIMEOUT"


async def test_nobody_there_is_a_reason_to_try_later(transport: HttpTransport) -> None:
    async with Remote(saying(b"")) as remote:
        pass
    why = await refused(transport, remote.url())
    assert why.reason == "REMOTE_UNAVAILABLE"
    assert "ConnectError" in str(why)
    assert not why.sent


async def test_who_never_gets_to_the_end_of_a_handshake_has_sent_nothing(transport: HttpTransport) -> None:
    async with Remote(saying(b"")) as remote:  # it waits for a request, and gets the beginning of a handshake
        why = await refused(transport, f"https://127.0.0.1:{remote.port}/", deadline_for=1)
    assert (why.reason, why.sent) == ("TIMEOUT", False)


async def test_who_was_connected_may_have_been_heard(transport: HttpTransport) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with Remote(hang_up) as remote:
        assert (await refused(transport, remote.url())).sent
    async with Remote(saying(body(b"x" * 100))) as remote:
        assert (await refused(transport, remote.url(), max_body=10)).sent


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        OK + b"Content-Length: 10\r\n\r\nshort",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"Content-Length: -5\r\n\r\n",
        body(b"not packed at all", b"Content-Encoding: gzip"),
    ],
    ids=["nothing", "ssh", "no-status", "cut-off", "bad-chunk", "bad-length", "bad-gzip"],
)
async def test_an_answer_that_is_none_is_a_reason_to_try_later(transport: HttpTransport, text: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(text)
        await writer.drain()
        writer.close()

    async with Remote(answer) as remote:
        await refused(transport, remote.url(), deadline_for=PATIENCE)


@pytest.mark.parametrize("url", ["http://[::1", "http://", "ftp://127.0.0.1/", "http://127.0.0.1:99999/", "no scheme"])
async def test_an_address_that_is_none_is_a_reason_to_try_later(transport: HttpTransport, url: str) -> None:
    await refused(transport, url, deadline_for=PATIENCE)


async def test_what_is_secret_in_an_address_is_not_in_the_error(transport: HttpTransport) -> None:
    async with Remote(saying(b"")) as remote:
        pass
    secret = f"http://user:{ADDRESS_PASSWORD}@127.0.0.1:{remote.port}/hooks/{ADDRESS_TOKEN}?token={ADDRESS_TOKEN}"
    for url in (secret, secret.replace("127.0.0.1", "[::1")):
        assert MARK not in str(await refused(transport, url))


# ── too much ──


@pytest.mark.parametrize("framing", ["declared", "endless"])
async def test_an_answer_longer_than_wanted_is_refused_and_not_read_to_its_end(
    transport: HttpTransport, framing: str
) -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(OK + (b"Content-Length: 2000000000\r\n\r\n" if framing == "declared" else b"\r\n"))
        while True:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()

    async with Remote(flood) as remote:
        why = await refused(transport, remote.url(), max_body=100_000)
        await asyncio.wait_for(remote.left.wait(), PATIENCE)
    assert why.reason == "BAD_ANSWER"
    assert "more than 100000 bytes" in str(why)
    assert sent < 50_000_000


async def test_a_body_of_exactly_the_limit_is_welcome(transport: HttpTransport) -> None:
    async with Remote(saying(body(b"x" * 1000))) as remote:
        assert len((await get(transport, remote.url(), max_body=1000)).body) == 1000
        await refused(transport, remote.url(), max_body=999)


def _bomb(megabytes: int) -> bytes:
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(pack.compress(bytes(1024 * 1024)) for _ in range(megabytes)) + pack.flush()


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"gzip, gzip"])
async def test_a_bomb_is_refused_by_its_unpacked_size_before_it_fills_the_memory(
    transport: HttpTransport, encoding: bytes
) -> None:
    bomb = _bomb(100)
    if encoding == b"deflate":
        bomb = zlib.compress(zlib.decompress(bomb, 31), 9)
    if encoding == b"gzip, gzip":
        bomb = gzip.compress(bomb, 9)
    async with Remote(saying(body(bomb, b"Content-Encoding: " + encoding))) as remote:
        tracemalloc.start()
        why = await refused(transport, remote.url(), max_body=1_000_000)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert why.reason == "BAD_ANSWER"
    assert most < 8_000_000


async def test_endless_headers_are_refused(transport: HttpTransport) -> None:
    async def chatter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        while True:
            writer.write(b"X-More: " + b"x" * 8000 + b"\r\n")
            await writer.drain()

    async with Remote(chatter) as remote:
        why = await refused(transport, remote.url(), deadline_for=PATIENCE)
        await asyncio.wait_for(remote.left.wait(), PATIENCE)
    assert why.reason != "TIMEOUT"  # it is refused by its size
