"""The API in tests: the real application without a socket, on a house that keeps certificates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast.api.app import mount
from holdfast.config import SOCKET_NAME
from holdfast.core.access import Role
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.own_ca.ca import CaPolicy
from holdfast.engine.notifications.senders import Senders
from holdfast.operations.access import RIGHTS
from holdfast.operations.context import OwnCaServices, Services
from holdfast.operations.installation import tokens
from holdfast.operations.installation.tokens import Grant
from holdfast.store.database import Database
from holdfast.web.serve import bind, bind_local, serving
from holdfast.world import HttpTransport, SystemClock
from tests.support.lifecycle import House, a_house
from tests.support.secrets_watch import WatchedLog

BASE = "http://holdfast.test/api/v1"


@dataclass
class Desk:
    """A house with its front door."""

    house: House
    services: Services
    app: Starlette
    http: httpx2.AsyncClient

    @property
    def api(self) -> Starlette:
        return self.app.routes[0].app  # type: ignore[attr-defined,no-any-return]

    async def token(self, role: Role = Role.ADMIN, name: str = "", **wishes: Any) -> str:
        wishes.setdefault("rights", RIGHTS if role in (Role.ADMIN, Role.AGENT) else frozenset())
        grant = Grant(name=name or role.value, role=role, **wishes)
        new = tokens.drawn(self.house.certificate_context.random)
        await self.house.write(tokens.create, new, grant, by="local:test")
        return new.token.reveal()

    async def as_(self, role: Role = Role.ADMIN, name: str = "", **wishes: Any) -> Asker:
        return Asker(self.http, await self.token(role, name, **wishes))


@dataclass
class Asker:
    """Somebody with a token."""

    http: httpx2.AsyncClient
    token: str

    async def __call__(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, **query: Any
    ) -> httpx2.Response:
        given = {"Authorization": f"Bearer {self.token}", **(headers or {})}
        return await self.http.request(method, f"{BASE}{path}", json=body, headers=given, params=query or None)

    async def get(self, path: str, **query: Any) -> Any:
        answer = await self("GET", path, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, body: Any = None, **headers: str) -> Any:
        answer = await self(
            "POST", path, body, headers={name.replace("_", "-"): each for name, each in headers.items()}
        )
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None


@asynccontextmanager
async def a_desk(
    db: Database,
    folder: Path,
    *,
    local: bool = False,
    own_ca: OwnCaServices | None = None,
    offers: Mapping[str, Any] | None = None,
    **ca: Any,
) -> AsyncIterator[Desk]:
    """`offers`: more of what the process offers to operations."""
    house = await a_house(db, folder, **ca)

    async def probe(row: IssuerRow) -> str:
        return str(await house.cas[row.name].probe())

    transport = HttpTransport()
    post = Senders(secret_store=house.certificate_context.secret_store, transport=transport, clock=SystemClock())
    services = Services(
        certificate_context=house.certificate_context,
        issuer_kinds=frozenset({"test", "acme"}),
        probe=probe,
        post=post,
        own_ca=own_ca or OwnCaServices(policy=CaPolicy(), refresh=_nothing, problem=lambda ca: None),
        **(offers or {}),
    )
    app = another(services, local=local)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=BASE) as http:
        yield Desk(house=house, services=services, app=app, http=http)
    await transport.close()


async def _nothing() -> None:
    """No CA of ours is open here."""


def another(services: Services, **manner: Any) -> Starlette:
    """An application on the same front."""
    numbers = count(1)
    return Starlette(routes=[_mounted(services, numbers, **manner)])


def _mounted(services: Services, numbers: Iterator[int], **manner: Any) -> Mount:
    new_id = lambda: f"req_{next(numbers)}"  # noqa: E731
    return mount(lambda: services, WatchedLog(), new_id=new_id, now=SystemClock().now, **manner)


@asynccontextmanager
async def on_a_port(desk: Desk) -> AsyncIterator[str]:
    """The same behind a real server, for what a client reads while it is written; its address."""
    line = bind("127.0.0.1", 0)
    async with serving(desk.app, line):
        yield f"http://127.0.0.1:{line.getsockname()[1]}/api/v1"


@asynccontextmanager
async def on_a_socket(desk: Desk, folder: Path) -> AsyncIterator[None]:
    """Where commands look for the server of this machine."""
    async with serving(desk.app, bind_local(folder / SOCKET_NAME)):
        yield
