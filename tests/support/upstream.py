"""Certificates over ACME in tests: an upstream, proofs from the store, and a server without a socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.core.certificate import CertificateSpec
from holdfast.core.own_ca.ca import CaOptions
from holdfast.engine.issuance import duties as issuance_duties
from holdfast.engine.issuance.challenges import SolverRule, by_rules, in_store
from holdfast.engine.issuance.issue import IssuanceServices
from holdfast.engine.issuance.issuer_factory import Upstream
from holdfast.engine.issuance.issuer_factory import kinds as issuer_kinds
from holdfast.issuers.base import ChallengeResponse
from holdfast.operations.certificates.checks import identifiers_of
from holdfast.operations.certificates.views import View
from holdfast.operations.issuance import challenge_responses
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.ports import Request, Response, Transport
from holdfast.solvers.http01 import HttpStore
from holdfast.store.database import Database
from holdfast.world import SystemClock
from tests.support.acme_face import Front, open_front
from tests.support.lifecycle import House, a_house
from tests.support.running import add_issuer


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
    services: IssuanceServices
    upstream: Upstream

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with self.house.working(kinds=issuance_duties.kinds(self.services), only=True):
            yield

    async def obtained(self, name: str) -> View:
        return await self.house.settled_soon(name)


def a_site(house: House, transport: Transport, shown: Any = None, *, context: CertificateContext | None = None) -> Site:
    """`shown` is where a test's own web server looks for proofs; `keeper` another one than the house's."""
    context = context or house.certificate_context
    put, delete = in_store(context)

    async def publish(response: ChallengeResponse) -> None:
        await put(response)
        if shown is not None:
            shown[response.token] = await challenge_responses.http01(house.db, response.token)

    upstream = Upstream(context=context, own_cas=None, transport=transport, clock=SystemClock())
    rule = SolverRule(names=("*",), solver=HttpStore(publish, delete))
    services = replace(house.tools, certificate_context=context, make_issuer=upstream.make, solver_for=by_rules([rule]))
    return Site(house, services, upstream)


async def ask(site: Site, name: str, *names: str) -> None:
    spec = CertificateSpec(name=name, identifiers=identifiers_of(names), issuers=("acme",))
    await site.house.want(spec)


async def add(site: Site, **settings: Any) -> None:
    settings["limits"] = {"requests": [1000, 0.001], "orders": [1000, 0.001]}  # these tests do not wait for times
    await add_issuer(
        site.house.certificate_context, "acme", kind="acme", kinds=issuer_kinds(), settings=settings, actor="local:op"
    )


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
