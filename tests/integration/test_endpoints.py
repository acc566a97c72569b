"""Endpoints that people declare: watched by the engine, shown with their certificates, told of when they are wrong."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.api import BASE, Asker, Desk, a_desk, another
from tests.support.lifecycle import House
from tests.support.reaper import PATIENCE

from holdfast.core.access import Role
from holdfast.core.endpoint import Endpoint, Sighting, SightingProblem
from holdfast.engine import sweep, watch
from holdfast.engine.notifications import duties
from holdfast.operations.endpoints.watching import WATCH, expected_of
from holdfast.ports import no_points
from holdfast.store import endpoints, journal
from holdfast.store.database import Database
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio
NAME = "www.example.org"
EVERY = timedelta(minutes=10)


@dataclass
class Sky:
    """What there is to see, by host."""

    shows: dict[str, Sighting] = field(default_factory=dict)
    looked: list[str] = field(default_factory=list)
    gate: asyncio.Event | None = None  # looks wait for it

    async def look(self, place: Endpoint) -> Sequence[Sighting]:
        self.looked.append(place.host)
        if self.gate is not None:
            await self.gate.wait()
        gone = Sighting(address="", problem=SightingProblem.UNREACHABLE, why=f"{place.host} has no address")
        return [self.shows.get(place.host, gone)] * place.samples


def a_stranger(name: str = NAME, *, days: float = 60) -> Sighting:
    ends = datetime.now(UTC) + timedelta(days=days)
    return Sighting(address="192.0.2.1", leaf="cc" * 32, chain=("cc" * 32,), names=(name,), not_after=ends)


async def current(house: House, name: str = NAME) -> Sighting:
    """What a server with the version in use shows."""
    held = (await house.view(name)).current
    assert held is not None
    found = expected_of(held, "")
    return replace(a_stranger(name), leaf=found.leaf, chain=(found.leaf, *found.chain), not_after=held.not_after)


@dataclass
class Ground:
    desk: Desk
    admin: Asker
    sky: Sky

    @property
    def db(self) -> Database:
        return self.desk.house.db

    async def checked(self, name: str = NAME) -> Any:
        return await self.admin.post(f"/endpoints/{name}/check")

    async def worked(self, times: int = 1) -> None:
        """Let the watch look at every endpoint so many times."""
        for _ in range(times):
            before, number = len(self.sky.looked), await self.db.read(lambda tx: sum(endpoints.counts(tx).values()))
            await self.desk.house.hurry()
            kinds = [watch.kind(self.db, self.sky.look, EVERY)]
            async with self.desk.house.working(kinds=kinds, only=True):
                await self.desk.house.until(lambda want=before + number: len(self.sky.looked) >= want)  # type: ignore[misc]
                await self._settled()

    async def _settled(self) -> None:
        async def none() -> bool:
            rows = await self.db.read(lambda tx: tx.rows("SELECT id FROM jobs WHERE state = 'running'"))
            return not rows

        await self.desk.house.until(none)

    async def events(self, name: str = NAME) -> list[str]:
        row = await self.db.read(lambda tx: endpoints.by_name(tx, name))
        assert row is not None
        return [each.name for each in await self.db.read(lambda tx: journal.events_after(tx, 0, subject=row.id))]

    async def told(self) -> list[tuple[str, str]]:
        rows = await self.db.read(lambda tx: tx.rows("SELECT event, title FROM notifications ORDER BY id"))
        return [(row["event"], row["title"]) for row in rows if row["event"].startswith("endpoint.")]


@pytest.fixture
async def ground(db: Database, tmp_path: Path):  # type: ignore[no-untyped-def]
    async with a_desk(db, tmp_path) as desk:
        sky = Sky()
        app = another(replace(desk.services, look=sky.look))
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=BASE) as http:
            seeing = replace(desk, app=app, http=http)
            async with desk.house.working():
                await (await desk.as_()).post("/certificates", {"names": [NAME], "owner": "web"}, Prefer="wait=30")
            yield Ground(seeing, await seeing.as_(), sky)


async def test_an_endpoint_is_watched_from_when_it_is_added(ground: Ground) -> None:
    added = await ground.admin.post("/endpoints", {"place": NAME, "certificate": NAME})
    assert (added["name"], added["place"], added["owner"]) == (NAME, f"tls://{NAME}:443", "web")
    assert (added["reason_code"], added["certificate"]) == (None, NAME)
    ground.sky.shows[NAME] = await current(ground.desk.house)
    await ground.worked()
    seen = await ground.admin.get(f"/endpoints/{NAME}")
    assert seen["reason"] == f"1 of 1 sample at 192.0.2.1 shows the current version of {NAME}."
    assert (seen["reason_code"], seen["troubled"], seen["seen"][0]["outcome"]) == ("OK", False, "new")
    assert datetime.fromisoformat(seen["next_check_at"]) > datetime.now(UTC) + EVERY / 20
    [shown] = (await ground.admin.get(f"/certificates/{NAME}"))["endpoints"]
    assert (shown["name"], shown["reason_code"]) == (NAME, "OK")
    [listed] = (await ground.admin.get("/certificates"))["items"]
    assert listed["endpoints"] == [shown]
    await ground.worked(2)
    assert await ground.events() == ["endpoint.added", "endpoint.served"], "one event for three looks"
    assert await ground.told() == []


async def test_a_renewed_certificate_is_old_at_its_endpoint_until_it_is_seen(ground: Ground) -> None:
    await ground.admin.post("/endpoints", {"place": NAME, "certificate": NAME})
    old = ground.sky.shows[NAME] = await current(ground.desk.house)
    assert (await ground.checked())["reason_code"] == "OK"
    async with ground.desk.house.working():
        await ground.admin.post(f"/certificates/{NAME}/renew", Prefer="wait=30")
    assert (await ground.checked())["reason_code"] == "ENDPOINT_OLD"
    ground.sky.shows[NAME] = replace(old, not_after=datetime.now(UTC) + timedelta(days=2))
    assert (await ground.checked())["reason_code"] == "ENDPOINT_EXPIRING"
    assert await ground.told() == [
        ("endpoint.expiring", f"Endpoint {NAME} shows a certificate that expires in 48 hours")
    ]
    ground.sky.shows[NAME] = await current(ground.desk.house)
    assert (await ground.checked())["reason_code"] == "OK"


async def test_drift_is_told_once_and_its_end_too(ground: Ground) -> None:
    await ground.admin.post("/endpoints", {"place": NAME, "certificate": NAME})
    ground.sky.shows[NAME] = a_stranger()
    await ground.worked(3)
    assert await ground.told() == [
        ("endpoint.drift", f"Endpoint {NAME} shows a certificate that is not expected there")
    ]
    [row] = (await ground.admin.get("/endpoints", troubled=True))["items"]
    assert (row["name"], row["troubled"]) == (NAME, True)
    ground.sky.shows[NAME] = await current(ground.desk.house)
    await ground.worked()
    await duties.watch(ground.db, timedelta(minutes=2))
    rows = await ground.db.read(lambda tx: tx.rows("SELECT key FROM outages"))
    assert [row["key"] for row in rows if row["key"].startswith("endpoint/")] == []
    assert (await ground.admin.get("/endpoints", troubled=True))["items"] == []


async def test_one_look_that_reaches_nothing_is_no_alert_and_three_are(ground: Ground) -> None:
    await ground.admin.post("/endpoints", {"place": NAME})
    await ground.worked(2)
    assert await ground.told() == []
    assert (await ground.admin.get("/endpoints", troubled=True))["items"] == []
    await ground.worked(2)
    assert await ground.told() == [("endpoint.unreachable", f"Endpoint {NAME} cannot be reached")]
    assert len((await ground.admin.get("/endpoints", troubled=True))["items"]) == 1


@pytest.mark.parametrize(
    ("sighting", "reason", "event"),
    [
        (a_stranger(days=5), "ENDPOINT_EXPIRING", "endpoint.expiring"),
        (a_stranger("other.example.org"), "ENDPOINT_WRONG_NAME", "endpoint.wrong_name"),
        (replace(a_stranger(), gap="it is alone"), "ENDPOINT_MISSING_INTERMEDIATE", "endpoint.missing_intermediate"),
    ],
)
async def test_an_endpoint_that_stands_alone_is_watched_as_well(
    ground: Ground, sighting: Sighting, reason: str, event: str
) -> None:
    await ground.admin.post("/endpoints", {"place": NAME})
    ground.sky.shows[NAME] = sighting
    assert (await ground.checked())["reason_code"] == reason
    assert [each for each, _ in await ground.told()] == [event]


async def test_a_job_that_vanished_is_given_back(ground: Ground) -> None:
    await ground.admin.post("/endpoints", {"place": NAME})
    await ground.db.write(lambda tx: tx.run("DELETE FROM jobs WHERE kind = :kind", kind=WATCH))
    assert await sweep.reconcile(ground.db, [watch.owed(SystemRandom())], no_points) == 1
    await ground.worked()
    assert ground.sky.looked == [NAME]


async def test_a_look_at_what_was_changed_meanwhile_is_not_kept(ground: Ground) -> None:
    await ground.admin.post("/endpoints", {"place": NAME})
    row = await ground.db.read(lambda tx: endpoints.by_name(tx, NAME))
    assert row is not None
    ground.sky.shows[NAME] = a_stranger()
    await ground.checked()
    changed = await ground.admin("PATCH", f"/endpoints/{NAME}", {"samples": 3}, headers={"If-Match": "*"})
    assert (changed.status_code, changed.json()["reason_code"]) == (200, None)
    last = (await ground.db.read(lambda tx: endpoints.by_name(tx, NAME))).last  # type: ignore[union-attr]
    assert last is None
    found = (await ground.checked())["seen"]
    assert found[0]["samples"] == 3


async def test_a_deleted_endpoint_is_looked_at_no_more(ground: Ground) -> None:
    await ground.admin.post("/endpoints", {"place": NAME})
    assert (await ground.admin("DELETE", f"/endpoints/{NAME}")).status_code == 204
    assert await ground.db.read(lambda tx: tx.rows("SELECT id FROM jobs WHERE kind = :kind", kind=WATCH)) == []
    assert (await ground.admin("GET", f"/endpoints/{NAME}")).json()["code"] == "no-such-endpoint"


async def test_a_confined_token_has_endpoints_of_its_own_and_sees_no_others(ground: Ground) -> None:
    await ground.admin.post("/endpoints", {"place": NAME, "certificate": NAME})
    mine = await ground.desk.as_(Role.OPERATOR, owners=("mine",))
    added = await mine.post("/endpoints", {"place": "mine.example.org"})
    assert added["owner"] == "mine"
    assert [each["name"] for each in (await mine.get("/endpoints"))["items"]] == ["mine.example.org"]
    assert (await mine("POST", f"/endpoints/{NAME}/check")).json()["code"] == "no-such-endpoint"
    theirs = await mine("POST", "/endpoints", {"place": "b.example.org", "certificate": NAME})
    assert theirs.json()["code"] == "no-such-certificate"
    given_away = await mine("PATCH", "/endpoints/mine.example.org", {"owner": "web"}, headers={"If-Match": "*"})
    assert given_away.json()["code"] == "forbidden"


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"place": "gopher://a.example"}, "endpoint-refused"),
        ({"place": "a.example:0"}, "endpoint-refused"),
        ({"place": "a_b.example"}, "name-characters"),
        ({"place": "a.example", "addresses": ["nowhere"]}, "ip-malformed"),
        ({"place": "a.example", "samples": 51}, "invalid-request"),
        ({"place": "a.example", "twin": NAME}, "endpoint-refused"),
        ({"place": "a.example", "certificate": "unknown.example"}, "no-such-certificate"),
        ({"place": NAME}, "endpoint-exists"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_a_code(ground: Ground, asked: dict[str, Any], code: str) -> None:
    await ground.admin.post("/endpoints", {"place": NAME})
    answer = await ground.admin("POST", "/endpoints", asked)
    assert answer.json()["code"] == code, answer.text


async def test_one_asker_waits_for_a_few_checks_at_once(ground: Ground) -> None:
    await ground.admin.post("/endpoints", {"place": NAME})
    gate = ground.sky.gate = asyncio.Event()
    under_way = [asyncio.create_task(ground.admin("POST", f"/endpoints/{NAME}/check")) for _ in range(4)]
    await ground.desk.house.until(lambda: len(ground.sky.looked) == 4)
    refused = await ground.admin("POST", f"/endpoints/{NAME}/check")
    assert (refused.status_code, refused.json()["code"]) == (429, "too-many-checks")
    assert "retry-after" in refused.headers
    gate.set()
    assert {each.status_code for each in await asyncio.gather(*under_way)} == {200}
    assert (await ground.admin("POST", f"/endpoints/{NAME}/check")).status_code == 200


async def test_twins_are_both_expected(ground: Ground) -> None:
    async with ground.desk.house.working():
        wanted = {"names": [NAME], "name": "rsa", "key": "rsa-2048"}
        await ground.admin.post("/certificates", wanted, Prefer=f"wait={PATIENCE:.0f}")
    added = await ground.admin.post("/endpoints", {"place": NAME, "certificate": NAME, "twin": "rsa"})
    assert added["both_keys"]
    ground.sky.shows[NAME] = replace(await current(ground.desk.house), key="ecdsa")
    assert (await ground.checked())["reason_code"] == "OK"
    ground.sky.shows[NAME] = replace(await current(ground.desk.house, "rsa"), key="ecdsa")
    assert (await ground.checked())["reason_code"] == "ENDPOINT_DRIFT"
