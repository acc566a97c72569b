"""A changed input is a new epoch: what failed for it is tried again soon, and its failures so far do not count."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from holdfast.core import breaker
from holdfast.core.backoff import spread
from holdfast.core.reasons import Reason
from holdfast.operations.issuing import ISSUE, Keeper
from holdfast.store import epochs, issuers, journal, selfchecks
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx

EACH: Final = timedelta(seconds=1)  # of those that begin anew together, about one in so long
LONGEST: Final = timedelta(minutes=15)  # and all of them within this
SOLVERS: Final = "solver-rules"
OF_SOLVERS: Final = frozenset(
    {
        Reason.NO_SOLVER, Reason.SOLVER_FAILED, Reason.DNS_TXT_NOT_VISIBLE, Reason.PROOF_NOT_VISIBLE,
        Reason.VALIDATION_FAILED,
    }
)  # fmt: skip


def of_issuer(tx: Tx, row: IssuerRow) -> int:
    """A CA's settings or credentials are others now: how many certificates failed there, and begin anew.

    If its breaker was open, one attempt finds out for all whether that has helped.
    """
    now = tx.now()
    if row.breaker.until is not None:
        issuers.save_breaker(tx, row.name, breaker.another_chance(row.breaker, now))
        epochs.bring_forward(tx, _spread(epochs.waiting_for(tx, ISSUE, row.name, now), now))
    failed = epochs.failed_at(tx, row.name)
    epochs.forget_failures(tx, _spread(failed, now))
    return len(failed)


async def of_solvers(keeper: Keeper, digest: str) -> int:
    """At a start: how many certificates begin anew because the solver rules are not what they were at the last one."""

    def write(tx: Tx) -> int:
        last = selfchecks.last(tx, SOLVERS)
        if last is not None and last[1].get("digest") == digest:
            return 0
        selfchecks.record(tx, SOLVERS, ok=True, details={"digest": digest})
        if last is None:
            return 0
        failed = epochs.failed_for(tx, OF_SOLVERS)
        epochs.forget_failures(tx, _spread(failed, tx.now()))
        journal.audit(tx, "solvers_changed", SOLVERS, digest=digest, begun_anew=len(failed))
        journal.event(tx, "solvers.changed", SOLVERS, begun_anew=len(failed))
        return len(failed)

    last = await keeper.db.read(lambda tx: selfchecks.last(tx, SOLVERS))
    same = last is not None and last[1].get("digest") == digest
    return 0 if same else await keeper.db.write(write)


def _spread(ids: Sequence[str], now: datetime) -> list[tuple[str, datetime]]:
    window = min(EACH * len(ids), LONGEST)
    return [(each, now + window * spread(each)) for each in ids]
