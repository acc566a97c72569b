"""What keeps certificates without being asked, in one place for the app: its jobs, its families, its duties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from holdfast.core.work.job import Spec
from holdfast.engine.issuance import challenges, issue, issuer_fallback, renewals, revocations, withdrawals
from holdfast.engine.issuance.issue import IssuanceServices
from holdfast.engine.kind import JobKind
from holdfast.engine.replica import PeriodicDuty
from holdfast.engine.sweep import Owed
from holdfast.operations.issuance import approvals
from holdfast.operations.issuance import attempts as issuance_attempts
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.store import issuances
from holdfast.store.tx import Tx

PAGE: Final = 200
PROOFS_FOR: Final = timedelta(days=10)  # a challenge response of an issuance that was not finished


def kinds(services: IssuanceServices) -> list[JobKind]:
    return [
        issue.kind(services),
        renewals.ari_kind(services),
        revocations.kind(services),
        withdrawals.kind(services),
        challenges.kind(services),
    ]


def families(context: CertificateContext) -> list[Owed]:
    """What the reconciler looks after."""
    return [_issuances(context), revocations.owed(context), withdrawals.owed(context)]


def _issuances(context: CertificateContext) -> Callable[[Tx], Sequence[Spec]]:
    def specs(tx: Tx) -> Sequence[Spec]:
        return issuance_attempts.owed(tx, [context.random.new_id("job") for _ in range(PAGE)])

    return specs


def duties(
    context: CertificateContext,
    *,
    renewal: timedelta = timedelta(minutes=1),
    ask: timedelta = timedelta(minutes=5),
    turn: timedelta = timedelta(minutes=5),
    approval: timedelta = timedelta(minutes=10),
    cleanup: timedelta = timedelta(hours=1),
    history_for: timedelta = timedelta(days=90),
) -> list[PeriodicDuty]:
    """A look costs next to nothing if nothing is due, so it may be often: certificates that live hours need it."""
    return [
        PeriodicDuty(name="renewal", period=renewal, duty=partial(renewals.sweep_due, context)),
        PeriodicDuty(name="turns", period=turn, duty=partial(issuer_fallback.deal, context)),
        PeriodicDuty(name="fallback", period=turn, duty=partial(issuer_fallback.leave, context)),
        PeriodicDuty(name="ari", period=ask, duty=partial(renewals.sweep_ari, context)),
        PeriodicDuty(name="approval_timeout", period=approval, duty=partial(approvals.time_out, context)),
        PeriodicDuty(name="proof_cleanup", period=cleanup, duty=partial(forget_proofs, context)),
        PeriodicDuty(name="issuance_cleanup", period=cleanup, duty=partial(forget_issuances, context, history_for)),
    ]


async def forget_proofs(context: CertificateContext) -> int:
    """Drop proofs that are long of no use."""
    total = 0
    while done := await context.db.write(lambda tx: issuances.forget_old_responses(tx, tx.now() - PROOFS_FOR)):
        total += done
    return total


async def forget_issuances(context: CertificateContext, history_for: timedelta) -> int:
    """Drop attempts that are long over: one that failed hourly for years must not fill the disk."""
    total = 0
    while done := await context.db.write(lambda tx: issuance_attempts.forget_old(tx, tx.now() - history_for)):
        total += done
    return total
