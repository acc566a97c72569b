"""What can go wrong with targets: they are away, full, deaf or slow, and somebody restores a machine from a backup."""

from __future__ import annotations

import asyncio
from typing import Final

from tests.simulation.daemons import Daemon
from tests.simulation.faults import Fault
from tests.simulation.life_stage import LifeStage


async def target_unreachable(stage: LifeStage) -> None:
    _any(stage).down_until = _until(stage)


async def disk_full(stage: LifeStage) -> None:
    _any(stage).full_until = _until(stage)


async def configuration_broken(stage: LifeStage) -> None:
    """Somebody else's mistake: the daemon would not start with it."""
    _any(stage).invalid_until = _until(stage)


async def reload_refused(stage: LifeStage) -> None:
    _any(stage).refuses_until = _until(stage)


async def reload_without_effect(stage: LifeStage) -> None:
    """Its exit code is 0 all the same."""
    _any(stage).deaf_until = _until(stage)


async def falls_at_a_reload(stage: LifeStage) -> None:
    _any(stage).falls_until = _until(stage)


async def half_of_it_lags(stage: LifeStage) -> None:
    _any(stage).lags_until = _until(stage)


async def restored_from_backup(stage: LifeStage) -> None:
    """One machine, from a copy that was made a while before."""
    daemon = _any(stage)
    daemon.back_up()
    await asyncio.sleep(stage.within(300, 1200))
    daemon.restored_from_backup(stage.dice.choice(daemon.machines))


def _any(stage: LifeStage) -> Daemon:
    return stage.dice.choice(list(stage.daemons.values()))


def _until(stage: LifeStage) -> float:
    return stage.loop.time() + stage.within(10, 300)


ALL: Final[tuple[Fault[LifeStage], ...]] = (
    target_unreachable, disk_full, configuration_broken, reload_refused, reload_without_effect, falls_at_a_reload,
    half_of_it_lags, restored_from_backup,
)  # fmt: skip
