"""Benches for targets that fetch: `webhook` with a receiver of another make, and `caddy` with what is on offer."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from holdfast.deployers.base import Bundle, Deployer
from holdfast.deployers.caddy import CADDY, CaddySettings
from holdfast.deployers.webhook import WEBHOOK, WebhookSettings
from holdfast.secret import Secret
from holdfast.world import HttpTransport
from tests.support.deployer_benches.rest import as_json, leaf_sha256
from tests.support.deploying import CERTIFICATE, parts
from tests.support.http_server import HttpAnswer, HttpRequest, HttpServer

KEY = bytes(range(32))
SIGNING = f"whsec_{base64.b64encode(KEY).decode()}"


class OffersInMemory(HttpServer):
    """Offers, with a server that hands each over once."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[str, Bundle] = {}
        self.standing: dict[tuple[str, str], Bundle] = {}

    async def current(self, target: str, certificate: str) -> tuple[int, str] | None:
        found = self.standing.get((target, certificate))
        return None if found is None else (found.number, found.content_id)

    async def put(self, target: str, bundle: Bundle) -> None:
        self.standing[target, bundle.certificate] = bundle

    async def once(self, target: str, bundle: Bundle, lasts_for: timedelta) -> Secret[str]:
        path = f"/handover/token-{len(self.requests)}-{len(self.waiting)}-{bundle.number}"
        self.waiting[path] = bundle
        return Secret(f"{self.origin}{path}")

    async def respond(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        found = self.waiting.pop(request.path, None)
        told = None if found is None else {"fullchain": found.fullchain.decode()}
        if found is not None and told is not None:
            told["private_key"] = found.key.reveal().decode()
        writer.write((as_json(told) if told else HttpAnswer(status=404)).encoded())


class Receiver(HttpServer):
    """As the guide tells people to write one: it checks the signature, fetches once, and says what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.status: int | None = None  # in place of doing as it is told
        self.held: dict[str, Any] = {}
        self.number = 0
        self.fetched: list[str] = []

    async def respond(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        if self.away:
            await self.hang_up(writer)
            return
        writer.write((await self._answer(request)).encoded())

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        if not is_genuine(request):
            return HttpAnswer(status=401, body=b"bad signature")
        assert b"PRIVATE KEY" not in request.body
        if self.status is not None:
            return HttpAnswer(status=self.status, body=f"no: {SIGNING} {request.body.decode()}".encode())
        told = request.json()
        return HttpAnswer(status=204) if told["type"] == "target.test" else await self._put(told["data"])

    async def _put(self, data: dict[str, Any]) -> HttpAnswer:
        if self.number > data["replaces_up_to"]:
            return HttpAnswer(status=409)
        if self.held and leaf_sha256(self.held["fullchain"]) == data["leaf_sha256"]:
            self.number = data["number"]
            return as_json({"changed": False})
        found = json.loads(await asyncio.to_thread(_fetched, data["fetch"]))
        assert leaf_sha256(found["fullchain"]) == data["leaf_sha256"]
        self.fetched.append(data["fetch"])
        self.held, self.number = found, data["number"]
        return as_json({"changed": True})


def is_genuine(request: HttpRequest) -> bool:
    """By the text of Standard Webhooks, and by none of our code."""
    sent_at = request.headers["webhook-timestamp"]
    signed = f"{request.headers['webhook-id']}.{sent_at}.".encode() + request.body
    wanted = "v1," + base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
    return wanted in request.headers["webhook-signature"].split() and abs(time.time() - int(sent_at)) < 300


def _fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        content: bytes = answer.read()
        return content


class WebhookBench:
    secrets = (SIGNING,)

    def __init__(self, receiver: Receiver, offers: OffersInMemory) -> None:
        self.receiver, self.offers, self.transport = receiver, offers, HttpTransport()

    async def deployer(self, secret: str = SIGNING) -> Deployer:
        given = parts(credentials={"secret": Secret(secret)}, transport=self.transport, offers=self.offers)
        return WEBHOOK.make(WebhookSettings(url=f"{self.receiver.origin}/hooks/tls"), given)

    async def holds(self) -> tuple[str, Secret[bytes]]:
        held = self.receiver.held
        return leaf_sha256(held["fullchain"]), Secret(held["private_key"].encode())

    async def go_away(self) -> bool:
        self.receiver.away = True
        return True

    async def refuse(self) -> bool:
        self.receiver.status = 400
        return True

    async def come_back(self) -> None:
        self.receiver.away, self.receiver.status = False, None


class CaddyBench:
    secrets = ()

    def __init__(self) -> None:
        self.offers = OffersInMemory()

    async def deployer(self) -> Deployer:
        return CADDY.make(CaddySettings(), parts(offers=self.offers))

    async def holds(self) -> tuple[str, Secret[bytes]]:
        found = self.offers.standing["web-1", CERTIFICATE]
        return found.leaf_sha256, found.key

    async def go_away(self) -> bool:
        return False

    async def refuse(self) -> bool:
        return False

    async def come_back(self) -> None:
        """It is never away."""


@asynccontextmanager
async def a_webhook_bench() -> AsyncIterator[WebhookBench]:
    async with Receiver() as receiver, OffersInMemory() as offers:
        bench = WebhookBench(receiver, offers)
        try:
            yield bench
        finally:
            await bench.transport.close()


@asynccontextmanager
async def a_caddy_bench() -> AsyncIterator[CaddyBench]:
    yield CaddyBench()
