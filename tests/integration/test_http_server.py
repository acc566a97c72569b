"""The server that fake CAs, web hooks and web sites of tests are made of."""

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from tests.support.http_server import HOST, HttpAnswer, HttpRequest, HttpServer, Talk, TcpServer, tls_context
from tests.support.pebble import tls_certificate
from tests.support.reaper import PATIENCE

pytestmark = pytest.mark.anyio


class Echo(HttpServer):
    base_path = "/v1"

    async def respond(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(HttpAnswer(201, {"X-Method": request.method}, request.body).encoded())


async def test_requests_are_kept_as_they_came_and_answered_on_one_connection() -> None:
    async with Echo() as server, httpx2.AsyncClient(base_url=server.origin, timeout=PATIENCE) as client:
        for number in (1, 2):
            answer = await client.post(f"/v1/a%20b?x={number}&y=", json={"n": number}, headers={"X-Key": "k"})
            assert (answer.status_code, answer.json(), answer.headers["x-method"]) == (201, {"n": number}, "POST")
        assert server.connections == 1
        request = server.requests[1]
        assert (request.line, request.raw, request.target) == ("POST /a b", "/a%20b", "/v1/a%20b?x=2&y=")
        assert (request.query, request.headers["x-key"], request.json()) == ({"x": "2", "y": ""}, "k", {"n": 2})


async def test_a_server_over_tls_is_reached_by_who_trusts_its_certificate(tmp_path: Path) -> None:
    certificate, key = tls_certificate(tmp_path, HOST)
    trust = ssl.create_default_context(cafile=certificate)
    async with Echo(tls=tls_context(certificate, key)) as server, httpx2.AsyncClient(verify=trust) as client:
        assert (await client.get(f"{server.origin}/v1/")).status_code == 201
        assert server.requests[0].client is None


async def test_an_answer_without_content_has_no_body() -> None:
    assert HttpAnswer(204, body=b"ignored").encoded().endswith(b"\r\n\r\n")


async def _wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(1)


async def _never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("talk", [_wait, _never])
async def test_a_server_that_is_closed_ends_its_connections(
    talk: Talk,
) -> None:
    async with asyncio.timeout(PATIENCE):
        async with TcpServer(talk) as server:
            reader, writer = await asyncio.open_connection(HOST, server.port)
        with suppress(ConnectionResetError):  # as good as an end
            assert await reader.read() == b""
        writer.close()


async def test_a_client_that_hangs_up_is_noticed() -> None:
    async with TcpServer(_wait) as server:
        _, writer = await asyncio.open_connection(HOST, server.port)
        writer.close()
        await asyncio.wait_for(server.left.wait(), PATIENCE)
        assert server.connections == 1
