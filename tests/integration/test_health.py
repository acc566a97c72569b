"""The probes: live asks nothing, ready asks the store, startup says which phase waits for what."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import httpx2
import pytest
from tests.support.engine import Moody, Watch, done, eventually, kind, working
from tests.support.jobs import update

from holdfast import __version__
from holdfast.errors import StoreUnavailable
from holdfast.operations.installation import observe
from holdfast.operations.installation.observe import Inventory
from holdfast.store.database import Database, Store
from holdfast.telemetry import PHASES, Health
from holdfast.web.sites import Refresh, plain_site
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio


async def nothing() -> None:
    """A look that finds everything as it was."""


async def no_metrics() -> bytes:
    return b""


async def ask(health: Health, path: str, *, look: Refresh = nothing, method: str = "GET") -> httpx2.Response:
    pages = httpx2.ASGITransport(app=plain_site(health, look=look, scrape=no_metrics))
    async with httpx2.AsyncClient(transport=pages, base_url="http://localhost") as client:
        return await client.request(method, path)


def started(**facts: object) -> Health:
    health = Health(store_problem="", **facts)  # type: ignore[arg-type]
    for phase in PHASES:
        health.enter(phase)
    return health


def looking_at(health: Health, db: Store) -> Callable[[], Awaitable[None]]:
    """As the app does it."""

    async def look() -> None:
        health.store_problem = await observe.store_problem(db)

    return look


# ── live ──


async def test_live_answers_although_nothing_else_is_well() -> None:
    async def broken() -> None:
        raise AssertionError("live must not look")

    answer = await ask(Health(draining=True), "/health/live", look=broken)
    assert (answer.status_code, answer.json()) == (200, {"status": "live", "version": __version__})


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/health/startup", "/metrics"])
async def test_a_probe_may_ask_for_the_head_only(path: str) -> None:
    answer = await ask(started(), path, method="HEAD")
    assert (answer.status_code, answer.content) == (200, b"")


async def test_there_is_nothing_to_post_to() -> None:
    assert (await ask(started(), "/health/live", method="POST")).status_code == 405


# ── startup ──


async def test_startup_names_the_phase_and_what_it_waits_for() -> None:
    health = Health()
    health.enter("settings")
    health.waiting_for = "PostgreSQL at db:5432/holdfast cannot be reached"
    answer = await ask(health, "/health/startup")
    assert answer.status_code == 503
    assert answer.json() == {
        "started": False,
        "passed": ["settings"],
        "phase": "store",
        "waiting_for": "PostgreSQL at db:5432/holdfast cannot be reached",
    }


async def test_a_phase_that_is_over_waits_for_nothing() -> None:
    health = Health(waiting_for="the store")
    health.enter("settings")
    assert health.waiting_for == ""


async def test_startup_is_over_when_every_phase_was_passed() -> None:
    answer = await ask(started(), "/health/startup")
    assert answer.status_code == 200
    assert answer.json() == {"started": True, "passed": list(PHASES), "phase": None, "waiting_for": ""}


# ── ready ──


async def test_ready_when_started_and_the_store_answers_with_the_right_schema(db: Database) -> None:
    health = started()
    health.store_problem = "not looked yet"
    answer = await ask(health, "/health/ready", look=looking_at(health, db))
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


@pytest.mark.parametrize(
    ("health", "reason"),
    [
        (Health(), "starting"),
        (Health(waiting_for="the store is away"), "the store is away"),
        (started(draining=True), "draining: this replica is stopping"),
        (started(beat_problem="the database file cannot be written"), "the database file cannot be written"),
    ],
)
async def test_not_ready_says_why_and_when_to_ask_again(health: Health, reason: str) -> None:
    answer = await ask(health, "/health/ready")
    assert (answer.status_code, answer.json()) == (503, {"status": "not ready", "reason": reason})
    assert answer.headers["retry-after"] == "5"


async def test_not_ready_while_the_store_is_away_and_ready_again_by_itself(db: Database) -> None:
    health, moody = started(), Moody(db)
    moody.reading = StoreUnavailable("PostgreSQL at db:5432 cannot be reached: refused")
    away = await ask(health, "/health/ready", look=looking_at(health, moody))
    assert (away.status_code, away.json()["reason"]) == (503, "PostgreSQL at db:5432 cannot be reached: refused")
    moody.reading = None
    assert (await ask(health, "/health/ready", look=looking_at(health, moody))).status_code == 200


async def test_a_store_that_hangs_is_a_quick_no(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Moody):
        async def read(self, fn: object) -> None:  # type: ignore[override]
            await asyncio.Event().wait()

    monkeypatch.setattr(observe, "PROBE_DEADLINE", 0.05)
    assert await observe.store_problem(Silent(db)) == "the store did not answer in 0.05 s"


async def test_a_scrape_of_a_store_that_hangs_looks_once(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    class Silent(Moody):
        async def read(self, fn: object) -> None:  # type: ignore[override]
            nonlocal looks
            looks += 1
            await asyncio.Event().wait()

    monkeypatch.setattr(observe, "PROBE_DEADLINE", 0.05)
    watch, silent, second = Watch(), Silent(db), timedelta(seconds=1)
    gauges = Inventory(db=silent, metrics=watch.metrics, clock=SystemClock(), every=second, series=10)
    await observe.scrape(silent, watch.metrics, "me", second, gauges)
    assert looks == 1
    assert watch.metric("store_up") == 0


async def test_not_ready_on_a_schema_of_another_version(db: Database) -> None:
    await update(db, "INSERT INTO schema_migrations (version, name, digest) VALUES (9999, 'later_contract', '')")
    assert await observe.store_problem(db) == "the schema is not the one this version needs"


async def test_a_heartbeat_that_cannot_be_written_makes_a_replica_unready_until_it_can(db: Database) -> None:
    moody = Moody(db)
    async with working(moody, [kind("k", done)], ttl=timedelta(seconds=0.6)) as worker:
        health = worker.watch.health
        moody.before = StoreUnavailable("the disk is full")
        await eventually(lambda: health.beat_problem == "the disk is full")
        moody.before = None
        await eventually(lambda: not health.beat_problem)
