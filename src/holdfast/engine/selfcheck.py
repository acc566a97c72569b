"""The self-check: a job that walks the newest part of the audit chain, for ever: it shows that the engine lives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from holdfast.core.journal import ChainVerdict, chain_verdict
from holdfast.core.work.job import Again, Outcome, Priority, Spec
from holdfast.engine.kind import JobKind, Work
from holdfast.ports import Random
from holdfast.store import journal
from holdfast.store.database import Store
from holdfast.store.tx import Tx
from holdfast.store.work import cluster, jobs
from holdfast.telemetry import Telemetry

KIND: Final = "selfcheck"
CHECK: Final = "audit-chain"
PAGE: Final = 2000


def owed(random: Random, every: timedelta) -> Callable[[Tx], Sequence[Spec]]:
    """There is always one self-check to come; the reconciler sees to it.

    One that is planned later than it can be was planned by a clock that was ahead, and has been set right since.
    """

    def specs(tx: Tx) -> Sequence[Spec]:
        if jobs.known(tx, KIND, CHECK):
            jobs.bring_forward(tx, KIND, CHECK, tx.now() + every)
            return ()
        return (Spec(id=random.new_id("job"), kind=KIND, subject=CHECK, priority=Priority.BACKGROUND),)

    return specs


def kind(db: Store, every: timedelta, telemetry: Telemetry) -> JobKind:
    async def handler(work: Work) -> Outcome:
        verdict = await db.read(_walk)
        telemetry.metrics.self_check_ok.labels(name=CHECK).set(verdict.ok)
        if verdict.ok:
            telemetry.log.info("selfcheck.passed", check=CHECK, rows=verdict.verified, next=f"in {every}")
        else:
            telemetry.log.error("selfcheck.failed", check=CHECK, row=verdict.bad_seq, problem=verdict.problem)
        return Again(after=every, reason="SCHEDULED", write=lambda tx: _record(tx, verdict))

    return JobKind(name=KIND, handler=handler, slots=1, interruptible=True, in_quarantine=True)


def _walk(tx: Tx) -> ChainVerdict:
    """Verify the rows after the last one that held, at most a page. A bad row stays the next one: it is found again."""
    last = cluster.last_selfcheck(tx, CHECK)
    begin = journal.chain_start(tx)
    if not begin.ok:
        return begin
    seq, previous = (last[1]["seq"], last[1]["hash"]) if last else (0, "")
    if begin.verified > seq:  # rows that were not walked yet were archived, which walks them
        seq, previous = begin.verified, begin.last_hash
    head_seq, head_hash = journal.audit_head(tx)
    entries = journal.audit_page(tx, seq, PAGE)
    caught_up = len(entries) < PAGE
    end_seq, end_hash = (head_seq, head_hash) if caught_up else (entries[-1].seq, entries[-1].hash)
    return chain_verdict(entries, newest_seq=end_seq, newest_hash=end_hash, after_seq=seq, after_hash=previous)


def _record(tx: Tx, verdict: ChainVerdict) -> None:
    before = cluster.last_selfcheck(tx, CHECK)
    details = {"seq": verdict.verified, "hash": verdict.last_hash, "problem": verdict.problem}
    cluster.record_selfcheck(tx, CHECK, ok=verdict.ok, details=details)
    if before is None or before[0] != verdict.ok:  # the timeline tells of changes, not of every minute
        journal.event(tx, "selfcheck.passed" if verdict.ok else "selfcheck.failed", CHECK, problem=verdict.problem)
