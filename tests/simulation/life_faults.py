"""What can go wrong with certificates: besides the engine's own faults, CAs with moods, and people at the worst time.

The database's clock is not set here: what expires then has expired, and the errands have that fault.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.core.certificate import CertificateState
from holdfast.errors import StoreError, UserError
from holdfast.operations.certificates import lifecycle
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.store import certificates as rows
from tests.simulation.asking import ask
from tests.simulation.authority import Authority
from tests.simulation.faults import OF_THE_ENGINE, Fault
from tests.simulation.life_stage import LifeStage
from tests.simulation.node import Killed

REST: Final = 1500.0  # seconds between two moods of a CA: one that is never there lets everything expire, and rightly
PASSING: Final = (StoreError, Killed)


# ── CAs ──


async def ca_down(stage: LifeStage) -> None:
    if (ca := _rested(stage)) is not None:
        ca.down_until = _until(stage, ca)


async def rate_limit_storm(stage: LifeStage) -> None:
    """429, with a Retry-After that is right, too short, or not there at all."""
    if (ca := _rested(stage)) is not None:
        ca.storm_until = _until(stage, ca)
        ca.storm_says = stage.dice.choice([None, ca.storm_until - stage.loop.time(), 30.0])


async def issues_late(stage: LifeStage) -> None:
    """Orders are taken, and the certificates come much later."""
    if (ca := _rested(stage)) is not None:
        ca.late_until = stage.loop.time() + stage.within(10, 60)


async def refuses(stage: LifeStage) -> None:
    if (ca := _rested(stage)) is not None:
        ca.refuses_until = stage.loop.time() + stage.within(10, 60)


async def wrong_certificates(stage: LifeStage) -> None:
    """For somebody else's key: they must never be put in use."""
    if (ca := _rested(stage)) is not None:
        ca.errs_until = stage.loop.time() + stage.within(50, 400)


async def hurries(stage: LifeStage) -> None:
    """The CA wants some certificates renewed now (RFC 9773): it is about to revoke them."""
    ca = stage.dice.choice(list(stage.cas.values()))
    for serial in ca.by_serial:
        if stage.dice.random() < 0.3:
            ca.hurried.setdefault(serial, stage.loop.time())


def _rested(stage: LifeStage) -> Authority | None:
    """A CA that has been well for a while."""
    ca = stage.dice.choice(list(stage.cas.values()))
    return ca if stage.loop.time() > ca.moody_until + REST else None


def _until(stage: LifeStage, ca: Authority) -> float:
    ca.moody_until = stage.loop.time() + stage.within(10, 400)
    return ca.moody_until


# ── people ──


async def renewed_by_hand(stage: LifeStage) -> None:
    await _somebody(stage, lambda context, name: ask(context, lifecycle.renew, ref=name))


async def cancelled(stage: LifeStage) -> None:
    await _somebody(stage, lambda context, name: ask(context, lifecycle.cancel, ref=name, why="a whim"))


async def revoked(stage: LifeStage) -> None:
    await _somebody(stage, lambda context, name: ask(context, lifecycle.revoke, ref=name, reason="superseded"))


async def changed(stage: LifeStage) -> None:
    """One more name: a new generation, whatever is under way."""
    wider = f"x{int(stage.loop.time())}.example.net"
    await _somebody(stage, lambda context, name: ask(context, lifecycle.change, ref=name, names=[name, wider]))


async def _somebody(stage: LifeStage, act: Callable[[CertificateContext, str], Awaitable[object]]) -> None:
    """At a replica that lives, about any certificate; a refusal is an answer, and a lost one is not repeated."""
    names = stage.truth.peek(lambda tx: [each.name for each in rows.page(tx, state=CertificateState.ACTIVE)])
    living = [stage.keepers[node.holder] for node in stage.standing]
    if not names or not living:
        return
    with contextlib.suppress(UserError, *PASSING):
        await act(stage.dice.choice(living), stage.dice.choice(names))


ALL: Final[tuple[Fault[LifeStage], ...]] = (
    *OF_THE_ENGINE, ca_down, rate_limit_storm, issues_late, refuses, wrong_certificates, hurries,
    renewed_by_hand, cancelled, revoked, changed,
)  # fmt: skip
