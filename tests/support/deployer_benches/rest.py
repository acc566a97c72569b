"""What the fake APIs of targets share: a real HTTP server that can hang up on everybody, or refuse every write."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from holdfast.deployers.kind import DeployerParts, LocalRules
from holdfast.secret import Secret
from holdfast.world import HttpTransport
from tests.support.deploying import parts
from tests.support.http_server import HttpAnswer, HttpRequest, HttpServer

READS = ("GET", "HEAD")


def as_json(value: object, status: int = 200) -> HttpAnswer:
    return HttpAnswer(status=status, headers={"Content-Type": "application/json"}, body=json.dumps(value).encode())


def leaf_sha256(pem: str) -> str:
    """Of the first certificate in a text."""
    first = pem.partition("-----END CERTIFICATE-----")
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first[0] + first[1])).hexdigest()


class FakeApi(HttpServer):
    """`answered` is the vendor's API; `no` is how it refuses a write."""

    def __init__(self) -> None:
        super().__init__()
        self.away = self.refuses = False

    def answered(self, request: HttpRequest) -> HttpAnswer:
        raise NotImplementedError

    def no(self, request: HttpRequest) -> HttpAnswer:
        raise NotImplementedError

    def writes(self, request: HttpRequest) -> bool:
        return request.method not in READS

    async def respond(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        if self.away:
            await self.hang_up(writer)
            return
        said = self.no(request) if self.refuses and self.writes(request) else self.answered(request)
        writer.write(said.encoded())


class RestBench:
    """The half of a bench that is the same for all of them."""

    secrets: tuple[str, ...] = ()

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.transport = HttpTransport()

    def parts(self, rules: LocalRules | None = None, **credentials: str) -> DeployerParts:
        given = {name: Secret(text) for name, text in credentials.items()}
        return parts(rules, credentials=given, transport=self.transport)

    async def go_away(self) -> bool:
        self.api.away = True
        return True

    async def refuse(self) -> bool:
        self.api.refuses = True
        return True

    async def come_back(self) -> None:
        self.api.away = self.api.refuses = False


def pair(certificate: str, key: str) -> tuple[str, Secret[bytes]]:
    return leaf_sha256(certificate), Secret(key.encode())


B = TypeVar("B", bound=RestBench)


@asynccontextmanager
async def opened(api: FakeApi, bench: type[B]) -> AsyncIterator[B]:
    async with api:
        made = bench(api)
        try:
            yield made
        finally:
            await made.transport.close()
