"""What can go wrong with errands: besides the engine's own faults, a CA with moods and a clock that is set."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from holdfast.store.work import jobs
from tests.simulation import errands
from tests.simulation.faults import OF_THE_ENGINE, Fault
from tests.simulation.stage import Stage


async def set_the_databases_clock(stage: Stage) -> None:
    stage.set_clock(timedelta(seconds=stage.dice.uniform(-7200, 7200)))


async def ca_down(stage: Stage) -> None:
    stage.ca.down_until = stage.loop.time() + stage.within(10, 400)


async def rate_limit_storm(stage: Stage) -> None:
    stage.ca.storm_until = stage.loop.time() + stage.within(10, 400)


async def impatient_client(stage: Stage) -> None:
    """Somebody asks again for what is under way: there is one job for it, and it stays that one."""
    job = stage.truth.peek(lambda tx: tx.row("SELECT id, subject FROM jobs WHERE state <> 'dead' ORDER BY id LIMIT 1"))
    if job is None:
        return
    again = errands.spec(job["subject"], f"{job['id']}-again")
    answer, _ = stage.truth.transact(lambda tx: jobs.enqueue(tx, again))
    if answer != job["id"]:
        stage.accuse(f"I2: {job['subject']} has a live job, {job['id']}, and was given another, {answer}")


ALL: Final[tuple[Fault[Stage], ...]] = (
    *OF_THE_ENGINE, set_the_databases_clock, ca_down, rate_limit_storm, impatient_client,
)  # fmt: skip
