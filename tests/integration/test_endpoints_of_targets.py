"""What a target serves goes on being watched, and what was put back is deployed again; with a real nginx."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support import served
from tests.support.deploying_house import Yard, a_look
from tests.support.engine import eventually
from tests.support.lifecycle import a_house
from tests.support.nginx import Nginx, an_nginx, needs_nginx

from holdfast.core.deployment import DeploymentState
from holdfast.core.endpoint import endpoint_of
from holdfast.core.endpoint_watch import WatchedEndpoint
from holdfast.deployers.kind import LocalRules, Program
from holdfast.engine import watch
from holdfast.operations.deployment import targets as manage_targets
from holdfast.operations.endpoints import manage, watching
from holdfast.store import endpoints
from holdfast.store.database import Database
from holdfast.world import SystemRandom

pytestmark = [pytest.mark.anyio, needs_nginx]
NAME = "www.example.com"
SERVED = DeploymentState.SERVED


class Place:
    """A target of an nginx that serves the certificate."""

    def __init__(self, yard: Yard, nginx: Nginx) -> None:
        self.yard, self.nginx, self.db = yard, nginx, yard.house.db

    async def begin(self) -> None:
        quiet = {"folder": str(self.nginx.live), "test": "nothing", "reload": "nothing"}
        await self.yard.add("web-1", settings=quiet)
        await self.yard.house.ask(NAME, targets=("web-1",))
        async with self.yard.house.working(kinds=self.yard.kinds):
            await self.yard.reaches(NAME, DeploymentState.INSTALLED)
        self.nginx.configure(NAME)
        self.nginx.start()
        await eventually(self.shown)
        where = [f"127.0.0.1:{self.nginx.port}"]
        await self.yard.do(manage_targets.change, name="web-1", settings={"reload": "nginx-reload"}, endpoints=where)
        async with self.yard.house.working(kinds=self.yard.kinds):
            await self.yard.house.renew(NAME)
            await self.yard.reaches(NAME, SERVED)
        assert await self.followed() == 1

    async def followed(self) -> int:
        return await watch.follow_targets(self.db, SystemRandom())

    async def shown(self) -> str:
        [seen] = await self.yard.look(endpoint_of(f"127.0.0.1:{self.nginx.port}"))
        return seen.leaf

    async def row(self) -> WatchedEndpoint:
        [row] = await self.db.read(lambda tx: endpoints.of_target(tx, "web-1"))
        return row

    async def looked(self) -> str:
        """The reason of one more look."""
        row = await self.row()
        sightings = await self.yard.look(row.place)
        await self.db.write(lambda tx: watching.record(tx, row, watching.judge(tx, row, sightings)))
        last = (await self.row()).last
        assert last is not None
        return last.reason.value

    async def serves(self, bundle: str | Path) -> None:
        """Somebody puts another pair in place, and reloads; old workers may answer a few more times."""
        before = await self.shown()
        await asyncio.to_thread(self._put, bundle)

        async def other() -> bool:
            return before not in [await self.shown() for _ in range(10)]

        await eventually(other)

    def _put(self, bundle: str | Path) -> None:
        link = self.nginx.live / NAME / "current"
        os.unlink(link)
        os.symlink(bundle, link)
        subprocess.run(self.nginx.reload_argv, check=True, capture_output=True)

    def bundles(self) -> list[str]:
        return sorted(each.name for each in (self.nginx.live / NAME).iterdir() if each.name.startswith("bundle-"))


@pytest.fixture
async def place(db: Database, tmp_path: Path) -> AsyncIterator[Place]:
    with an_nginx(tmp_path) as nginx:
        programs = {"nginx-reload": Program(argv=nginx.reload_argv), "nothing": Program(argv=("/bin/true",))}
        rules = LocalRules(folders=(nginx.live,), programs=programs)
        found = Place(Yard(await a_house(db, tmp_path), rules, a_look()), nginx)
        await found.begin()
        yield found


async def test_what_a_target_serves_is_watched_with_the_certificate_that_it_should_show(place: Place) -> None:
    row = await place.row()
    assert (row.target, row.name, row.place.name) == ("web-1", f"127.0.0.1:{place.nginx.port}", NAME)
    assert await place.looked() == "OK"
    assert await place.followed() == 0, "nothing is to be changed a second time"
    [seen] = (await place.yard.house.view(NAME)).endpoints
    assert seen.id == row.id


async def test_a_target_that_was_restored_from_a_backup_is_deployed_to_again(place: Place) -> None:
    now = await place.shown()
    await place.serves(place.bundles()[0])
    assert await place.looked() == "ENDPOINT_OLD"
    async with place.yard.house.working(kinds=place.yard.kinds):
        await eventually(lambda: _is_served_again(place))
    assert (await place.yard.all(NAME))[0].cause == "drift"
    assert await place.shown() == now
    assert await place.looked() == "OK"


async def test_a_restore_between_two_looks_that_say_the_same_is_deployed_to_again(place: Place) -> None:
    old = place.bundles()[0]
    await place.serves(old)
    assert await place.looked() == "ENDPOINT_OLD"
    async with place.yard.house.working(kinds=place.yard.kinds):
        await eventually(lambda: _is_served_again(place))
        await place.yard.house.renew(NAME)
        await eventually(lambda: _is_served_again(place, "issued"))
    current = os.readlink(place.nginx.live / NAME / "current")
    await place.serves(next(each for each in place.bundles() if each != current))
    assert await place.looked() == "ENDPOINT_OLD", "no look in between said anything else"
    async with place.yard.house.working(kinds=place.yard.kinds):
        await eventually(lambda: _is_served_again(place))
    assert await place.looked() == "OK"


async def _is_served_again(place: Place, cause: str = "drift") -> bool:
    newest = (await place.yard.all(NAME))[0]
    return (newest.cause, newest.state) == (cause, SERVED)


async def test_what_somebody_else_put_there_is_told_and_left_alone(place: Place) -> None:
    with served.open_folder() as folder:
        pair = served.Issuing(folder).pair(NAME)
        stranger = folder / "stranger"
        stranger.mkdir()
        for name, file in (("fullchain.pem", pair.fullchain), ("privkey.pem", pair.key)):
            (stranger / name).write_bytes(file.read_bytes())
        await place.serves(stranger)
        assert await place.looked() == "ENDPOINT_DRIFT"
    before = len(await place.yard.all(NAME))
    assert await place.looked() == "ENDPOINT_DRIFT"
    assert len(await place.yard.all(NAME)) == before


async def test_an_endpoint_of_a_target_comes_and_goes_with_it(place: Place) -> None:
    row = await place.row()
    with pytest.raises(manage.EndpointRefused, match="belongs to target web-1"):
        await place.yard.do(manage.delete, endpoint=row.name)
    await place.yard.do(manage_targets.change, name="web-1", endpoints=[])
    assert await place.followed() == 1
    assert await place.db.read(lambda tx: endpoints.of_target(tx, "web-1")) == []
