"""Two replicas, a CA with moods, and people who do everything at once: when it is quiet again, all is well."""

import asyncio
import random
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.lifecycle import House, TruthfulCa, a_house

from holdfast.core.status import Phase
from holdfast.engine import sweep
from holdfast.engine.issuance import duties as issuance_duties
from holdfast.engine.issuance import renewals
from holdfast.errors import Refused, TryLater, UserError
from holdfast.issuers.base import Failed, Look
from holdfast.ports import no_points
from holdfast.store import journal
from holdfast.store.database import Database
from holdfast.store.tx import Tx

pytestmark = pytest.mark.anyio
NUMBER = 24


class Moody(TruthfulCa):
    """Fails a third of all calls, in every way there is."""

    def __init__(self, seed: int) -> None:
        super().__init__(proofs=True, polls=1)
        self.dice = random.Random(seed)
        self.calm = False

    def _call(self, name: str) -> Look | None:
        mood = 1.0 if self.calm else self.dice.random()
        if mood < 0.15:
            raise TryLater("connection reset", reason="CA_DOWN")
        if mood < 0.20 and name != "revoke":  # that would be a person's
            raise Refused("not today", reason="CA_REFUSED")
        if mood < 0.25:
            raise TryLater("slow down", after=timedelta(seconds=5), reason="CA_RATE_LIMITED")
        if mood < 0.30 and name == "look":
            return Failed(why="it went wrong", reason="VALIDATION_FAILED")
        return super()._call(name)


async def people(house: House, dice: random.Random) -> None:
    for n in range(60):
        name, who = f"n{dice.randrange(NUMBER)}.example.com", f"local:{n}"
        act = dice.choice(["renew", "cancel", "pause", "change", "revoke", "owner"])
        with suppress(UserError):
            if act == "renew":
                await house.renew(name, actor=who)
            elif act == "cancel":
                await house.cancel(name, actor=who, why="a whim")
            elif act == "pause":
                await house.set_state(name, "paused", actor=who)
                await house.set_state(name, "resumed", actor=who)
            elif act == "change":
                await house.change(name, names=[name, f"x{n}.example.com"], actor=who)
            elif act == "owner":
                await house.change(name, owner=f"team-{n}", actor=who)
            else:
                await house.revoke(name, reason=4, actor=who)
        await asyncio.sleep(0.01)


async def engine(house: House, over: asyncio.Event) -> None:
    """What the loops do, without their pauses."""
    while not over.is_set():
        await house.db.write(lambda tx: tx.run("UPDATE issuers SET breaker_until = NULL, breaker_probe = NULL"))
        await house.db.write(lambda tx: tx.run("UPDATE budgets SET not_before = NULL"))
        await house.hurry()
        await renewals.sweep_due(house.certificate_context)
        await renewals.sweep_ari(house.certificate_context)
        await sweep.retry_failed(house.db, no_points)
        await sweep.reconcile(house.db, issuance_duties.families(house.certificate_context), no_points)
        await asyncio.sleep(0.02)


def _no_waiting(tx: Tx) -> None:
    """Neither after failures nor after cancellations: the clock of PostgreSQL cannot be moved."""
    tx.run(
        """UPDATE certificates SET next_action_at = now_us(), last_failure_at = NULL, version = version + 1
            WHERE next_action_at > now_us() AND (last_failure_at IS NOT NULL OR next_cause = 'CANCELLED')"""
    )


async def test_after_all_turmoil_every_certificate_is_good_or_has_its_next_step(db: Database, tmp_path: Path) -> None:
    dice = random.Random(4)
    house = await a_house(db, tmp_path)
    ca = house.cas["ca"] = Moody(4)
    limits = {"requests": [10_000, 0.0001], "orders": [10_000, 0.0001]}
    await house.change_issuer("ca", {"limits": limits}, actor="local:op")
    for n in range(NUMBER):
        await house.ask(f"n{n}.example.com")
    over = asyncio.Event()
    async with house.working(holder="a"), house.working(holder="b"):
        loops = asyncio.create_task(engine(house, over))
        await asyncio.gather(people(house, dice), people(house, random.Random(5)))
        ca.calm = True

        async def all_good() -> bool:
            await db.write(_no_waiting)
            views = [await house.view(f"n{n}.example.com") for n in range(NUMBER)]
            return all(view.status.phase is Phase.OK for view in views)

        await house.until(all_good)
        over.set()
        await loops
    assert house.watch.log.told("job.crashed") == []
    assert await db.read(lambda tx: tx.rows("SELECT id, last_error FROM jobs WHERE state = 'dead'")) == []
    verdict = await db.read(journal.verify)
    assert verdict.ok, verdict.problem
    current = await db.read(
        lambda tx: tx.rows("SELECT certificate FROM certificate_versions WHERE state IN ('active', 'imported')")
    )
    assert len(current) == len({row["certificate"] for row in current}) == NUMBER
    orphans = await db.read(
        lambda tx: tx.rows(
            """SELECT id FROM secrets WHERE id NOT IN (SELECT key_secret FROM certificate_versions)
                  AND id NOT IN (SELECT key_secret FROM issuances WHERE key_secret IS NOT NULL)"""
        )
    )
    assert orphans == []
