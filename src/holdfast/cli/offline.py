"""The API without a server: a transport that opens the store of this data folder, and answers from it in this process.

A command that works on the store speaks to the same routes, with the same checks, whether a server runs or not.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import NoReturn

import httpx2
from starlette.applications import Starlette

from holdfast.api.app import mount
from holdfast.cli.everywhere import Row
from holdfast.cli.opening import opened
from holdfast.config import Settings
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.notifications.channel import ChannelRow
from holdfast.from_settings import people_services
from holdfast.operations.context import OwnCaServices, Services
from holdfast.operations.installation import keys
from holdfast.operations.installation.secret_store import SecretStore
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.operations.own_ca.authorities import policy_of
from holdfast.operations.remotes import Credentials
from holdfast.store.database import Database
from holdfast.telemetry import make_log
from holdfast.world import LocalFiles, SystemClock, SystemRandom


class StoreTransport(httpx2.BaseTransport):
    """Opens the store for each request, so that it is free for a server in between."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._random = SystemRandom()
        self._services: Services | None = None
        log = make_log("warning", "console", replica="command")
        new_id = partial(self._random.new_id, "req")
        api = mount(lambda: self._services, log, new_id=new_id, now=SystemClock().now, local=True)
        self._app = Starlette(routes=[api])

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return asyncio.run(self._answer(request.method, request.url, request.headers, request.read()))

    async def _answer(
        self, method: str, url: httpx2.URL, headers: httpx2.Headers, content: bytes
    ) -> httpx2.Response:  # fmt: skip
        async with opened(self._settings) as db:
            self._services = await self._open(db)
            transport = httpx2.ASGITransport(app=self._app, raise_app_exceptions=False)
            answer = await transport.handle_async_request(
                httpx2.Request(method, url, headers=headers, content=content)
            )  # fmt: skip
            return httpx2.Response(answer.status_code, headers=answer.headers, content=await answer.aread())

    async def _open(self, db: Database) -> Services:
        settings, files = self._settings, LocalFiles()
        keyring = await keys.unlock(db, settings, files, self._random, create=False)
        secret_store = SecretStore(db=db, settings=settings, files=files, keyring=keyring)
        ports = {"acme_port": settings.acme.address[1], "publish_port": settings.server.address[1]}
        approval_for = settings.keeping.approval_for
        return Services(
            certificate_context=CertificateContext(
                db=db, random=self._random, secret_store=secret_store, approval_for=approval_for
            ),
            issuer_kinds=frozenset(),
            probe=_no_remote,
            post=_NoChannels(),
            people=people_services(settings, settings.server.public_address()),
            own_ca=OwnCaServices(policy=policy_of(settings, **ports), refresh=_nothing, problem=lambda ca: None),
        )


async def _nothing() -> None:
    """No CA is open in this process. Running replicas see a change within seconds."""


def _no_remote(row: IssuerRow) -> NoReturn:
    raise AssertionError("without a server, commands ask nothing of issuers")


class _NoChannels:
    """Without a server, commands ask nothing of channels."""

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset()

    async def check(self, name: str, kind: str, settings: Row, credentials: Credentials) -> None:
        raise AssertionError("without a server, commands ask nothing of channels")

    async def open(self, row: ChannelRow) -> NoReturn:
        raise AssertionError("without a server, commands ask nothing of channels")
