"""What keeps certificates without being asked, in one place for the app: its jobs, its families, its duties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from holdfast.core.job import Spec
from holdfast.engine import ari, clean, issue, leaving, renew, revoke, turns, withdraw
from holdfast.engine.issue import Tools
from holdfast.engine.kind import Kind
from holdfast.engine.replica import Every
from holdfast.engine.sweep import Owed
from holdfast.operations import approvals, issuing
from holdfast.operations.issuing import Keeper
from holdfast.store import challenge_responses
from holdfast.store.tx import Tx

PAGE: Final = 200
PROOFS_FOR: Final = timedelta(days=10)  # a proof of an attempt that nobody finished


def kinds(tools: Tools) -> list[Kind]:
    return [issue.kind(tools), ari.kind(tools), revoke.kind(tools), withdraw.kind(tools), clean.kind(tools)]


def families(keeper: Keeper) -> list[Owed]:
    """What the reconciler looks after."""
    return [_issuances(keeper), revoke.owed(keeper), withdraw.owed(keeper)]


def _issuances(keeper: Keeper) -> Callable[[Tx], Sequence[Spec]]:
    def specs(tx: Tx) -> Sequence[Spec]:
        return issuing.owed(tx, [keeper.random.new_id("job") for _ in range(PAGE)])

    return specs


def duties(
    keeper: Keeper,
    *,
    renewal: timedelta = timedelta(minutes=1),
    ask: timedelta = timedelta(minutes=5),
    turn: timedelta = timedelta(minutes=5),
    approval: timedelta = timedelta(minutes=10),
    cleanup: timedelta = timedelta(hours=1),
    history_for: timedelta = timedelta(days=90),
) -> list[Every]:
    """A look costs next to nothing if nothing is due, so it may be often: certificates that live hours need it."""
    return [
        Every(name="renewal", period=renewal, duty=partial(renew.sweep, keeper)),
        Every(name="turns", period=turn, duty=partial(turns.deal, keeper)),
        Every(name="fallback", period=turn, duty=partial(leaving.leave, keeper)),
        Every(name="ari", period=ask, duty=partial(ari.sweep, keeper)),
        Every(name="approval_timeout", period=approval, duty=partial(approvals.time_out, keeper)),
        Every(name="proof_cleanup", period=cleanup, duty=partial(forget_proofs, keeper)),
        Every(name="issuance_cleanup", period=cleanup, duty=partial(forget_issuances, keeper, history_for)),
    ]


async def forget_proofs(keeper: Keeper) -> int:
    """Drop proofs that are long of no use."""
    total = 0
    while done := await keeper.db.write(lambda tx: challenge_responses.forget_old(tx, tx.now() - PROOFS_FOR)):
        total += done
    return total


async def forget_issuances(keeper: Keeper, history_for: timedelta) -> int:
    """Drop attempts that are long over: one that failed hourly for years must not fill the disk."""
    total = 0
    while done := await keeper.db.write(lambda tx: issuing.forget_old(tx, tx.now() - history_for)):
        total += done
    return total
