"""The real network: each way to fail has its word, and no socket is left behind."""

import asyncio
import os
import resource
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator

import pytest
from cryptography import x509
from tests.support.challenge_server import NAME, WebServer, a_certificate, page, server_context, told
from tests.support.http_server import TcpServer
from tests.support.ports import free_port
from tests.support.reaper import PATIENCE

from holdfast.network import SystemNet
from holdfast.ports import NetProblem, Tls

pytestmark = pytest.mark.anyio

HOST = "127.0.0.1"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(autouse=True)
def no_socket_is_left_behind() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before


async def kind_of(doing: Awaitable[object]) -> str:
    with pytest.raises(NetProblem) as caught:
        await doing
    return caught.value.kind


async def test_a_stream_is_read_and_written_to_its_end() -> None:
    async with WebServer(told(b"one", b"two")) as web:
        stream = await SystemNet().connect(HOST, web.port, deadline_for=PATIENCE)
        await stream.write(b"GET / HTTP/1.1\r\n\r\n")
        found = b""
        while piece := await stream.read(2):
            assert len(piece) <= 2
            found += piece
        stream.close()
    assert (found, stream.certificate, stream.alpn) == (b"onetwo", None, None)


async def test_a_stream_over_tls_is_read_alike_and_shows_the_certificate() -> None:
    certificate, key = a_certificate([x509.DNSName(NAME)], None)
    seen: list[str] = []
    context = server_context(certificate, key, alpn=["b"], seen=seen)
    async with WebServer(told(page(b"x" * 100_000)), tls=context) as web:
        tls = Tls(server_name=NAME, alpn=("a", "b"))
        stream = await SystemNet().connect(HOST, web.port, tls=tls, deadline_for=PATIENCE)
        await stream.write(b"GET / HTTP/1.1\r\n\r\n")
        found = b""
        while piece := await stream.read(5000):
            found += piece
        stream.close()
    assert found.count(b"x") == 100_000
    assert stream.alpn == "b"
    assert x509.load_der_x509_certificate(stream.certificate or b"") == certificate
    assert seen == [NAME]


async def test_without_a_server_name_none_is_sent() -> None:
    seen: list[str] = []
    context = server_context(*a_certificate([x509.DNSName(NAME)], None), seen=seen)
    async with WebServer(told(), tls=context) as web:
        (await SystemNet().connect(HOST, web.port, tls=Tls(server_name=None), deadline_for=PATIENCE)).close()
    assert seen == [""]


async def test_nobody_listening_is_refused() -> None:
    assert await kind_of(SystemNet().connect(HOST, free_port(), deadline_for=PATIENCE)) == "refused"
    assert await kind_of(SystemNet().connect("::1", free_port("::1"), deadline_for=PATIENCE)) == "refused"


async def test_an_address_without_a_way_is_unreachable() -> None:
    assert (
        await kind_of(SystemNet().connect("fe80::1", 80, deadline_for=PATIENCE)) == "unreachable"
    )  # on which interface?


async def test_a_handshake_that_nobody_shakes_is_a_timeout() -> None:
    with socket.create_server((HOST, 0)) as silent:
        port = silent.getsockname()[1]
        assert await kind_of(SystemNet().connect(HOST, port, tls=Tls(server_name=NAME), deadline_for=0.05)) == "timeout"


async def test_a_line_that_is_cut_is_reset() -> None:
    async def cut(_: str, writer: asyncio.StreamWriter) -> None:
        line = writer.get_extra_info("socket")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async with WebServer(cut) as web:
        stream = await SystemNet().connect(HOST, web.port, deadline_for=PATIENCE)
        await stream.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await kind_of(stream.read(100)) == "reset"
        stream.close()


async def test_giving_up_closes_the_line() -> None:
    with socket.create_server((HOST, 0)) as silent:
        port = silent.getsockname()[1]
        connecting = asyncio.create_task(
            SystemNet().connect(HOST, port, tls=Tls(server_name=NAME), deadline_for=PATIENCE)
        )
        line, _ = await asyncio.to_thread(silent.accept)
        assert await asyncio.to_thread(line.recv, 1)  # it began to speak
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        line.settimeout(PATIENCE)
        while line.recv(1000):
            pass
        line.close()


async def test_a_question_that_nobody_answers_is_a_timeout() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind((HOST, 0))
        port = silent.getsockname()[1]
        asking = SystemNet().ask(HOST, port, b"?", tcp=False, deadline_for=0.05, fits=lambda packet: True)
        assert await kind_of(asking) == "timeout"


async def test_a_question_to_nobody_is_refused() -> None:
    for tcp in (False, True):
        asking = SystemNet().ask(HOST, free_port(), b"?", tcp=tcp, deadline_for=PATIENCE, fits=lambda packet: True)
        assert await kind_of(asking) == "refused"


@pytest.mark.parametrize("answer", [b"", b"\0", b"\0\x05abc", b"\0\x03abc"])
async def test_an_answer_by_tcp_that_is_cut_off_or_does_not_fit_is_reset(answer: bytes) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(answer)
        writer.close()

    async with TcpServer(reply) as server:
        asking = SystemNet().ask(
            HOST, server.port, b"?", tcp=True, deadline_for=PATIENCE, fits=lambda packet: packet != b"abc"
        )
        assert await kind_of(asking) == "reset"


async def test_a_process_without_sockets_left_says_so_in_the_same_words() -> None:
    next_handle = os.dup(0)
    os.close(next_handle)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_handle, hard))
    try:
        assert await kind_of(SystemNet().connect(HOST, 80, deadline_for=PATIENCE)) == "unreachable"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
