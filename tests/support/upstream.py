"""Certificates over ACME in tests: an upstream, proofs from the store, and a server without a socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.core.ca import CaOptions
from holdfast.core.certificate import Wanted
from holdfast.engine import lifecycle
from holdfast.engine.issue import Tools
from holdfast.engine.proving import SolverRule, by_rules, in_store
from holdfast.engine.upstream import KINDS, Upstream
from holdfast.issuers.base import Proof
from holdfast.operations import certificates, issuers, proofs
from holdfast.operations.issuing import Keeper
from holdfast.ports import Request, Response, Transport
from holdfast.solvers.http_store import HttpStore
from holdfast.store.database import Database
from holdfast.world import SystemClock
from tests.support.acme_face import Front, open_front
from tests.support.lifecycle import House, a_house


class Through:
    """The Transport port over the server's application, without a socket."""

    def __init__(self, front: Front) -> None:
        self._http = front.http

    async def request(self, request: Request) -> Response:
        answer = await self._http.request(
            request.method, request.url, headers=dict(request.headers), content=request.body
        )
        return Response(status=answer.status_code, headers=dict(answer.headers), body=answer.content)


@dataclass
class Site:
    house: House
    tools: Tools
    upstream: Upstream

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with self.house.working(kinds=lifecycle.kinds(self.tools), only=True):
            yield

    async def obtained(self, name: str) -> certificates.View:
        return await self.house.settled_soon(name)


def a_site(house: House, transport: Transport, shown: Any = None, *, keeper: Keeper | None = None) -> Site:
    """`shown` is where a test's own web server looks for proofs; `keeper` another one than the house's."""
    keeper = keeper or house.keeper
    put, delete = in_store(keeper)

    async def publish(proof: Proof) -> None:
        await put(proof)
        if shown is not None:
            shown[proof.token] = await proofs.http01(house.db, proof.token)

    upstream = Upstream(keeper=keeper, desk=None, transport=transport, clock=SystemClock())
    rule = SolverRule(names=("*",), solver=HttpStore(publish, delete))
    tools = replace(house.tools, keeper=keeper, make_issuer=upstream.make, solver_for=by_rules([rule]))
    return Site(house, tools, upstream)


async def ask(site: Site, name: str, *names: str) -> None:
    wanted = Wanted(name=name, identifiers=certificates.identifiers_of(names), issuers=("acme",))
    await certificates.request(site.house.keeper, wanted, actor="local:alice")


async def add(site: Site, **settings: Any) -> None:
    settings["limits"] = {"requests": [1000, 0.001], "orders": [1000, 0.001]}  # these tests do not wait for times
    await issuers.add(site.house.keeper, "acme", kind="acme", kinds=KINDS, settings=settings, actor="local:op")


@asynccontextmanager
async def our_site(db: Database, folder: Path) -> AsyncIterator[Site]:
    """A site whose only CA is our own server, over ACME."""
    house = await a_house(db, folder)
    async with (
        open_front(db, folder, options=CaOptions(permitted=("127.0.0.1",))) as front,
        front.office.working(),
    ):
        site = a_site(house, Through(front), front.office.proofs)
        await add(site, directory=front.directory)
        yield site
