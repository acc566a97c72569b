"""Certificates on their way to a real nginx: written, tested, reloaded and seen; on both stores."""

import stat
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from tests.support.deploying_house import Yard, a_look
from tests.support.engine import eventually
from tests.support.lifecycle import a_house
from tests.support.nginx import Nginx, an_nginx, needs_nginx

from holdfast.core.deployment import DeploymentState
from holdfast.core.endpoint import endpoint_of
from holdfast.core.reasons import Reason
from holdfast.core.status import Phase
from holdfast.deployers.kind import LocalRules, Program
from holdfast.operations.deployment import deployments as manage
from holdfast.operations.deployment import targets as manage_targets
from holdfast.operations.installation.observe import Inventory
from holdfast.store import statistics
from holdfast.store.database import Database
from holdfast.store.tx import Tx, from_micros
from holdfast.world import SystemClock

pytestmark = [pytest.mark.anyio, needs_nginx]
NAME = "www.example.com"
SERVED, FAILED = DeploymentState.SERVED, DeploymentState.FAILED


@pytest.fixture
async def yard(db: Database, tmp_path: Path) -> AsyncIterator[tuple[Yard, Nginx]]:
    with an_nginx(tmp_path) as nginx:
        house = await a_house(db, tmp_path)
        programs = {
            "nginx-test": Program(argv=nginx.test_argv),
            "nginx-reload": Program(argv=nginx.reload_argv),
            "refuses": Program(argv=("/bin/false",)),
            "nothing": Program(argv=("/bin/true",)),
        }
        yield Yard(house, LocalRules(folders=(nginx.live,), programs=programs), a_look()), nginx


async def _first(yard: Yard, nginx: Nginx, *, names: tuple[str, ...] = (NAME,), **more: object) -> None:
    """Certificates that are installed, and an nginx that has been started with them."""
    settings = {"folder": str(nginx.live), "test": "nothing", "reload": "nothing"}
    await yard.add("web-1", settings=settings, **more)
    for name in names:
        await yard.house.ask(name, targets=("web-1",))
    async with yard.house.working(kinds=yard.kinds):
        for name in names:
            await yard.reaches(name, DeploymentState.INSTALLED)
    nginx.configure(*names)
    nginx.start()
    await _shows(yard, nginx)
    changed = {"test": "nginx-test", "reload": "nginx-reload"}
    await yard.do(manage_targets.change, name="web-1", settings=changed, endpoints=[f"127.0.0.1:{nginx.port}"])


async def _shows(yard: Yard, nginx: Nginx) -> str:
    found: list[str] = []

    async def leaf() -> bool:
        [seen] = await yard.look(endpoint_of(f"127.0.0.1:{nginx.port}"))
        found[:] = [seen.leaf]
        return bool(seen.leaf)

    await eventually(leaf)
    return found[0]


async def test_a_renewed_certificate_is_served_by_nginx_and_the_row_says_what_was_seen(
    yard: tuple[Yard, Nginx],
) -> None:
    here, nginx = yard
    await _first(here, nginx)
    before = await _shows(here, nginx)
    await here.house.renew(NAME)
    async with here.house.working(kinds=here.kinds):
        row = await here.reaches(NAME, SERVED)
    assert await _shows(here, nginx) != before
    assert "127.0.0.1" in row.seen
    assert (row.failures, row.next_at, row.error, row.atomic) == (0, None, None, True)
    states = [each.state.value for each in await here.all(NAME)]
    assert states == ["served", "superseded"]
    key = nginx.live / NAME / "current" / "privkey.pem"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    kept = sorted(each.name for each in (nginx.live / NAME).iterdir() if each.name.startswith("bundle-"))
    assert len(kept) == 2  # the one before is kept, to be rolled back to


async def test_a_configuration_that_nginx_refuses_is_rolled_back_before_nginx_reads_it(
    yard: tuple[Yard, Nginx],
) -> None:
    here, nginx = yard
    await _first(here, nginx)
    before = await _shows(here, nginx)
    link = (nginx.live / NAME / "current").readlink()
    nginx.configure(NAME, more="nonsense;")
    await here.house.renew(NAME)
    async with here.house.working(kinds=here.kinds):
        row = await here.reaches(NAME, DeploymentState.ROLLED_BACK)
        assert row.reason == Reason.CONFIG_TEST_FAILED
        assert "nonsense" in (row.error or "")
        assert row.next_at is not None
        assert (nginx.live / NAME / "current").readlink() == link
        assert await _shows(here, nginx) == before
        nginx.configure(NAME)
        await here.hurry()
        await here.reaches(NAME, SERVED)
    assert await _shows(here, nginx) != before


