"""Nonces of one process, and nonces that replicas share: each is good once among all of them (RFC 8555 §6.5)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.acme_client import AcmeClient, problem
from tests.support.acme_face import Front, open_front
from tests.support.ca import authorities_of
from tests.support.jobs import ON_POSTGRES
from tests.support.stores import open_store

from holdfast.acme.app import site
from holdfast.acme.nonces import KEPT_FOR, LIFE, OwnNonces, SharedNonces, nonces_for
from holdfast.operations.acme.context import AcmeContext
from holdfast.store.acme import nonces as table
from holdfast.store.database import Database, Engine
from holdfast.world import SystemClock, SystemRandom

pytestmark = pytest.mark.anyio


class Hand:
    """A clock that is set by hand; the wall and the seconds since start apart."""

    def __init__(self) -> None:
        self.wall = datetime(2030, 1, 1, tzinfo=UTC)
        self.since = 0.0

    def now(self) -> datetime:
        return self.wall

    def monotonic(self) -> float:
        return self.since

    async def sleep(self, seconds: float) -> None:
        raise AssertionError

    def pass_by(self, span: timedelta) -> None:
        self.wall += span
        self.since += span.total_seconds()


# ── One process ──


async def test_a_nonce_is_redeemed_once_and_carries_its_note() -> None:
    own = OwnNonces(Hand(), SystemRandom())
    plain, noted = await own.mint(), await own.mint("cert_1")
    for text, note in ((plain, ""), (noted, "cert_1")):
        minted = await own.redeem(text)
        assert minted is not None
        assert minted.note == note
        assert await own.redeem(text) is None


async def test_a_nonce_lives_for_an_hour() -> None:
    clock = Hand()
    own = OwnNonces(clock, SystemRandom())
    young, old = await own.mint(), await own.mint()
    clock.pass_by(LIFE)
    assert await own.redeem(young) is not None
    clock.pass_by(timedelta(seconds=2))
    assert await own.redeem(old) is None


async def test_a_clock_that_is_set_voids_no_nonce_and_revives_none() -> None:
    clock = Hand()
    own = OwnNonces(clock, SystemRandom())
    used, unused = await own.mint(), await own.mint()
    assert await own.redeem(used) is not None
    for jump in (timedelta(days=400), timedelta(days=-800)):
        clock.wall += jump
        assert await own.redeem(used) is None
        assert await own.redeem(await own.mint()) is not None
    assert await own.redeem(unused) is not None


async def test_after_a_restart_no_old_nonce_is_taken() -> None:
    before, after = OwnNonces(Hand(), SystemRandom()), OwnNonces(Hand(), SystemRandom())
    assert await after.redeem(await before.mint()) is None


# ── Replicas ──


class Replica:
    def __init__(self, nonces: SharedNonces, clock: Hand, db: Database) -> None:
        self.nonces, self.clock, self.db = nonces, clock, db


@pytest.fixture
async def replicas(db: Database, make_engine: Callable[[], Engine]) -> AsyncIterator[list[Replica]]:
    stores = [open_store(make_engine()) for _ in range(3)]
    made = []
    for store in stores:
        clock, desk = Hand(), _Desk(store)
        made.append(Replica(SharedNonces(desk, clock), clock, store))  # type: ignore[arg-type]
    yield made
    for store in stores:
        await store.close()


class _Desk:
    """As much of a desk as nonces need."""

    def __init__(self, db: Database) -> None:
        self.db, self.random = db, SystemRandom()


@ON_POSTGRES
async def test_any_replica_takes_the_nonce_of_any_other_once(replicas: list[Replica]) -> None:
    for maker in replicas:
        nonce = await maker.nonces.mint("note")
        found = await asyncio.gather(*(replica.nonces.redeem(nonce) for replica in replicas * 3))
        assert [each.note for each in found if each is not None] == ["note"]


@ON_POSTGRES
async def test_replicas_that_start_at_once_understand_each_other(replicas: list[Replica]) -> None:
    made = await asyncio.gather(*(replica.nonces.mint() for replica in replicas))
    for replica in replicas:
        replica.clock.pass_by(timedelta(seconds=1))
    for number, nonce in enumerate(made):
        assert await replicas[(number + 1) % 3].nonces.redeem(nonce) is not None


@ON_POSTGRES
async def test_a_database_that_lost_its_memory_lost_the_key_to_it(replicas: list[Replica]) -> None:
    """As PostgreSQL does to UNLOGGED tables after a crash."""
    one, other, _ = replicas
    used, unused = await one.nonces.mint(), await one.nonces.mint()
    assert await other.nonces.redeem(used) is not None

    def crash(tx: Any) -> None:
        tx.run("TRUNCATE acme_nonces")
        tx.run("TRUNCATE acme_nonce_keys")

    await one.db.write(crash)
    assert await one.nonces.redeem(used) is None
    assert await other.nonces.redeem(unused) is None
    for replica in (one, other):  # each has noticed, and goes on with a new key
        replica.clock.pass_by(timedelta(seconds=1))
    assert await other.nonces.redeem(await one.nonces.mint()) is not None
    assert await one.nonces.redeem(await other.nonces.mint()) is not None


@ON_POSTGRES
async def test_what_nobody_can_use_any_more_is_swept(replicas: list[Replica]) -> None:
    one = replicas[0]
    for _ in range(3):
        assert await one.nonces.redeem(await one.nonces.mint()) is not None
    one.clock.pass_by(KEPT_FOR + timedelta(seconds=5))
    fresh = await one.nonces.mint()
    assert await one.nonces.redeem(fresh) is not None
    assert await one.nonces.sweep() == 3
    assert await one.nonces.redeem(fresh) is None
    left = await one.db.read(lambda tx: tx.rows("SELECT COUNT(*) AS n FROM acme_nonces"))
    assert left[0]["n"] == 1


@ON_POSTGRES
async def test_garbage_does_not_make_us_ask_the_store_each_time(replicas: list[Replica]) -> None:
    one = replicas[0]
    await one.nonces.mint()
    asked = 0

    class Counting:
        async def read(self, fn: Any) -> Any:
            nonlocal asked
            asked += 1
            return await one.db.read(fn)

    one.nonces._db = Counting()  # type: ignore[assignment]
    for _ in range(100):
        assert await one.nonces.redeem("A" * 60) is None
    assert asked <= 1
    assert await one.db.read(table.keys)


# ── The whole server, twice ──


@asynccontextmanager
async def another_replica(front: Front, db: Database) -> AsyncIterator[httpx2.AsyncClient]:
    """A second process on the same database: its own memory, keys and connections."""
    acme_context = front.office.acme_context
    authorities = authorities_of(replace(acme_context.authorities.secret_store, db=db), acme_context.policy)
    await authorities.refresh()
    own: AcmeContext = replace(acme_context, db=db, authorities=authorities)
    app = site(own, nonces_for(own, SystemClock(), shared=True), SystemClock(), front.watch.telemetry)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as http:
        yield http


class Alternating(httpx2.AsyncClient):
    """A load balancer without a memory."""

    def __init__(self, *replicas: httpx2.AsyncClient) -> None:
        super().__init__()
        self._replicas, self._turn = replicas, 0

    async def request(self, *args: Any, **more: Any) -> httpx2.Response:
        self._turn += 1
        return await self._replicas[self._turn % len(self._replicas)].request(*args, **more)


@ON_POSTGRES
async def test_any_replica_answers_any_request(
    db: Database, make_engine: Callable[[], Engine], tmp_path: Path
) -> None:  # fmt: skip
    second = open_store(make_engine())
    try:
        async with open_front(db, tmp_path) as front, another_replica(front, second) as http, front.office.working():
            client = AcmeClient(Alternating(front.http, http), front.directory)
            await client.start()
            assert (await client.register()).status_code == 201
            order = await front.issued(client)
            assert (await client.get(order["certificate"])).status_code == 200
            nonce = await client.nonce()
            replies = await asyncio.gather(*(client.get(client.kid or "", header={"nonce": nonce}) for _ in range(8)))
            assert sorted(reply.status_code for reply in replies) == [200] + [400] * 7
            assert {problem(reply)[1] for reply in replies if reply.status_code == 400} == {"badNonce"}
    finally:
        await second.close()
