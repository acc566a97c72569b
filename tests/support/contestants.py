"""Every issuer beside a CA that it can talk to: the conformance suite runs on these. A new one is one more line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.core.kind import Trait
from holdfast.core.own_ca.ca import CaOptions
from holdfast.issuers.acme import account as acme_account
from holdfast.issuers.acme.issuer import AcmeIssuer
from holdfast.issuers.acme.reading import ResponseContext
from holdfast.issuers.acme.wire import Memory, Wire
from holdfast.issuers.base import (
    ChallengeResponse,
    Failed,
    Finalizes,
    Issued,
    Issuer,
    Look,
    NeedsProof,
    OrderRequest,
    Pending,
    ProvesNames,
    Ready,
)
from holdfast.issuers.own_ca import LocalIssuer
from holdfast.operations import kinds
from holdfast.operations.own_ca.internal_orders import OwnCas
from holdfast.pki import csr
from holdfast.ports import Transport
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import HttpTransport, SystemClock
from tests.support.acme_face import Front, open_front
from tests.support.engine import PATIENCE
from tests.support.fake_cas.base import FakeCa
from tests.support.fake_cas.bench import made
from tests.support.fake_cas.digicert import FakeDigicert
from tests.support.fake_cas.entrust import FakeEntrust
from tests.support.fake_cas.globalsign import FakeGlobalSign
from tests.support.fake_cas.sectigo import FakeSectigo
from tests.support.fake_cas.vault import FakeVault
from tests.support.issuing import a_wish
from tests.support.stores import migrated, open_store
from tests.support.upstream import Through

NAME = "www.holdfast.test"


@dataclass
class IssuerUnderTest:
    """One issuer, the CA that it talks to if that can be told what to do, and how to prove names to it."""

    issuer: Issuer
    ca: Any = None  # a FakeCa
    prove: Callable[[ChallengeResponse], None] | None = None
    secrets: tuple[str, ...] = ()
    again: Any = None  # makes the issuer with other settings or credentials
    name: str = NAME  # one that it issues for
    kind: str = ""

    def wish(self, **more: Any) -> OrderRequest:
        key = ec.generate_private_key(ec.SECP256R1())

        async def sign(content: bytes) -> bytes:
            return key.sign(content, ec.ECDSA(hashes.SHA256()))

        request = a_wish(self.name, key=key, sign=sign, **more)
        named = kinds.issuer_has(self.kind, Trait.WANTS_COMMON_NAME)
        return replace(request, csr=csr.build([self.name], key, common_name=True)) if named else request

    async def completed(self, ref: Mapping[str, Any], request: OrderRequest) -> Issued | Failed:
        """An order from wherever it is to its end, as the engine would."""
        async with asyncio.timeout(PATIENCE):
            while True:
                look = await self.step(ref, request)
                if isinstance(look, Issued | Failed):
                    return look
                if not isinstance(look, Pending) or look.after_s:
                    await asyncio.sleep(0.02)

    async def step(self, ref: Mapping[str, Any], request: OrderRequest) -> Look:
        look = await self.issuer.order_status(ref, request)
        match look:
            case NeedsProof(choices=choices):
                for response in (next(each for each in offers if each.type == "http-01") for offers in choices):
                    assert self.prove is not None
                    self.prove(response)
                    assert isinstance(self.issuer, ProvesNames)
                    await self.issuer.answer(ref, response)
            case Ready():
                assert isinstance(self.issuer, Finalizes)
                await self.issuer.finalize(ref, request)
        return look


Open = Callable[[Path, HttpTransport], AbstractAsyncContextManager[IssuerUnderTest]]


@dataclass(frozen=True)
class Contestant:
    name: str
    open: Open
    fake: bool = True  # its CA fails on request
    waits: bool = True  # its orders may be pending
    people: bool = True  # somebody approves or denies them


# ── Those that are made of settings ──


def rest(name: str, fake: type[FakeCa]) -> Open:
    @asynccontextmanager
    async def opened(folder: Path, transport: HttpTransport) -> AsyncIterator[IssuerUnderTest]:
        async with fake(folder) as ca:

            def again(credentials: Mapping[str, str] | None = None, **changes: Any) -> Issuer:
                return an_issuer(name, ca, transport, credentials, **changes)

            told: Any = ca
            yield IssuerUnderTest(again(), ca, secrets=tuple(told.credentials.values()), again=again, kind=name)

    return opened


def an_issuer(
    name: str, ca: Any, transport: Transport, credentials: Mapping[str, str] | None = None, **changes: Any
) -> Issuer:
    """As upstream makes it of a stored row."""
    settings = ca.settings(**{"request_timeout_seconds": 10, **changes})
    return made(name, settings, ca.credentials if credentials is None else credentials, transport=transport)


# ── Our own CA, by both of its doors ──


@asynccontextmanager
async def _front(folder: Path) -> AsyncIterator[Front]:
    db = await migrated(open_store(SqliteEngine(folder / "holdfast.sqlite", SystemClock())))
    options = CaOptions(permitted=("127.0.0.1", "*.holdfast.test"))
    try:
        async with open_front(db, folder, options=options) as front, front.office.working():
            yield front
    finally:
        await db.close()


@asynccontextmanager
async def _acme(folder: Path, _: HttpTransport) -> AsyncIterator[IssuerUnderTest]:
    async with _front(folder) as front:
        wire = Wire(Through(front), SystemClock(), Memory(), ResponseContext(directory=front.directory))
        account = await acme_account.ensure_account(wire, ec.generate_private_key(ec.SECP256R1()), terms_agreed=True)

        def prove(response: ChallengeResponse) -> None:
            front.office.proofs[response.token] = response.key_authorization

        yield IssuerUnderTest(AcmeIssuer(wire, account), prove=prove, name="127.0.0.1")


@asynccontextmanager
async def _local(folder: Path, _: HttpTransport) -> AsyncIterator[IssuerUnderTest]:
    async with _front(folder) as front:
        yield IssuerUnderTest(LocalIssuer(OwnCas(front.office.acme_context), front.office.ca.id))


CONTESTANTS = [
    Contestant("digicert", rest("digicert", FakeDigicert)),
    Contestant("sectigo", rest("sectigo", FakeSectigo)),
    Contestant("entrust", rest("entrust", FakeEntrust)),
    Contestant("globalsign", rest("globalsign", FakeGlobalSign), people=False),
    Contestant("vault", rest("vault", FakeVault), waits=False, people=False),
    Contestant("acme", _acme, fake=False, waits=False, people=False),
    Contestant("local", _local, fake=False, waits=False, people=False),
]