async def test_a_reload_that_does_nothing_is_not_believed(yard: tuple[Yard, Nginx]) -> None:
    here, nginx = yard
    await _first(here, nginx)
    before = await _shows(here, nginx)
    await here.do(manage_targets.change, name="web-1", settings={"reload": "nothing"})
    await here.house.renew(NAME)
    async with here.house.working(kinds=here.kinds):
        row = await here.reaches(NAME, DeploymentState.VERIFYING)
        await eventually(lambda: _looked(here))
        await here.house.db.write(lambda tx: tx.run("UPDATE deployments SET looked_since = looked_since - 3600000000"))
        await here.hurry()
        row = await here.reaches(NAME, FAILED)
    assert row.reason == Reason.DEPLOY_NOT_SERVED
    assert await _shows(here, nginx) == before
    await here.do(manage_targets.change, name="web-1", settings={"reload": "nginx-reload"})
    async with here.house.working(kinds=here.kinds):
        await here.reaches(NAME, SERVED)  # equal bytes: the write is skipped, the reload is not
    assert await _shows(here, nginx) != before


async def _looked(yard: Yard) -> bool:
    return (await yard.all(NAME))[0].tries > 0


async def test_a_failed_reload_is_rolled_back_and_tried_again_later(yard: tuple[Yard, Nginx]) -> None:
    here, nginx = yard
    await _first(here, nginx)
    before = await _shows(here, nginx)
    await here.do(manage_targets.change, name="web-1", settings={"reload": "refuses"})
    await here.house.renew(NAME)
    async with here.house.working(kinds=here.kinds):
        row = await here.reaches(NAME, DeploymentState.ROLLED_BACK)  # that reload failed, too; the old one is seen
    assert row.reason == Reason.RELOAD_FAILED
    assert await _shows(here, nginx) == before
    await here.do(manage_targets.change, name="web-1", settings={"reload": "nginx-reload"})
    async with here.house.working(kinds=here.kinds):
        await here.reaches(NAME, SERVED)


async def test_a_paused_target_holds_its_deployments_until_it_is_resumed(yard: tuple[Yard, Nginx]) -> None:
    here, nginx = yard
    await _first(here, nginx)
    await here.do(manage_targets.pause, name="web-1")
    await here.house.renew(NAME)
    async with here.house.working(kinds=here.kinds):
        row = await here.reaches(NAME, DeploymentState.HELD)
        assert (row.reason, row.next_at) == (Reason.DEPLOY_HELD, None)
        await here.do(manage_targets.resume, name="web-1")
        await here.reaches(NAME, SERVED)


async def test_a_person_rolls_back_and_deploys_again(yard: tuple[Yard, Nginx]) -> None:
    here, nginx = yard
    await _first(here, nginx)
    first = await _shows(here, nginx)
    async with here.house.working(kinds=here.kinds):
        await here.house.renew(NAME)
        await here.reaches(NAME, SERVED)
        second = await _shows(here, nginx)
        await here.do(manage.rollback, ref=NAME)
        row = await here.reaches(NAME, SERVED)
        assert (row.cause, await _shows(here, nginx)) == ("rollback", first)
        await here.do(manage.deploy, ref=NAME)
        row = await here.reaches(NAME, SERVED)
        assert (row.cause, await _shows(here, nginx)) == ("asked", second)


async def test_many_certificates_of_one_daemon_need_one_reload(yard: tuple[Yard, Nginx]) -> None:
    here, nginx = yard
    names = tuple(f"www{number}.example.com" for number in range(6))
    await _first(here, nginx, names=names)
    counter = nginx.folder / "reloads"
    script = nginx.folder / "reload"
    script.write_text(f"#!/bin/sh\necho x >> {counter}\nexec {' '.join(nginx.reload_argv)}\n")
    script.chmod(0o755)
    rules = {**here.local.programs, "nginx-reload": Program(argv=(str(script),))}
    here.local = LocalRules(folders=here.local.folders, programs=rules)
    for name in names:
        await here.house.renew(name)
    async with here.house.working():
        for name in names:
            await here.house.settled(name)
    async with here.house.working(kinds=here.kinds):
        for name in names:
            await here.reaches(name, SERVED)
    assert counter.read_text().count("x") == 1


