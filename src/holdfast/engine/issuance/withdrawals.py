"""Cancels orders at CAs that are not needed any more, and retries until the CA confirms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from holdfast.core.certificate import Version
from holdfast.core.issuance import Issuance, Withdrawal
from holdfast.core.issuance_steps import Previous
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.notifications.alert import withdrawal_key
from holdfast.core.reasons import Reason
from holdfast.core.work.job import Again, Claim, Done, Outcome, Spec, also
from holdfast.engine.issuance import revocations
from holdfast.engine.issuance.claim import IssuanceServices, lookup_for, previous_of
from holdfast.engine.kind import JobKind, Work
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import Cancels, Issuer, OrderRequest, Uncertain
from holdfast.operations.issuance import order_budgets
from holdfast.operations.issuance.attempts import WITHDRAW, WITHDRAW_TRIES, CertificateContext
from holdfast.store import issuances, issuers, journal, versions
from holdfast.store.notifications import outages
from holdfast.store.tx import Tx

TOLD_FOR: Final = timedelta(days=30)  # the cancellation is retried for so long: then a person must see to it


@dataclass(frozen=True, slots=True)
class _Facts:
    issuance: Issuance
    issuer: IssuerRow | None
    shared: bool  # the CA gave the same order to another attempt, which goes on with it
    previous: Previous  # as the attempt knew it: what it may have renewed
    now: datetime


def kind(services: IssuanceServices) -> JobKind:
    """Jobs of this kind have an issuance that is over as subject."""

    async def handler(work: Work) -> Outcome:
        facts = await services.certificate_context.db.read(lambda tx: _facts(tx, work.claim.subject))
        if facts is None:
            return Done()
        if facts.shared:
            return _ended(facts, "none", why="Another attempt goes on with it.")
        if facts.issuer is None:
            return _ended(facts, "refused", why=f"There is no CA named {facts.issuance.issuer!r} any more.")
        try:
            return _ended(facts, await _withdraw(await services.make_issuer(facts.issuer), facts, work))
        except (TryLater, Refused) as why:
            return _not_yet(why, facts, work.claim)

    return JobKind(name=WITHDRAW, handler=handler, slots=4, timeout=timedelta(minutes=2))


def _not_yet(why: TryLater | Refused, facts: _Facts, claim: Claim) -> Outcome:
    if isinstance(why, TryLater) and why.reason == Reason.UNDER_WAY:
        return Again(after=why.after, reason=Reason.UNDER_WAY.value)  # there is more to look through
    waits = revocations.later(why)
    if waits is None and isinstance(why, TryLater):
        raise why
    if waits is None:
        return _ended(facts, "refused", why=str(why))
    since = facts.issuance.ended_at or facts.now
    if facts.now - since >= TOLD_FOR:
        return _ended(facts, "refused", why=f"It could not be told for {TOLD_FOR.days} days: {why}")
    outcome = revocations.retry_until_confirmed(waits, claim, since=since, now=facts.now)
    return also(outcome, partial(_waits, facts=facts, why=why)) if why.reason in revocations.MENDED else outcome


def _waits(tx: Tx, *, facts: _Facts, why: TryLater | Refused) -> None:
    """An alert says once that the order is not withdrawn yet, and what must be mended."""
    issuance = facts.issuance
    if not outages.is_open(tx, withdrawal_key(issuance.id)):
        told = {"issuance": issuance.id, "issuer": issuance.issuer, "reason": why.reason, "error": str(why)}
        journal.event(tx, "withdrawal.waits", issuance.certificate, **told)


async def _withdraw(issuer: Issuer, facts: _Facts, work: Work) -> Withdrawal:
    ref = facts.issuance.ref
    if ref is None:  # its answer was lost, or came too late
        found = await issuer.find_order(_wish(facts))
        if isinstance(found, Uncertain):
            raise Refused(found.why, reason=Reason.ORDER_UNCERTAIN)
        ref = None if found is None else found.ref
    if ref is None:
        return _there_is_none(facts)
    work.check()
    if isinstance(issuer, Cancels):
        await issuer.cancel(ref)
    work.point("job.effect-done")
    return "done"


def _there_is_none(facts: _Facts) -> Withdrawal:
    """An order that was uncertain is not settled by a lookup that finds nothing: an alert tells a person."""
    issuance, row = facts.issuance, facts.issuer
    if row is not None and issuance.asked_at is not None and facts.now < issuance.asked_at + lookup_for(row):
        why = "The CA did not answer the order and may still take it; it is looked for again."
        raise TryLater(why, reason=Reason.ORDER_UNANSWERED)
    if issuance.uncertain_since is None:
        return "none"
    why = f"It was in doubt whether it was placed, and it cannot be found now. Look for {issuance.id} at the CA."
    raise Refused(why, reason=Reason.ORDER_UNCERTAIN)


def _wish(facts: _Facts) -> OrderRequest:
    issuance = facts.issuance
    return OrderRequest(
        issuance=issuance.id,
        identifiers=issuance.identifiers,
        csr=issuance.csr or b"",
        asked_at=issuance.asked_at,
        not_after=None,
        previous=facts.previous.ref,
        same_names=facts.previous.same_names,
    )


def _facts(tx: Tx, subject: str) -> _Facts | None:
    found = issuances.get(tx, subject)
    if found is None or found.withdrawal != "owed":
        return None
    shared = found.ref is not None and issuances.is_under_way(tx, found.issuer, found.ref)
    previous = previous_of(tx, found, _in_use_then(tx, found))
    return _Facts(found, issuers.get(tx, found.issuer), shared, previous, tx.now())


def _in_use_then(tx: Tx, issuance: Issuance) -> Version | None:
    """The certificate that the attempt was to replace: another one may have replaced it since."""
    begun = issuance.asked_at or issuance.started_at
    return next((each for each in versions.of(tx, issuance.certificate, limit=10) if each.issued_at <= begun), None)


def _ended(facts: _Facts, how: Withdrawal, *, why: str = "") -> Done:
    """One that the CA does not let us give up goes on there, and may cost money: a person hears of it."""

    def write(tx: Tx) -> None:
        found = issuances.get(tx, facts.issuance.id, lock=True)
        if found is None or found.withdrawal != "owed":
            return
        issuances.save(tx, found, withdrawal=how)
        told: dict[str, Any] = {"issuance": found.id, "issuer": found.issuer, "how": how, "why": why}
        told |= {} if found.order_number is None else {"order": found.order_number}
        journal.audit(tx, "order_withdrawn", found.certificate, **told)
        journal.event(tx, "order.withdrawn", found.certificate, alert=how == "refused", **told)

    return Done(write=write)


def owed(context: CertificateContext) -> Callable[[Tx], Sequence[Spec]]:
    """Orders that are to be given up and that no job works on."""

    def specs(tx: Tx) -> Sequence[Spec]:
        found = issuances.to_withdraw_without_job(tx, WITHDRAW)
        paid = order_budgets.for_requests(tx, found.values(), lookup=True)
        return [
            Spec(
                id=context.random.new_id("job"),
                kind=WITHDRAW,
                subject=each,
                max_attempts=WITHDRAW_TRIES,
                budgets=paid.get(issuer, ()),
            )
            for each, issuer in found.items()
        ]

    return specs
