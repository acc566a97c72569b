"""Long work that a viewer may ask for is bounded, made one at a time and apart, and ends with its asker; SQLite."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest
from tests.support.api import Desk, a_desk, on_a_port
from tests.support.engine import eventually

from holdfast.core.access import Role
from holdfast.core.forecast import MOST_RENEWALS
from holdfast.operations.reckoning import Occupied, Reckoning, TookTooLong
from holdfast.pki.in_thread import Check, aside
from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[], Engine]:
    """One store is enough here: no statement differs."""
    return lambda: SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())


class Endless:
    """Work that never ends by itself, and says when it runs."""

    def __init__(self) -> None:
        self.runs, self.ended = threading.Event(), threading.Event()

    def __call__(self, check: Check) -> None:
        self.runs.set()
        try:
            while True:
                check()
        finally:
            self.ended.set()


async def _begun(reckoning: Reckoning, work: Endless) -> asyncio.Task[None]:
    async def asked() -> None:
        async with reckoning.turn() as run:
            await run(work)

    task = asyncio.create_task(asked())
    await eventually(work.runs.is_set)
    return task


async def test_a_second_piece_of_work_waits_for_its_turn_and_is_told_so() -> None:
    reckoning, work = Reckoning(patience=timedelta(milliseconds=50)), Endless()
    first = await _begun(reckoning, work)
    with pytest.raises(Occupied):
        async with reckoning.turn():
            pytest.fail("it has its turn beside another")
    first.cancel()
    await asyncio.wait([first])
    assert work.ended.is_set()
    async with reckoning.turn() as run:
        assert await run(lambda check: "done") == "done"


async def test_work_that_takes_too_long_is_stopped() -> None:
    reckoning, work = Reckoning(within=timedelta(milliseconds=50)), Endless()
    with pytest.raises(TookTooLong):
        async with reckoning.turn() as run:
            await run(work)
    assert work.ended.is_set()


async def test_signing_and_exporting_do_not_wait_behind_it() -> None:
    """They have the threads of the process: however much is reckoned, they have them all."""
    reckoning, works = Reckoning(), [Endless() for _ in range(40)]
    first = await _begun(reckoning, works[0])
    others = [asyncio.create_task(_asked(reckoning, work)) for work in works[1:]]
    async with asyncio.timeout(30):
        assert await asyncio.gather(*(aside(lambda n=n: n) for n in range(40))) == list(range(40))  # type: ignore[misc]
    for each in (first, *others):
        each.cancel()
    await asyncio.wait([first, *others])


async def _asked(reckoning: Reckoning, work: Endless) -> None:
    async with reckoning.turn() as run:
        await run(work)


@pytest.mark.parametrize(
    "wish", [{"more": 100_000, "months": 36, "lifetime_days": 1}, {"more": 10_000, "months": 12, "lifetime_days": 1}]
)
async def test_a_forecast_of_too_many_renewals_is_refused_at_once(
    db: Database, tmp_path: Path, wish: dict[str, int]
) -> None:
    async with a_desk(db, tmp_path) as desk:
        viewer = await desk.as_(Role.VIEWER)
        async with asyncio.timeout(10):
            answer = await viewer("GET", "/forecast", **wish)
        assert (answer.status_code, answer.json()["code"]) == (400, "forecast-too-long")
        assert f"{MOST_RENEWALS:,}" in answer.json()["detail"]


async def test_a_forecast_for_a_large_fleet_is_still_made(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        viewer = await desk.as_(Role.VIEWER)
        found = await viewer.get("/forecast", more=20_000, months=2, lifetime_days=47)
        assert found["certificates"] == 20_000


async def test_a_forecast_ends_when_its_client_is_gone(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, on_a_port(desk) as address:
        await _gone(desk, address)
        viewer = await desk.as_(Role.VIEWER, name="next")
        async with asyncio.timeout(15):  # the one before would take longer
            assert (await viewer("GET", "/forecast", months=1)).status_code == 200


async def _gone(desk: Desk, address: str) -> None:
    """A client that asks for as much as it may, and leaves once that is begun."""
    headers = {"Authorization": f"Bearer {await desk.token(Role.VIEWER)}"}
    wish = {"more": 100_000, "months": 12, "lifetime_days": 47}
    async with httpx2.AsyncClient(timeout=60) as http:
        asked = asyncio.create_task(http.get(f"{address}/forecast", params=wish, headers=headers))
        await eventually(lambda: desk.services.reckoning.busy)
        asked.cancel()
        await asyncio.wait([asked])
    async with asyncio.timeout(15):
        await eventually(lambda: not desk.services.reckoning.busy)
