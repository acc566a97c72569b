"""A target is taken out of its balancer for a reload, and is always put back; on both stores."""

from pathlib import Path

import pytest
from tests.support.deploying_house import Yard, a_look
from tests.support.engine import eventually
from tests.support.lifecycle import a_house

from holdfast.core.deployment import DeploymentState
from holdfast.core.reasons import Reason
from holdfast.deployers.kind import LocalRules, Program
from holdfast.errors import UserError
from holdfast.operations.deployment import deployments as manage
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
NAME = "www.example.com"
INSTALLED = DeploymentState.INSTALLED


@pytest.fixture
async def yard(db: Database, tmp_path: Path) -> Yard:
    """Programs that write down that they ran, and fail while a file of that name is there."""
    (tmp_path / "live").mkdir()
    programs = {}
    for name in ("out", "in", "reload"):
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/ran\n[ ! -e {tmp_path}/{name}-fails ]\n")
        script.chmod(0o755)
        programs[name] = Program(argv=(str(script),))
    here = Yard(await a_house(db, tmp_path), LocalRules(folders=(tmp_path / "live",), programs=programs), a_look())
    settings = {"folder": str(tmp_path / "live"), "reload": "reload", "drain": "out", "undrain": "in"}
    await here.add("web-1", settings=settings)
    await here.house.ask(NAME, targets=("web-1",))
    return here


def ran(folder: Path) -> list[str]:
    return (folder / "ran").read_text().split()


async def test_it_is_taken_out_before_the_reload_and_put_back_after_it(yard: Yard, tmp_path: Path) -> None:
    async with yard.house.working(kinds=yard.kinds):
        row = await yard.reaches(NAME, INSTALLED)
    assert ran(tmp_path) == ["out", "reload", "in"]
    assert not row.drained


async def test_it_is_put_back_after_a_reload_that_failed_and_was_rolled_back(yard: Yard, tmp_path: Path) -> None:
    async with yard.house.working(kinds=yard.kinds):
        await yard.reaches(NAME, INSTALLED)
    (tmp_path / "ran").unlink()
    (tmp_path / "reload-fails").touch()
    await yard.house.renew(NAME)
    async with yard.house.working(kinds=yard.kinds):
        row = await yard.reaches(NAME, DeploymentState.ROLLBACK_FAILED)
    assert ran(tmp_path)[0] == "out"
    assert ran(tmp_path)[-1] == "in"
    assert not row.drained


async def test_a_target_that_cannot_be_put_back_is_not_done_before_it_is(yard: Yard, tmp_path: Path) -> None:
    (tmp_path / "in-fails").touch()
    async with yard.house.working(kinds=yard.kinds):
        await eventually(lambda: _waits(yard))
        [row] = await yard.all(NAME)
        assert "still out of its balancer" in (row.error or "")
        assert row.drained
        (tmp_path / "in-fails").unlink()
        await yard.hurry()
        await yard.reaches(NAME, INSTALLED)
    assert ran(tmp_path)[-1] == "in"


async def _waits(yard: Yard) -> bool:
    return [each.reason for each in await yard.all(NAME)] == [Reason.DRAIN_FAILED]


async def test_one_that_cannot_be_taken_out_is_not_reloaded(yard: Yard, tmp_path: Path) -> None:
    (tmp_path / "out-fails").touch()
    async with yard.house.working(kinds=yard.kinds):
        row = await yard.reaches(NAME, DeploymentState.FAILED)
    assert row.reason == Reason.DRAIN_FAILED
    assert ran(tmp_path) == ["out", "in"]


async def test_what_a_crash_left_out_of_its_balancer_is_put_back_by_the_next_claim(yard: Yard, tmp_path: Path) -> None:
    async with yard.house.working(kinds=yard.kinds):
        await yard.reaches(NAME, INSTALLED)
    (tmp_path / "ran").unlink()
    await yard.do(manage.deploy, ref=NAME)
    left = "UPDATE deployments SET state = 'reloading', drained = TRUE, next_at = :now WHERE state = 'queued'"
    await yard.house.db.write(lambda tx: tx.run(left, now=tx.now()))
    async with yard.house.working(kinds=yard.kinds):
        row = await yard.reaches(NAME, INSTALLED)
    assert ran(tmp_path) == ["out", "reload", "in"]
    assert not row.drained


async def test_what_is_taken_out_must_be_put_back(yard: Yard, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="drain and undrain are set together"):
        await yard.add("web-2", settings={"folder": str(tmp_path / "live"), "drain": "out"})
