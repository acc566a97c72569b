"""HTTP/1.1 over TLS for one caller: one connection kept open, one request at a time."""

import asyncio
import json
import ssl
from functools import cache
from typing import Any, cast
from urllib.parse import urlsplit

import httptools


class Broken(Exception):
    """The connection ended, or the answer was no HTTP."""


class Answer:
    """One response as it is read."""

    __slots__ = ("body", "headers", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""

    def header(self, name: str) -> str:
        return self.headers.get(name.encode(), b"").decode()

    def json(self) -> Any:
        return json.loads(self.body)


class Connection(asyncio.Protocol):
    """The protocol under a Line; httptools calls the on_… methods."""

    def __init__(self) -> None:
        self.closed = False
        self.waiting: asyncio.Future[Answer] | None = None
        self.parser = httptools.HttpResponseParser(self)
        self.answer = Answer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(Broken(f"connection lost: {exc}"))

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break(Broken(f"not HTTP: {error}"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.answer.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.answer.body += body

    def on_message_complete(self) -> None:
        done, self.answer = self.answer, Answer()
        done.status = self.parser.get_status_code()
        if not self.parser.should_keep_alive():
            self.closed = True
            self.transport.close()
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(done)

    def _break(self, why: Broken) -> None:
        self.closed = True
        self.transport.close()
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(why)


class Line:
    """One caller's connection to one server, opened again when it was closed."""

    def __init__(self, origin: str) -> None:
        self.origin = origin  # https://host:port
        self.host = urlsplit(origin).netloc
        self.requests = 0
        self._connection: Connection | None = None

    async def open(self) -> Connection:
        where = urlsplit(self.origin)
        _, self._connection = await asyncio.get_running_loop().create_connection(
            Connection, "127.0.0.1", where.port or 443, ssl=unverified(), server_hostname=where.hostname
        )
        return self._connection

    async def get(self, url: str) -> Answer:
        return await self._ask(f"GET {self._path(url)} HTTP/1.1\r\nHost: {self.host}\r\n\r\n".encode())

    async def post(self, url: str, body: bytes) -> Answer:
        head = (
            f"POST {self._path(url)} HTTP/1.1\r\nHost: {self.host}\r\nUser-Agent: holdfast-bench\r\n"
            f"Content-Type: application/jose+json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return await self._ask(head.encode() + body)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.transport.abort()

    async def _ask(self, request: bytes) -> Answer:
        connection = self._connection
        if connection is None or connection.closed:
            connection = await self.open()
        connection.waiting = asyncio.get_running_loop().create_future()
        connection.transport.write(request)
        self.requests += 1
        return await connection.waiting

    def _path(self, url: str) -> str:
        if not url.startswith(self.origin + "/"):
            raise Broken(f"{url} is not at {self.origin}")
        return url[len(self.origin) :]


@cache
def unverified() -> ssl.SSLContext:
    """TLS to a server of ours on loopback, whose root nobody has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
