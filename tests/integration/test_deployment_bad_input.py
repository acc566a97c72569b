"""Bad input of deployments: refused with its reason before anything is touched."""

from pathlib import Path

import pytest
from tests.support.deploying_house import Yard, a_look
from tests.support.lifecycle import a_house

from holdfast.core.deployment import DeploymentState
from holdfast.core.reasons import Reason
from holdfast.deployers.kind import LocalRules
from holdfast.operations.deployment import targets as manage_targets
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio


async def test_names_that_the_target_serves_and_the_certificate_lacks_are_named_and_nothing_is_written(
    db: Database, tmp_path: Path
) -> None:
    live = tmp_path / "live"
    live.mkdir()
    yard = Yard(await a_house(db, tmp_path), LocalRules(folders=(live,)), a_look())
    await yard.add("web-1", settings={"folder": str(live)}, endpoints=["shop.example.com:443"])
    await yard.house.ask("www.example.com", targets=("web-1",))
    async with yard.house.working(kinds=yard.kinds):
        row = await yard.reaches("www.example.com", DeploymentState.FAILED)
        assert row.reason == Reason.BUNDLE_UNFIT
        assert "shop.example.com:443" in (row.error or "")
        assert list(live.iterdir()) == []
        await yard.do(manage_targets.change, name="web-1", endpoints=[])
        await yard.hurry()
        await yard.reaches("www.example.com", DeploymentState.INSTALLED)