async def test_a_certificate_that_no_longer_names_a_target_leaves_what_is_there(yard: tuple[Yard, Nginx]) -> None:
    here, nginx = yard
    await _first(here, nginx)
    await here.house.change(NAME, targets=[])
    assert [each.state.value for each in await here.all(NAME)] == ["superseded"]
    assert (nginx.live / NAME / "current" / "fullchain.pem").exists()
    await here.do(manage_targets.delete, name="web-1")


async def test_a_certificate_is_well_when_it_is_served_and_not_when_it_is_held(yard: tuple[Yard, Nginx]) -> None:
    here, nginx = yard
    await _first(here, nginx)
    old = (await here.house.view(NAME)).status
    assert old.phase is Phase.OK
    await here.do(manage_targets.pause, name="web-1")
    await here.house.renew(NAME)
    async with here.house.working(kinds=here.kinds):
        await here.reaches(NAME, DeploymentState.HELD)
    view = await here.house.view(NAME)
    assert (view.status.phase, view.status.reason_code) == (Phase.WAITING, Reason.DEPLOY_HELD)
    assert view.status.expires_at == old.expires_at  # of what is served, and not of what is held
    assert view.status.safe_until == old.safe_until
    assert "web-1: held" in [each.saw for each in view.explain().checks]
    assert await _counted(here) == {("waiting", "DEPLOY_HELD"): 1}
    soon = await here.house.db.read(_ending_first)
    assert soon == old.expires_at, "a list of what ends soon has it, too"
    await here.do(manage_targets.resume, name="web-1")
    async with here.house.working(kinds=here.kinds):
        await here.reaches(NAME, SERVED)
    well = (await here.house.view(NAME)).status
    assert well.phase is Phase.OK
    assert well.expires_at is not None
    assert old.expires_at is not None
    assert well.expires_at >= old.expires_at
    assert await _counted(here) == {("ok", "NOT_DUE"): 1}


async def test_what_is_served_has_expired_though_a_newer_version_is_held(yard: tuple[Yard, Nginx]) -> None:
    here, nginx = yard
    await _first(here, nginx)
    await here.do(manage_targets.pause, name="web-1")
    served = (await here.house.view(NAME)).current
    assert served is not None
    await here.house.renew(NAME)
    async with here.house.working(kinds=here.kinds):
        await here.reaches(NAME, DeploymentState.HELD)
    await here.house.db.write(
        lambda tx: tx.run("UPDATE certificate_versions SET not_after = now_us() - 1 WHERE id = :id", id=served.id)
    )
    status = (await here.house.view(NAME)).status
    assert (status.phase, status.reason_code) == (Phase.EXPIRED, Reason.DEPLOY_HELD)
    assert await _counted(here) == {("expired", "DEPLOY_HELD"): 1}
    looking = Inventory(
        db=here.house.db, metrics=here.house.watch.telemetry.metrics, clock=SystemClock(), every=timedelta(0), series=10
    )
    await looking.refresh()
    shown = generate_latest(looking.metrics.registry).decode()
    assert 'holdfast_certificates_ending{days="0"} 1.0' in shown
    assert 'holdfast_deployments{state="held"} 1.0' in shown
    assert 'holdfast_target_paused{target="web-1"} 1.0' in shown


async def test_a_failing_deployment_shows_in_the_status_and_in_the_counts(yard: tuple[Yard, Nginx]) -> None:
    here, nginx = yard
    await _first(here, nginx)
    nginx.configure(NAME, more="nonsense;")
    await here.house.renew(NAME)
    async with here.house.working(kinds=here.kinds):
        await here.reaches(NAME, DeploymentState.ROLLED_BACK)
    status = (await here.house.view(NAME)).status
    assert (status.phase, status.reason_code, status.attempt) == (Phase.FAILING, Reason.CONFIG_TEST_FAILED, 1)
    assert status.next_attempt_at is not None
    assert await _counted(here) == {("failing", "CONFIG_TEST_FAILED"): 1}
    told = [each.name for each in await here.house.timeline(NAME)]
    assert "deployment.rolling_back" in told
    assert "deployment.failed" in told


def _ending_first(tx: Tx) -> datetime | None:
    row = tx.row("SELECT ends_at FROM certificates ORDER BY ends_at LIMIT 1")
    return None if row is None else from_micros(row["ends_at"])


async def _counted(yard: Yard) -> dict[tuple[str, str], int]:
    return await yard.house.db.read(lambda tx: statistics.phases(tx, {"active": 1}))
