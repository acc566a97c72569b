"""An ACME server over real TLS that behaves as it should, until a test tells it what to do wrong.

    async with HostileCa(folder) as ca:
        ca.say("/order/1", {"status": "valid", ...})
        ...  # talk to ca.place

It believes every signature; it is the client that is under test.
"""

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast.issuers.acme_reading import Place
from tests.support.pebble import tls_certificate
from tests.support.reaper import PATIENCE

Behave = Callable[[asyncio.StreamWriter], Awaitable[None]]
TOKEN = "evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ-PCt92wr-oA"
NAME = "www.holdfast.test"


class HostileCa:
    def __init__(self, folder: Path, *, deadline_for: float = PATIENCE) -> None:
        self._certificate, self._key = tls_certificate(folder, "localhost")
        self._deadline_for = deadline_for
        self._behaviour: dict[str, list[Behave]] = {}
        self._nonces = count(1)
        self._lines = set[asyncio.Task[None]]()
        self.asked: Counter[str] = Counter()
        self.left = asyncio.Event()  # somebody hung up while we were talking

    @property
    def place(self) -> Place:
        roots = self._certificate.read_bytes()
        return Place(directory=self.url("/dir"), roots=roots, deadline_for=self._deadline_for)

    def url(self, path: str) -> str:
        return f"https://localhost:{self.port}{path}"

    # ── what to do wrong ──

    def do(self, path: str, *behaviours: Behave) -> None:
        """Behave so when asked there: the last one for ever, those before it once each."""
        self._behaviour[path] = list(behaviours)

    def say(self, path: str, body: object, *, status: int = 200, **headers: str) -> None:
        self.do(path, self.saying(body, status=status, **headers))

    def refuse(self, path: str, word: str, detail: str = "", *, status: int = 400, **headers: str) -> None:
        self.do(path, self.refusing(word, detail, status=status, **headers))

    def saying(self, body: object, *, status: int = 200, **headers: str) -> Behave:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()

        async def behave(writer: asyncio.StreamWriter) -> None:
            fields = {"Content-Length": str(len(content)), "Replay-Nonce": f"nonce-{next(self._nonces)}", **headers}
            lines = [f"HTTP/1.1 {status} Said", *(f"{k.replace('_', '-')}: {v}" for k, v in fields.items()), "", ""]
            writer.write("\r\n".join(lines).encode() + content)

        return behave

    def refusing(self, word: str, detail: str = "", *, status: int = 400, **headers: str) -> Behave:
        problem = {"type": f"urn:ietf:params:acme:error:{word}", "detail": detail or f"this is {word}"}
        return self.saying(problem, status=status, **headers)

    # ── what it is when it behaves ──

    def directory(self, **changes: Any) -> dict[str, Any]:
        places = {
            "newNonce": self.url("/nonce"), "newAccount": self.url("/account"), "newOrder": self.url("/order"),
            "revokeCert": self.url("/revoke"), "keyChange": self.url("/key-change"), "renewalInfo": self.url("/ari"),
        }  # fmt: skip
        return {**places, **changes}

    def order(self, **changes: Any) -> dict[str, Any]:
        order = {
            "status": "pending", "identifiers": [{"type": "dns", "value": NAME}],
            "authorizations": [self.url("/authz/1")], "finalize": self.url("/order/1/finalize"),
            "expires": (datetime.now(UTC) + timedelta(days=1)).isoformat(),
        }  # fmt: skip
        return {**order, **changes}

    def authz(self, **changes: Any) -> dict[str, Any]:
        named = {"type": "dns", "value": NAME}
        return {"status": "pending", "identifier": named, "challenges": [self.challenge()], **changes}

    def challenge(self, **changes: Any) -> dict[str, Any]:
        right = {"type": "http-01", "url": self.url("/challenge/1"), "status": "pending", "token": TOKEN}
        return {**right, **changes}

    def good(self, path: str) -> Behave:
        location = {"Location": self.url(f"{path}/1")}
        answers: Mapping[str, Behave] = {
            "/dir": self.saying(self.directory()),
            "/nonce": self.saying(b""),
            "/account": self.saying({"status": "valid"}, status=201, **location),
            "/account/1": self.saying({"status": "valid"}),
            "/order": self.saying(self.order(), status=201, **location),
            "/order/1": self.saying(self.order()),
            "/order/1/finalize": self.saying(self.order(status="processing")),
            "/authz/1": self.saying(self.authz()),
            "/challenge/1": self.saying(self.challenge(status="processing")),
            "/revoke": self.saying(b""),
        }
        return answers.get(path, self.refusing("malformed", "there is nothing here", status=404))

    # ── serving ──

    async def __aenter__(self) -> Self:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate, self._key)
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for line in list(self._lines):
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.create_task(self._serve(reader, writer))
        self._lines.add(line)
        line.add_done_callback(self._lines.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
                await reader.readexactly(int(fields.get("content-length", "0")))
                path = head[0].split()[1]
                self.asked[path] += 1
                await self._behave(path)(writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            writer.transport.abort()  # a farewell by TLS would wait for the other side's

    def _behave(self, path: str) -> Behave:
        told = self._behaviour.get(path)
        if told is None:
            return self.good(path)
        return told.pop(0) if len(told) > 1 else told[0]


async def flood(writer: asyncio.StreamWriter) -> None:
    """Two gigabytes, for as long as somebody takes them."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2147483648\r\n\r\n")
    for _ in range(32768):
        writer.write(bytes(65536))
        await writer.drain()


async def drip(writer: asyncio.StreamWriter) -> None:
    """One byte now and one then; each of them comes in time."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    for _ in range(100000):
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


async def hang(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()
