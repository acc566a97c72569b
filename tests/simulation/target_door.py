"""The way from a simulated replica to a fake target, and to what is seen there: late, or with the reply lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from holdfast.core.deployment_decision import Written
from holdfast.core.endpoint import Endpoint, Sighting
from holdfast.deployers.base import Bundle, later
from tests.simulation.daemons import Daemon
from tests.simulation.node import Node

if TYPE_CHECKING:
    from tests.simulation.life_stage import LifeStage

T = TypeVar("T")

PATIENCE: Final = 60.0  # seconds; then a call is given up


class DoorDeployer:
    """A deployer as the engine knows it, for one replica and one target."""

    def __init__(self, stage: LifeStage, node: Node, daemon: Daemon) -> None:
        self._stage = stage
        self._node = node
        self._daemon = daemon
        self.tested_by = self.reloaded_by = daemon.name

    async def _call(self, act: Callable[[float], T]) -> T:
        stage, node = self._stage, self._node
        stage.sets_out_to(node, self._daemon)
        await node.pass_a_moment()
        answer = act(stage.loop.time())
        if stage.chance("hang"):
            await asyncio.sleep(PATIENCE)
            await node.gate()
            raise later("simulated: no answer")
        if stage.chance("slow"):
            await asyncio.sleep(stage.dice.uniform(1, PATIENCE - 5))
            await node.gate()
        if stage.chance("lost reply"):
            raise later("simulated: the reply was lost")
        return answer

    async def write(self, bundle: Bundle) -> Written:
        return await self._call(lambda now: self._daemon.write(bundle, now))

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        await self._call(lambda now: self._daemon.restore(bundle, previous, now))

    async def test(self) -> None:
        await self._call(self._daemon.test)

    async def reload(self) -> None:
        await self._call(self._daemon.reload)

    async def close(self) -> None:
        """Nothing is open."""


class Eyes:
    """What one replica sees at endpoints."""

    def __init__(self, stage: LifeStage, node: Node) -> None:
        self._stage = stage
        self._node = node

    async def look(self, endpoint: Endpoint) -> tuple[Sighting, ...]:
        await self._node.pass_a_moment()
        daemon = next(each for each in self._stage.daemons.values() if each.port == endpoint.port)
        return daemon.seen(endpoint.name, endpoint.samples, self._stage.loop.time())
