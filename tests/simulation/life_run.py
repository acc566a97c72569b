"""One seed of the lifecycle: ten certificates that live for hours, six hours of faults, then peace."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

from holdfast.core.issuers.budget import Limit
from holdfast.errors import StoreError
from holdfast.operations.certificates import lifecycle
from holdfast.operations.certificates.lifecycle import CertificateExists
from tests.simulation import faults, invariants, life_faults, life_invariants, target_faults, target_invariants
from tests.simulation.asking import ask
from tests.simulation.authority import Authority
from tests.simulation.daemons import Daemon, Machine
from tests.simulation.ground import REPLICAS
from tests.simulation.invariants import Violation
from tests.simulation.life_stage import LifeStage
from tests.simulation.node import Killed
from tests.simulation.run import Result, noted, pass_time, perform, requeue_dead, stop_all

HOUR: Final = 3600.0
FAULTS_FOR: Final = 6 * HOUR
PEACE_FOR: Final = 12 * HOUR
COME_WITHIN: Final = 2 * HOUR
ALL: Final = (*life_faults.ALL, *target_faults.ALL)


def fleet() -> list[dict[str, object]]:
    """One of each kind: another CA to fall back to, none, a window, a key that stays, no ARI."""
    return [
        _wanted(0, "alpha", targets=["web"]),
        _wanted(1, "alpha", targets=["web"]),
        _wanted(2, "alpha", renewal={"ari": False}, targets=["web", "mail"]),
        _wanted(3, "alpha", reuse_key=True, targets=["mail"]),
        _wanted(4, "alpha", "beta", targets=["mail"]),
        _wanted(5, "beta", "alpha"),
        _wanted(6, "beta"),
        _wanted(7, "beta", renewal={"before_s": 4 * HOUR, "ari": False}),
        _wanted(8, "beta", windows=[{"opens": 3 * 60, "closes": 4 * 60}]),
        _wanted(9, "beta", reuse_key=True, renewal={"ari": False}),
    ]


def _wanted(number: int, *issuers: str, **wishes: object) -> dict[str, object]:
    return {"names": [_name(number)], "issuers": issuers, **wishes}


def _name(number: int) -> str:
    return f"n{number}.example.com"


def play_life(seed: int, *, trace: bool = False) -> Result:
    """Run one seed of the lifecycle to its end."""
    return perform(
        lambda loop: LifeStage(loop, seed, replicas=REPLICAS, cas=_cas(), daemons=_daemons()),
        lambda stage, result: _story(stage, result, trace),
        Result(seed, "life"),
    )


def _cas() -> list[Authority]:
    tight, tighter = Limit(burst=2, every=timedelta(seconds=90)), Limit(burst=2, every=timedelta(minutes=2))
    alpha = Authority(name="alpha", life=timedelta(hours=5), orders_limit=tight, asks_proofs=True, ari=True)
    beta = Authority(name="beta", life=timedelta(hours=8), orders_limit=tighter, issue_after=20.0, binding=True)
    for ca in (alpha, beta):  # with the proportions of Let's Encrypt: some of a set in a life, many of a domain
        ca.set_limit, ca.domain_limit = Limit(burst=12, every=ca.life / 2), Limit(burst=20, every=timedelta(minutes=8))
    return [alpha, beta]


def _daemons() -> list[Daemon]:
    """Two machines that serve three certificates, and one that serves three, of which they share one."""
    web = Daemon(name="web", port=443, names=tuple(map(_name, (0, 1, 2))), machines=_machines("10.0.0.1", "10.0.0.2"))
    mail = Daemon(name="mail", port=465, names=tuple(map(_name, (2, 3, 4))), machines=_machines("10.0.0.3"))
    return [web, mail]


def _machines(*addresses: str) -> list[Machine]:
    return [Machine(each) for each in addresses]


async def _story(stage: LifeStage, result: Result, trace: bool) -> None:
    crowds = [stage.dice.uniform(0, COME_WITHIN) for _ in range(2)]  # people come several at once
    people = [stage.loop.create_task(_asks(stage, each, crowds[n % 2])) for n, each in enumerate(fleet())]
    raging = stage.loop.create_task(faults.rage(stage, FAULTS_FOR, noted(stage, result, trace=trace), ALL))
    while not (raging.done() and all(person.done() for person in people)):
        await pass_time(stage, 60)
        stage.truth.look(life_invariants.nothing_expired)
    for finished in (raging, *people):
        await finished
    await _peace(stage)
    life_invariants.all_is_well(stage)
    await stop_all(stage)


async def _asks(stage: LifeStage, wanted: dict[str, object], at: float) -> None:
    """Somebody asks until it is acknowledged; the answer to an earlier try may have been lost."""
    await asyncio.sleep(at + stage.dice.uniform(0, 5))
    while True:
        living = stage.standing
        try:
            if living:
                await ask(stage.keepers[stage.dice.choice(living).holder], lifecycle.request, **wanted)
                return
        except CertificateExists:
            return
        except (StoreError, Killed):
            pass
        await asyncio.sleep(20.0)


async def _peace(stage: LifeStage) -> None:
    """I12: when faults stop, everything due is done. What died for a reason is requeued by a person first."""
    end = stage.loop.time() + PEACE_FOR
    inherited_by, waiting = stage.loop.time() + 6 * stage.ttl, target_invariants.Waiting()
    while stage.loop.time() < end:
        await pass_time(stage, 120)
        stage.truth.look(life_invariants.nothing_expired)
        waiting.look(stage)
        if stage.loop.time() > inherited_by:
            invariants.nothing_is_left_to_the_dead(stage)
        _, wakes = stage.truth.transact(requeue_dead)
        if wakes:
            stage.wake_all()
        if not _left(stage):
            return
    left = _left(stage)
    raise Violation(f"I12: {PEACE_FOR:.0f} s after the last fault {left} are not done")


def _left(stage: LifeStage) -> list[str]:
    unserved = stage.truth.look(lambda tx: target_invariants.unserved(tx, stage))
    return stage.truth.look(life_invariants.unfinished) + unserved
