"""An issuance is dropped before and after each write and call, and resumed by another: nothing is lost or doubled."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.support.acme_desk import open_office
from tests.support.acme_face import open_front
from tests.support.lifecycle import House, a_house
from tests.support.stores import migrated, open_store
from tests.support.upstream import Through, a_site, add, ask

from holdfast.acme import orders as acme_orders
from holdfast.core.own_ca.ca import CaOptions
from holdfast.core.work.job import Claim
from holdfast.engine.issuance import duties as issuance_duties
from holdfast.engine.kind import JobKind, Work
from holdfast.engine.own_ca import signing as ca_signing
from holdfast.issuers.own_ca import LocalIssuer
from holdfast.operations.own_ca.internal_orders import OwnCas
from holdfast.pki import keys
from holdfast.pki.chain import parse_bundle
from holdfast.store import journal
from holdfast.store.database import Database
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx
from holdfast.store.work import jobs, sweeps
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio
T = TypeVar("T")
TTL = timedelta(seconds=30)
NAME = "www.example.com"
MOMENTS = 40  # more than an issuance has


class Died(BaseException):
    """The process is gone: no handler of ours may catch it."""


@dataclass
class Fate:
    """Counts the moments at which a process can die, and is merciless at one of them."""

    dies_at: int
    moments: int = 0

    def pass_by(self, name: str = "") -> None:
        self.moments += 1
        if self.moments == self.dies_at:
            raise Died


class MortalStore:
    """A store whose user may die right before and right after each commit."""

    def __init__(self, db: Database, fate: Fate) -> None:
        self.db, self.fate, self.wake, self.engine = db, fate, db.wake, db.engine

    async def read(self, fn: Callable[[Tx], T]) -> T:
        return await self.db.read(fn)

    async def write(self, fn: Callable[[Tx], T], *, key: str | None = None) -> T:
        self.fate.pass_by()
        result = await self.db.write(fn, key=key)
        self.fate.pass_by()
        return result


class MortalCalls:
    """An issuer whose caller may die right after each call, having not heard the answer."""

    def __init__(self, issuer: Any, fate: Fate) -> None:
        self._issuer, self._fate = issuer, fate
        self.binding = issuer.binding
        self.account_url = getattr(issuer, "account_url", None)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._issuer, name)

        async def called(*args: Any) -> Any:
            answer = await call(*args)
            self._fate.pass_by()
            return answer

        return called


def mortal_kinds(house: House, fate: Fate) -> list[JobKind]:
    store: Any = MortalStore(house.db, fate)
    context = replace(
        house.certificate_context, db=store, secret_store=replace(house.certificate_context.secret_store, db=store)
    )

    async def make(row: Any) -> Any:
        return MortalCalls(house.cas[row.name], fate)

    return issuance_duties.kinds(replace(house.tools, certificate_context=context, make_issuer=make))


async def live(house: House, kinds: list[JobKind], fate: Fate) -> bool:
    """One process: claims what is due and works on it until nothing is left, or it dies. True if it died."""
    by_name = {kind.name: kind for kind in kinds}
    try:
        while True:
            await house.hurry()
            claims = await house.db.write(
                lambda tx: jobs.claim(tx, holder="p", free=dict.fromkeys(by_name, 1), ttl=TTL)
            )
            if not claims:
                return False
            for claim in claims:
                await _work(house, by_name[claim.kind], claim, fate)
    except Died:
        return True


async def _work(house: House, kind: JobKind, claim: Claim, fate: Fate) -> None:
    outcome = await kind.handler(Work(claim=claim, check=lambda: None, point=fate.pass_by))
    fate.pass_by()
    await house.db.write(lambda tx: jobs.settle(tx, claim, outcome, kind.ladder))


async def taken_back(db: Database) -> None:
    def write(tx: Tx) -> None:
        tx.run("UPDATE jobs SET lease_until = 0, crashes = 0 WHERE state = 'running'")
        sweeps.take_back_expired(tx, TTL)

    await db.write(write)


async def check(house: House) -> None:
    view = await house.view(NAME)
    assert view.current is not None
    assert view.issuance is None
    assert view.certificate.failing is None
    leaf = parse_bundle(view.current.chain_pem.encode())[0]
    key = keys.from_pem(await house.key_of(view))
    assert leaf.public_key() == key.public_key()
    rows = await house.db.read(lambda tx: tx.rows("SELECT id FROM certificate_versions"))
    assert len(rows) == 1
    verdict = await house.db.read(journal.verify)
    assert verdict.ok, verdict.problem


@pytest.mark.parametrize("dies_at", range(1, MOMENTS))
async def test_whoever_dies_at_any_moment_is_followed_by_one_who_finishes_the_same_order(
    db: Database, tmp_path: Path, dies_at: int
) -> None:
    house = await a_house(db, tmp_path, proofs=True)
    await house.ask(NAME, "b.example.com")
    fate = Fate(dies_at)
    died = await live(house, mortal_kinds(house, fate), fate)
    if died:
        await taken_back(db)
        assert not await live(house, list(house.kinds), Fate(0))
    else:
        assert fate.moments < dies_at < MOMENTS  # there are no more moments: all were tried
    await check(house)
    ca = house.cas["ca"]
    assert (len(ca.orders), len(ca.issued)) == (1, 1)
    assert house.board.shown == {}


@pytest.mark.parametrize("dies_at", range(1, 20))
async def test_our_own_ca_gives_one_certificate_whoever_dies(db: Database, tmp_path: Path, dies_at: int) -> None:
    house = await a_house(db, tmp_path)
    async with open_office(db, tmp_path) as office:
        await house.add("own", LocalIssuer(OwnCas(office.acme_context), office.ca.id), kind="local")
        signing = ca_signing.kind(office.acme_context, caa=office._caa, use_pkilint=False)
        await house.ask(NAME, issuers=["own"])
        fate = Fate(dies_at)
        if await live(house, [*mortal_kinds(house, fate), signing], fate):
            await taken_back(db)
            assert not await live(house, [*house.kinds, signing], Fate(0))
        await check(house)
        rows = await db.read(lambda tx: tx.rows("SELECT id FROM ca_certificates"))
        assert len(rows) == 1


ALL_OVER_ACME = 70  # moments, and a few more than there are


@pytest.mark.parametrize("dies_at", range(1, ALL_OVER_ACME))
async def test_over_acme_the_account_and_the_order_are_found_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dies_at: int
) -> None:
    """On one store: what differs between them was tried above, and this takes its time."""
    monkeypatch.setattr(acme_orders, "PATIENCE", 0.001)  # client and server take turns: to wait for a change is in vain
    db = await migrated(open_store(SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())))
    house = await a_house(db, tmp_path)
    async with open_front(db, tmp_path, options=CaOptions(permitted=("127.0.0.1",))) as front:
        fate = Fate(dies_at)
        store: Any = MortalStore(db, fate)
        context = replace(
            house.certificate_context, db=store, secret_store=replace(house.certificate_context.secret_store, db=store)
        )
        mortal = a_site(house, Through(front), front.office.proofs, context=context)
        immortal = a_site(house, Through(front), front.office.proofs)
        await add(immortal, directory=front.directory)
        await ask(immortal, NAME, "127.0.0.1")
        services = replace(mortal.services, make_issuer=_mortal(mortal.services.make_issuer, fate))
        if await live(house, [*issuance_duties.kinds(services), *front.office.kinds], fate):
            await taken_back(db)
            assert not await live(house, [*issuance_duties.kinds(immortal.services), *front.office.kinds], Fate(0))
        else:
            assert fate.moments < ALL_OVER_ACME
        await check(house)
        for table in ("ca_certificates", "issuer_accounts", "issuances"):
            assert len(await db.read(lambda tx, table=table: tx.rows(f"SELECT id FROM {table}"))) == 1, table  # type: ignore[misc]
        orders = await db.read(lambda tx: tx.rows("SELECT id FROM acme_orders WHERE state <> 'invalid'"))
        assert len(orders) == 1
    await db.close()


def _mortal(make: Any, fate: Fate) -> Any:
    async def made(row: Any) -> Any:
        return MortalCalls(await make(row), fate)

    return made
