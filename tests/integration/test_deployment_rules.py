"""What holds a deployment, and what one that fails does to others: waves, freezes, windows, shared tests."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError
from tests.support.deploying_house import Yard, a_look
from tests.support.engine import eventually
from tests.support.lifecycle import a_house
from tests.support.notifications import a_newsroom

from holdfast.core.deployment import Deployment, DeploymentState
from holdfast.core.notifications.notification import Routing, Severity
from holdfast.core.reasons import Reason
from holdfast.core.status import Phase
from holdfast.deployers.kind import LocalRules, Program
from holdfast.engine import sweep
from holdfast.engine.deployment import drain
from holdfast.errors import UserError
from holdfast.operations.deployment import deployments as manage
from holdfast.operations.deployment import targets as manage_targets
from holdfast.ports import no_points
from holdfast.store import journal
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
NAME = "www.example.com"
INSTALLED = DeploymentState.INSTALLED


def a_program(path: Path, *lines: str) -> Program:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return Program(argv=(str(path),))


@pytest.fixture
async def yard(db: Database, tmp_path: Path) -> Yard:
    (tmp_path / "live").mkdir()
    bad, link = tmp_path / "bad", tmp_path / "live" / "web-1" / "bad.example.com" / "current"
    programs = {
        "reload": a_program(tmp_path / "reload", f"echo x >> {tmp_path}/reloads", f"[ ! -e {tmp_path}/broken ]"),
        "test": a_program(tmp_path / "test", f'[ ! -e {bad} ] || [ "$(readlink {link})" = "$(cat {bad})" ]'),
    }
    rules = LocalRules(folders=(tmp_path / "live",), programs=programs)
    return Yard(await a_house(db, tmp_path), rules, a_look())


async def _add(yard: Yard, folder: Path, name: str, **more: object) -> None:
    (folder / "live" / name).mkdir()
    settings = {"folder": str(folder / "live" / name), "reload": "reload", "test": "test"}
    await yard.add(name, settings=settings, **more)


async def _by_target(yard: Yard) -> dict[str, Deployment]:
    newest: dict[str, Deployment] = {}
    for each in await yard.all(NAME):
        newest.setdefault(each.target, each)
    return newest


async def test_a_rollout_stops_at_the_canary_that_fails_and_goes_on_when_it_is_well(yard: Yard, tmp_path: Path) -> None:
    names = [f"web-{number:02}" for number in range(12)]
    for name in names:
        await _add(yard, tmp_path, name, rollout="web")
    (tmp_path / "broken").touch()
    await yard.house.ask(NAME, targets=tuple(names))
    async with yard.house.working(kinds=yard.kinds):
        await yard.reaches(NAME, DeploymentState.FAILED, "web-00")  # nothing was there before: there is no way back
        await eventually(lambda: _all_held(yard, names[1:]))
        assert [each.name for each in (tmp_path / "live").iterdir() if any(each.iterdir())] == ["web-00"]
        (tmp_path / "broken").unlink()

        async def done() -> bool:
            await yard.hurry()
            return all(each.state is INSTALLED for each in (await _by_target(yard)).values())

        await eventually(done)
    order = sorted((await _by_target(yard)).values(), key=lambda each: each.served_at or each.created_at)
    assert [each.target for each in order[:2]] == ["web-00", "web-01"]


async def _all_held(yard: Yard, names: list[str]) -> bool:
    await yard.hurry()
    found = await _by_target(yard)
    return all(found[name].reason == Reason.WAVE_STOPPED for name in names)


async def test_a_certificate_that_fails_the_shared_test_holds_up_no_other(yard: Yard, tmp_path: Path) -> None:
    await _add(yard, tmp_path, "web-1")
    names = ["a.example.com", "b.example.com", "bad.example.com"]
    for name in names:
        await yard.house.ask(name, targets=("web-1",))
    async with yard.house.working(kinds=yard.kinds):
        for name in names:
            await yard.reaches(name, INSTALLED)
    link = tmp_path / "live" / "web-1" / "bad.example.com" / "current"
    (tmp_path / "bad").write_text(str(link.readlink()))  # from now on the daemon takes no other one
    for name in names:
        await yard.house.renew(name)
    async with yard.house.working():
        for name in names:
            await yard.house.settled(name)
    async with yard.house.working(kinds=yard.kinds):

        async def done() -> bool:
            rows = [(await yard.all(name))[0] for name in names]
            return [each.state for each in rows] == [INSTALLED, INSTALLED, DeploymentState.ROLLED_BACK]

        await eventually(done)
    row = (await yard.all("bad.example.com"))[0]
    assert row.reason == Reason.CONFIG_TEST_FAILED
    assert row.failures >= 1


async def test_a_failed_rollback_is_critical_told_at_once_and_told_again_when_it_is_well(
    yard: Yard, tmp_path: Path
) -> None:
    await _add(yard, tmp_path, "web-1")
    room = a_newsroom(yard.house.db, vault=yard.house.certificate_context.secret_store)
    await room.add("ops", routing=Routing(severities=frozenset(Severity)))
    await yard.house.ask(NAME, targets=("web-1",))
    async with yard.house.working(kinds=yard.kinds):
        await yard.reaches(NAME, INSTALLED)
        (tmp_path / "broken").touch()
        await yard.house.renew(NAME)
        row = await yard.reaches(NAME, DeploymentState.ROLLBACK_FAILED)
        assert (row.reason, row.failures) == (Reason.ROLLBACK_FAILED, 1)
        [told] = [each for each in await room.all() if each.event == "deployment.rollback_failed"]
        assert (told.severity, told.title) == (Severity.CRITICAL, f"{NAME} could not be rolled back on web-1")
        assert told.digest_at is None, "a digest never holds it up"
        status = (await yard.house.view(NAME)).status
        assert (status.phase, status.reason_code) == (Phase.FAILING, Reason.ROLLBACK_FAILED)
        (tmp_path / "broken").unlink()
        await yard.hurry()
        await yard.reaches(NAME, INSTALLED)
    assert "deployment.served" in [each.event for each in await room.all()]


async def test_a_freeze_holds_all_deployments_until_it_ends(yard: Yard, tmp_path: Path) -> None:
    await _add(yard, tmp_path, "web-1")
    await yard.do(manage.freeze, until="2099-01-01T00:00:00Z")
    await yard.house.ask(NAME, targets=("web-1",))
    async with yard.house.working(kinds=yard.kinds):
        row = await yard.reaches(NAME, DeploymentState.HELD)
        assert row.reason == Reason.DEPLOY_FROZEN
        await yard.do(manage.unfreeze)
        await yard.reaches(NAME, INSTALLED)


async def test_a_window_opens_by_the_clocks_of_its_zone(yard: Yard, tmp_path: Path) -> None:
    far = next(zone for zone in ("Pacific/Kiritimati", "Pacific/Niue") if not _opens_soon(zone))
    await _add(yard, tmp_path, "web-1", windows=[{"opens": 720, "closes": 780, "zone": far}])
    await yard.house.ask(NAME, targets=("web-1",))
    async with yard.house.working(kinds=yard.kinds):
        row = await yard.reaches(NAME, DeploymentState.HELD)
    assert (row.reason, row.next_at) == (Reason.DEPLOY_WINDOW, _noon(far))
    with pytest.raises(ValidationError, match="there is no time zone 'Europe/Nowhere'"):
        await yard.do(manage_targets.change, name="web-1", windows=[{"zone": "Europe/Nowhere"}])


def _noon(zone: str) -> datetime:
    """The next one there."""
    now = datetime.now(ZoneInfo(zone))
    noon = now.replace(hour=12, minute=0, second=0, microsecond=0)
    return (noon if now < noon else noon + timedelta(days=1)).astimezone(UTC)


def _opens_soon(zone: str) -> bool:
    return not timedelta(hours=2) < _noon(zone) - datetime.now(UTC) < timedelta(hours=22)


async def test_a_window_never_lets_what_is_served_expire_and_the_audit_log_says_so(yard: Yard, tmp_path: Path) -> None:
    yard.house.cas["ca"].life = timedelta(hours=20)  # less than a day is left of it at once
    await _add(yard, tmp_path, "web-1")
    await yard.house.ask(NAME, targets=("web-1",))
    async with yard.house.working(kinds=yard.kinds):
        await yard.reaches(NAME, INSTALLED)
    with pytest.raises(UserError, match="Between two windows"):
        await yard.do(manage_targets.change, name="web-1", windows=[{"days": [0], "opens": 0, "closes": 1}])
    await yard.do(manage.freeze, until="2099-01-01T00:00:00Z")
    await yard.house.renew(NAME)
    async with yard.house.working():
        await yard.house.settled(NAME)
    async with yard.house.working(kinds=yard.kinds):
        await yard.reaches(NAME, INSTALLED)
    found = await yard.house.db.read(lambda tx: tx.rows("SELECT action FROM audit"))
    assert "deployment_hold_overridden_by_expiry" in [row["action"] for row in found]
    assert await yard.house.db.read(lambda tx: journal.events_after(tx, 0)) != []


async def test_a_target_must_be_there_and_takes_certificates_of_its_owner_only(yard: Yard, tmp_path: Path) -> None:
    await _add(yard, tmp_path, "web-1", owner="shop")
    for wishes, problem in (({"targets": ("web-9",)}, "no target"), ({"targets": ("web-1",)}, "owner 'shop' only")):
        with pytest.raises(UserError, match=problem):
            await yard.house.ask(NAME, **wishes)
    await yard.house.ask(NAME, targets=("web-1",), owner="shop")
    with pytest.raises(UserError, match="is named by www"):
        await yard.do(manage_targets.delete, name="web-1")


async def test_a_lost_job_is_given_back(yard: Yard, tmp_path: Path) -> None:

    await _add(yard, tmp_path, "web-1")
    await yard.house.ask(NAME, targets=("web-1",))
    async with yard.house.working():
        await yard.house.settled(NAME)
    await yard.house.db.write(lambda tx: tx.run("DELETE FROM jobs WHERE kind LIKE 'deploy%'"))
    assert await sweep.reconcile(yard.house.db, [drain.owed], no_points) == 1
    async with yard.house.working(kinds=yard.kinds):
        await yard.reaches(NAME, INSTALLED)
