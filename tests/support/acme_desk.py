"""A desk in tests: a CA, its operations, and a worker that does what they owe; the client is the test itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.core.own_ca.acme import Authz, AuthzState, Challenge, ChallengeState, Identifier, Order, OrderState
from holdfast.core.own_ca.ca import CaOptions, CaPolicy
from holdfast.core.own_ca.problem import Problem
from holdfast.engine.kind import JobKind
from holdfast.engine.own_ca import signing, validation
from holdfast.network import SystemNet
from holdfast.operations.acme import accounts, authorizations, orders
from holdfast.operations.acme import names as acme_names
from holdfast.operations.acme.certificates import Deliveries
from holdfast.operations.acme.context import AcmeContext, Changes, Requester
from holdfast.operations.acme.handover import Handover
from holdfast.operations.acme.orders import NewOrder
from holdfast.operations.own_ca.authorities import Authority
from holdfast.pki import csr
from holdfast.ports import Points, no_points
from holdfast.store.database import Database
from holdfast.validators.check import Validator
from holdfast.validators.verdict import ValidationSettings
from holdfast.world import SystemClock, SystemRandom
from tests.support.ca import opened_ca
from tests.support.challenge_server import WebServer, page
from tests.support.engine import PATIENCE, Running, working

LOOPBACK = Identifier("ip", "127.0.0.1")


@dataclass
class Office:
    """Everything of a CA but its HTTP face."""

    db: Database
    acme_context: AcmeContext
    ca: Authority
    web: WebServer
    validator: Validator
    proofs: dict[str, str] = field(default_factory=dict)  # token → what the web server answers
    numbers: Any = field(default_factory=lambda: count(1))

    @property
    def kinds(self) -> list[JobKind]:
        return [
            validation.kind(self.acme_context, self.validator),
            signing.kind(self.acme_context, caa=self._caa, use_pkilint=True),
        ]

    async def _caa(self, order: Order, identifier: Identifier, proof: str) -> Problem | None:
        return None

    @asynccontextmanager
    async def working(self, points: Points = no_points) -> AsyncIterator[Running]:
        async with working(self.db, self.kinds, points=points, handover=self.acme_context.handover) as running:
            yield running

    async def client(self) -> Requester:
        number = next(self.numbers)
        account, _ = await accounts.register(
            self.acme_context,
            self.ca,
            jwk="{}",
            thumbprint=f"thumbprint-{number}",
            contacts=(),
            agreed=True,
            eab_kid=None,
            eab=None,
            address="192.0.2.1",
        )
        return Requester(account.id, account.thumbprint)

    async def order(self, who: Requester, *identifiers: Identifier, **wishes: Any) -> Order:
        return await orders.place(
            self.acme_context, self.ca, who, NewOrder(identifiers=identifiers or (LOOPBACK,), **wishes)
        )

    async def answer(self, who: Requester, authz_id: str, *, right: bool = True) -> Challenge:
        """Put the proof in place, and say so."""
        authz = await authorizations.get(self.acme_context, who, authz_id)
        challenge = next(each for each in authz.challenges if each.type == "http-01")
        self.proofs[challenge.token] = f"{challenge.token}.{who.thumbprint}" if right else "something else"
        return (await authorizations.answer(self.acme_context, who, challenge.id))[0]

    async def decided(self, who: Requester, authz_id: str) -> Authz:
        async with asyncio.timeout(PATIENCE):
            while (
                authz := await authorizations.get(self.acme_context, who, authz_id)
            ).state is AuthzState.PENDING and any(
                each.state in (ChallengeState.PROCESSING, ChallengeState.PENDING) for each in authz.challenges
            ):
                await self.acme_context.changes.wait(authz_id, 0.05)
        return authz

    async def ready(self, who: Requester, *identifiers: Identifier, **wishes: Any) -> Order:
        order = await self.order(who, *identifiers, **wishes)
        for authz in order.authzs:
            await self.answer(who, authz)
            await self.decided(who, authz)
        return await orders.get(self.acme_context, who, order.id)

    async def finalize(self, who: Requester, order: Order, **wishes: Any) -> Order:
        return await orders.finalize(self.acme_context, self.ca, who, order.id, a_csr(*order.identifiers, **wishes))

    async def ended(self, who: Requester, order_id: str) -> Order:
        async with asyncio.timeout(PATIENCE):
            while (order := await orders.get(self.acme_context, who, order_id)).state not in (
                OrderState.VALID,
                OrderState.INVALID,
            ):
                await self.acme_context.changes.wait(order_id, 0.05)
        return order

    async def issued(self, who: Requester, *identifiers: Identifier, **wishes: Any) -> Order:
        order = await self.ready(who, *identifiers, **wishes)
        await self.finalize(who, order)
        return await self.ended(who, order.id)


def a_csr(*identifiers: Identifier, key: ec.EllipticCurvePrivateKey | None = None) -> bytes:
    names, ips = acme_names.split(identifiers)
    return csr.build(names, key or ec.generate_private_key(ec.SECP256R1()), ips=ips)


@asynccontextmanager
async def open_office(
    db: Database,
    folder: Path,
    *,
    options: CaOptions | None = None,
    policy: CaPolicy | None = None,
    resolvers: tuple[str, ...] = (),
) -> AsyncIterator[Office]:
    proofs: dict[str, str] = {}

    async def respond(head: str, writer: asyncio.StreamWriter) -> None:
        token = head.split()[1].rpartition("/")[2]
        found = proofs.get(token)
        writer.write(page(found.encode()) if found is not None else page(b"", status="404 Not Found"))

    async with WebServer(respond) as web:
        opened = await opened_ca(db, folder, options=options, policy=policy)
        random = SystemRandom()
        acme_context = AcmeContext(
            db=db,
            random=random,
            policy=opened.policy,
            authorities=opened.authorities,
            changes=Changes(),
            delivered=Deliveries(db),
            handover=Handover(),
        )
        settings = ValidationSettings(
            resolvers=resolvers, http_port=web.port, allowed_networks=("127.0.0.0/8",), timeout=PATIENCE
        )
        validator = Validator(SystemNet(), SystemClock(), random, settings)
        yield Office(db, acme_context, opened.ca, web, validator, proofs)


def limits(**changes: Any) -> CaPolicy:
    return replace(CaPolicy(), **changes)


HOUR = timedelta(hours=1)
