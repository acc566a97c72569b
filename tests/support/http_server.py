"""Servers of tests on loopback: TcpServer owns a port and its connections, HttpServer speaks HTTP/1.1 on them.

    class Echo(HttpServer):
        async def respond(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
            writer.write(HttpAnswer(body=request.body).encoded())

    async with Echo() as server:
        ...  # talk to server.origin
        assert server.requests[0].line == "POST /"

Fake CAs, web hooks and web sites of tests are subclasses that say how they answer, and nothing more.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

HOST = "127.0.0.1"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class TcpServer:
    """Hands each connection to `talk`, and ends all of them when the server is closed."""

    def __init__(self, talk: Talk, *, host: str = HOST, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.host, self.port = host, port  # port 0: any free one, known once the server is open
        self.connections = 0
        self.left = asyncio.Event()  # a client hung up while `talk` was busy with it
        self._talk, self._tls = talk, tls
        self._tasks = set[asyncio.Task[None]]()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self.host, self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._talk(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            self.left.set()
        finally:
            await self.hang_up(writer)

    async def hang_up(self, writer: asyncio.StreamWriter) -> None:
        """At once: the closing words of TLS would wait for those of the client."""
        writer.transport.abort()


# ── HTTP ──


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """One request, as it came."""

    at: datetime
    method: str
    target: str  # as it was sent, with the query
    raw: str  # the path below the server's base, as it was sent
    path: str  # the same, decoded
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    client: bytes | None = None  # DER of the client's certificate, if it showed one

    @property
    def line(self) -> str:
        return f"{self.method} {self.path}"

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class HttpAnswer:
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def encoded(self) -> bytes:
        fields = {"Content-Length": str(len(self.body)), **self.headers}
        lines = [f"HTTP/1.1 {self.status} Said", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        return "\r\n".join(lines).encode() + (b"" if self.status in (204, 304) else self.body)


class HttpServer(TcpServer):
    """Reads requests, keeps them in `requests`, and lets `respond` write what it likes; connections stay open."""

    base_path = ""

    def __init__(self, *, host: str = HOST, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(self._answer_all, host=host, port=port, tls=tls)
        self.requests: list[HttpRequest] = []
        self.now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @property
    def origin(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self.host}:{self.port}"

    async def respond(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    def counts(self, request: HttpRequest) -> bool:
        """Whether the request is kept in `requests`."""
        return True

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await self._read(reader, writer)
            if self.counts(request):
                self.requests.append(request)
            await self.respond(request, writer)
            await writer.drain()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpRequest:
        first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.split(":", 1) for line in rest if line)
        headers = {name.strip().lower(): value.strip() for name, value in fields}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        method, target = first.split(" ")[:2]
        parts = urlsplit(target)
        raw = parts.path.removeprefix(self.base_path)
        line = writer.get_extra_info("ssl_object")
        return HttpRequest(
            at=self.now(), method=method, target=target, raw=raw, path=unquote(raw), headers=headers, body=body,
            query={name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()},
            client=line.getpeercert(binary_form=True) if line is not None else None,
        )  # fmt: skip


# ── Behaviours that more than one server has ──


async def drip(writer: asyncio.StreamWriter) -> None:
    """One byte now and one then; each of them comes in time."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    for _ in range(100000):
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


async def hang(writer: asyncio.StreamWriter) -> None:
    """Nothing, for ever."""
    await asyncio.Event().wait()


def tls_context(certificate: Path, key: Path, *, client_roots: Path | None = None) -> ssl.SSLContext:
    """A server's side of TLS; with `client_roots`, a client without a certificate of theirs is refused."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if client_roots is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_roots)
    return context
