"""Browsers in tests: they keep cookies, say where a request comes from, and find the forms of a page."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from html import unescape
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
from starlette.applications import Starlette

from holdfast.core.access import Role
from holdfast.core.public_address import PublicAddress
from holdfast.operations.access import local
from holdfast.operations.catalog import named
from holdfast.operations.context import PeopleServices, Services
from holdfast.operations.people.accounts import PersonRef
from holdfast.operations.runner import run
from holdfast.pages import site as pages_site
from holdfast.store.database import Database
from holdfast.web import face
from holdfast.world import SystemClock
from tests.support.api import a_desk
from tests.support.secrets_watch import WatchedLog

ADDRESS = PublicAddress("https://holdfast.test")


class Browser:
    """One person's browser. Redirects are not followed by themselves."""

    def __init__(self, app: Starlette, address: PublicAddress = ADDRESS, client: str = "192.0.2.7") -> None:
        self.address = address
        transport = httpx2.ASGITransport(app=app, client=(client, 4711), raise_app_exceptions=False)
        self.http = httpx2.AsyncClient(transport=transport, base_url=address.url)

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        return await self.http.get(path, headers=_named(headers))

    async def post(self, path: str, fields: Mapping[str, str] | None = None, **headers: str) -> httpx2.Response:
        given = {"Origin": self.address.url, "Sec-Fetch-Site": "same-origin", **_named(headers)}
        return await self.http.post(path, data=dict(fields or {}), headers={k: v for k, v in given.items() if v})

    async def submit(self, page: httpx2.Response, action: str = "", **fields: str) -> httpx2.Response:
        """Send the form of a page, with its hidden fields."""
        form = form_of(page.text, action)
        return await self.post(form.action or page.request.url.path, {**form.fields, **fields})

    @property
    def cookies(self) -> dict[str, str]:
        return dict(self.http.cookies.items())


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass
class Form:
    action: str
    fields: dict[str, str] = field(default_factory=dict)


def form_of(html: str, action: str = "") -> Form:
    """The form with this action, or the first one."""
    for head, body in re.findall(r"<form([^>]*)>(.*?)</form>", html, re.DOTALL):
        there = (re.findall(r'action="([^"]*)"', head) or [""])[0]
        if not action or there == action:
            inputs = re.findall(r"<input([^>]*)>", body)
            found = {_attribute(each, "name"): _attribute(each, "value") for each in inputs if 'type="hidden"' in each}
            return Form(unescape(there), found)
    raise AssertionError(f"no form {action!r} in: {html}")


def _attribute(tag: str, name: str) -> str:
    return unescape((re.findall(rf'{name}="([^"]*)"', tag) or [""])[0])


@dataclass
class WebDesk:
    """The face for browsers on a house that keeps certificates."""

    services: Services
    db: Database
    app: Starlette
    address: PublicAddress

    def browser(self, **manner: Any) -> Browser:
        return Browser(self.app, self.address, **manner)

    async def do(self, operation: str, asked: Any, user: str = "root") -> Any:
        """As a local user."""
        return (await run(self.services, named(operation), local(user), asked)).result

    async def link(self, name: str = "alice") -> str:
        """The path of a link that logs an admin in once."""
        made = await self.do("people.recover", PersonRef(name=name))
        return str(made.link).removeprefix(self.address.url)

    async def logged_in(self, name: str = "alice", **manner: Any) -> Browser:
        browser = self.browser(**manner)
        answer = await browser.get(await self.link(name))
        assert answer.status_code == 303, answer.text
        return browser

    async def set_role(self, name: str, role: Role, *owners: str) -> None:
        asked = {"role": role, "owners": json.dumps(owners), "name": name}
        text = "UPDATE people SET role = :role, owners = :owners, rights = '[]' WHERE name = :name"
        await self.db.write(lambda tx: tx.run(text, **asked))

    def replica(self, pages: Any = ()) -> WebDesk:
        """Another process on the same store."""
        return replace(self, app=_app(self.services, self.address, pages))

    async def audited(self, action: str) -> list[Any]:
        rows = await self.db.read(
            lambda tx: tx.rows("SELECT * FROM audit WHERE action = :action ORDER BY seq", action=action)
        )
        return list(rows)


@asynccontextmanager
async def a_web_desk(
    db: Database, folder: Path, *, address: PublicAddress = ADDRESS, pages: Any = (), **people: Any
) -> AsyncIterator[WebDesk]:
    async with a_desk(db, folder) as desk:
        services = replace(desk.services, people=PeopleServices(address=address, **people))
        yield WebDesk(services=services, db=db, app=_app(services, address, pages), address=address)


def _app(services: Services, address: PublicAddress, pages: Any) -> Starlette:
    numbers = count(1)
    ours = pages_site.routes(
        lambda: services,
        WatchedLog(),
        now=SystemClock().now,
        replica="one",
        installation=lambda: "dev",
        facts=dict,
        values=list,
    )
    mounted = face.mount(
        lambda: services, WatchedLog(), address=address, new_id=lambda: f"req_{next(numbers)}", pages=[*pages, *ours]
    )
    return Starlette(routes=[mounted])
