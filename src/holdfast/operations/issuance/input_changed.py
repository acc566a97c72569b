"""A changed input is a new epoch: what failed for it is tried again soon, and its failures so far do not count."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from holdfast.core.backoff import spread
from holdfast.core.issuers import breaker
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.reasons import Reason
from holdfast.operations.issuance.attempts import ISSUE, CertificateContext
from holdfast.store import certificates, issuers, journal, owed_to_cas
from holdfast.store.tx import Tx
from holdfast.store.work import cluster, jobs

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

    Orders that wait there are looked at, and revocations and withdrawals that it refused are told it again. If its
    breaker was open, one attempt finds out for all whether that has helped.
    """
    now = tx.now()
    if row.breaker.until is not None:
        issuers.save_breaker(tx, row.name, breaker.another_chance(row.breaker, now))
    waiting = [*certificates.jobs_waiting_for(tx, ISSUE, row.name, now), *owed_to_cas.jobs_at(tx, row.name, now)]
    certificates.bring_jobs_forward(tx, _spread(waiting, now))
    for job in owed_to_cas.given_up_at(tx, row.name):
        jobs.requeue(tx, job)
    failed = certificates.failed_at(tx, row.name)
    certificates.forget_failures(tx, _spread(failed, now))
    return len(failed)


async def of_solvers(context: CertificateContext, digest: str) -> int:
    """At a start: how many certificates begin anew because the solver rules are not what they were at the last one."""

    def write(tx: Tx) -> int:
        last = cluster.last_selfcheck(tx, SOLVERS)
        if last is not None and last[1].get("digest") == digest:
            return 0
        cluster.record_selfcheck(tx, SOLVERS, ok=True, details={"digest": digest})
        if last is None:
            return 0
        failed = certificates.failed_for(tx, OF_SOLVERS)
        certificates.forget_failures(tx, _spread(failed, tx.now()))
        journal.audit(tx, "solvers_changed", SOLVERS, digest=digest, begun_anew=len(failed))
        journal.event(tx, "solvers.changed", SOLVERS, begun_anew=len(failed))
        return len(failed)

    last = await context.db.read(lambda tx: cluster.last_selfcheck(tx, SOLVERS))
    same = last is not None and last[1].get("digest") == digest
    return 0 if same else await context.db.write(write)


def of_a_solver(tx: Tx) -> int:
    """A solver was added or mended: how many certificates that failed for want of one begin anew."""
    failed = certificates.failed_for(tx, OF_SOLVERS)
    certificates.forget_failures(tx, _spread(failed, tx.now()))
    return len(failed)


def _spread(ids: Sequence[str], now: datetime) -> list[tuple[str, datetime]]:
    window = min(EACH * len(ids), LONGEST)
    return [(each, now + window * spread(each)) for each in ids]
