"""An ACME server over real TLS that behaves as it should, until a test tells it what to do wrong.

    async with HostileCa(folder) as ca:
        ca.say("/order/1", {"status": "valid", ...})
        ...  # talk to ca.place

It believes every signature; it is the client that is under test.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.issuers.acme.reading import ResponseContext
from tests.support.http_server import HttpAnswer, HttpRequest, HttpServer, tls_context
from tests.support.pebble import tls_certificate
from tests.support.reaper import PATIENCE

Behave = Callable[[asyncio.StreamWriter], Awaitable[None]]
TOKEN = "evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ-PCt92wr-oA"
NAME = "www.holdfast.test"


class HostileCa(HttpServer):
    def __init__(self, folder: Path, *, deadline_for: float = PATIENCE) -> None:
        self._certificate, key = tls_certificate(folder, "localhost")
        super().__init__(tls=tls_context(self._certificate, key))
        self._deadline_for = deadline_for
        self._behaviour: dict[str, list[Behave]] = {}
        self._nonces = count(1)

    @property
    def place(self) -> ResponseContext:
        roots = self._certificate.read_bytes()
        return ResponseContext(directory=self.url("/dir"), roots=roots, deadline_for=self._deadline_for)

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
            fields = {name.replace("_", "-"): value for name, value in headers.items()}
            nonce = f"nonce-{next(self._nonces)}"
            writer.write(HttpAnswer(status, {"Replay-Nonce": nonce, **fields}, content).encoded())

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

    @property
    def asked(self) -> Counter[str]:
        """How often each path was."""
        return Counter(each.path for each in self.requests)

    async def respond(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        await self._behave(request.path)(writer)

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
