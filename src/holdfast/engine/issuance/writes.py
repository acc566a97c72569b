"""How the steps of an issuance are written: each in one transaction, with its events, budgets and breaker.

Plain functions of an open transaction. Each looks first whether the issuance is still under way: a person may have
stopped it while a CA was asked. What the CA said about itself (`Effect`) counts all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core.backoff import POLL, FailureClass
from holdfast.core.issuance import Issuance, IssuanceEvent, move
from holdfast.core.issuance_decision import next_budgets, remembered
from holdfast.core.issuance_steps import (
    AlertOfCaApproval,
    BarAccount,
    CountFailure,
    Effect,
    Facts,
    GiveUp,
    HoldBudget,
    RaiseAlert,
    ReportUnknownWord,
    StartOver,
    UseCertificate,
    WaitFor,
)
from holdfast.core.issuers import breaker, ca_limits
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.notifications.alert import ca_approval_key
from holdfast.errors import LeaseLost, TxConflict
from holdfast.operations.issuance import attempts as issuance_attempts
from holdfast.operations.issuance.attempts import Ids, Proofs
from holdfast.store import issuances, issuers, journal
from holdfast.store.notifications import outages
from holdfast.store.tx import Tx
from holdfast.store.work import budgets, jobs


class Overtaken(Exception):
    """The issuance is not as it was when this claim read it: a person stopped it, or another worker was faster."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts.issuance.id)
        self.facts = facts


def save(
    tx: Tx,
    facts: Facts,
    row: IssuerRow,
    event: IssuanceEvent | None,
    told: Mapping[str, object] | None = None,
    *,
    then: IssuanceEvent | None = None,
    **changes: Any,
) -> Issuance:
    """A step within a claim, or two at once, unless the job is another worker's by now, or the attempt was stopped."""
    before = facts.issuance
    if changes.get("maybe_twice"):
        tell(tx, facts, "issuance.ordered_again", error=before.error or "", alert=True)
    if event is not None:
        changes["state"] = move(before.state, event)
        if before.started_at > facts.now:
            changes["started_at"] = facts.now  # it was to begin later, and a person did not want to wait
        if changes["state"] is not before.state or told:
            tell(tx, facts, f"issuance.{changes['state'].value}", **(told or {}))
    if then is not None:
        changes["state"] = move(changes["state"], then)
        tell(tx, facts, f"issuance.{changes['state'].value}")
    if event not in (None, "key stored"):  # those need no CA; any other shows that it answers
        issuer_succeeded(tx, row)
    healed: dict[str, Any] = {} if event is None else {"failures": 0, "error": None, "reason": None}
    try:
        return issuances.save(tx, before, by=facts.claim, **{**healed, **changes})
    except TxConflict:  # running the same again would find the same
        if not jobs.still_ours(tx, facts.claim):
            raise LeaseLost(facts.claim.id) from None
        raise Overtaken(facts) from None


def wait(tx: Tx, facts: Facts, step: WaitFor) -> None:
    issuance = still(tx, facts)
    if issuance is not None:
        _wait(tx, facts, step, issuance)
    _effects(tx, facts, step.also)


def _wait(tx: Tx, facts: Facts, step: WaitFor, issuance: Issuance) -> None:
    after = issuances.save(tx, issuance, **step.changes)
    if after.uncertain_since is not None and issuance.uncertain_since is None:
        told = {"error": after.error or "", "for_a_person": step.for_a_person}
        tell(tx, facts, "issuance.uncertain", **told, alert=True)
    if step.after >= POLL.first / 2:  # shorter waits are no news
        until = facts.now + step.after
        tell(tx, facts, "issuance.waits", why=step.reason.value, until=until.isoformat(), error=after.error or "")
    if (next_claim := next_budgets(facts, after)) != [*facts.claim.budgets]:
        budgets.charge(tx, facts.claim.id, next_claim, remembered(facts))


def give_up(tx: Tx, facts: Facts, row: IssuerRow | None, step: GiveUp, left: Proofs) -> None:
    """`left`: challenge responses that are still to be taken away."""
    issuance = still(tx, facts)
    if issuance is not None:
        if step.validated and row is not None:
            issuance_attempts.count_validation(tx, issuance, row)
        counts = account_barred(tx, issuance.issuer, step.error) if step.barred else True
        told: dict[str, Any] = {"failure": step.failure, "reason": step.reason.value, "error": step.error}
        issuance_attempts.give_up(tx, issuance, **told, count=counts, withdraw=step.withdraw, proofs=left)
    _effects(tx, facts, step.also)


def start_over(tx: Tx, facts: Facts, step: StartOver, ids: Ids) -> None:
    issuance = still(tx, facts)
    if issuance is not None and not issuance_attempts.move_on(
        tx, issuance, ids, step.at, reason=step.reason, why=step.error
    ):
        failure = FailureClass.TRANSIENT
        issuance_attempts.give_up(
            tx, issuance, failure=failure, reason=step.reason.value, error=step.error, count=False
        )
    _effects(tx, facts, step.also)


def keep(tx: Tx, facts: Facts, row: IssuerRow, step: UseCertificate, left: Proofs) -> None:
    issuance, version = still(tx, facts), step.issued.version
    if issuance is None:
        journal.event(tx, "certificate.discarded", version.certificate, serial=version.serial)
        return
    account = issuers.current_account(tx, version.issuer)
    known = None if account is None else account.url
    new = version if known is None else replace(version, account=known)
    issuance_attempts.activate(tx, issuance, new, known=facts.certificate, proofs=left)
    if step.issued.added_names:
        told = {"version": version.id, "issuer": version.issuer, "names": [*step.issued.added_names]}
        tell(tx, facts, "certificate.extra_names", **told)
    issuer_succeeded(tx, row)


def placed(facts: Facts, ref: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that store a placed order."""
    return {"ref": dict(ref), "uncertain_since": None, "polls": 0, "polled_since": facts.now}


def placed_by(facts: Facts) -> IssuanceEvent:
    return "csr handed in" if facts.binding else "order placed"


def keep_order(tx: Tx, facts: Facts, ref: Mapping[str, object]) -> None:
    """The order as it was placed, whatever became of the attempt meanwhile; one that was stopped is withdrawn."""
    found = issuances.get(tx, facts.issuance.id, lock=True)
    if found is None or found.ref is not None:
        return
    if found.state.over:
        issuance_attempts.withdraw_order(tx, found, ref=dict(ref))
    else:
        issuances.save(tx, found, **placed(facts, ref), state=move(found.state, placed_by(facts)))


# ── What is written beside a step ──


def _effects(tx: Tx, facts: Facts, effects: tuple[Effect, ...]) -> None:
    for each in effects:
        _effect(tx, facts, each)


def _effect(tx: Tx, facts: Facts, effect: Effect) -> None:
    issuer = facts.issuance.issuer
    match effect:
        case HoldBudget():
            hold_budget(tx, issuer, effect.key, effect.until, effect.error)
        case CountFailure():
            issuer_failed(tx, issuer, effect.error, opens=effect.opens)
        case BarAccount():
            if account_barred(tx, issuer, effect.error):
                told = {"why": effect.reason.value, "error": effect.error, "issuer": issuer}
                tell(tx, facts, "issuance.barred", **told, alert=True)
        case RaiseAlert():
            tell(tx, facts, effect.event, **effect.facts, alert=True)
        case ReportUnknownWord():
            if issuances.is_new_word(tx, issuer, effect.word):
                about = {"issuance": facts.issuance.id, "certificate": facts.issuance.certificate}
                journal.event(tx, "issuer.unknown_word", issuer, word=effect.word, **about)
        case AlertOfCaApproval():
            if effect.needed is not outages.is_open(tx, ca_approval_key(facts.issuance.id)):
                event = "issuance.needs_approval" if effect.needed else "issuance.goes_on"
                tell(tx, facts, event, issuer=issuer, word=effect.word, error=effect.why)


def tell(tx: Tx, facts: Facts, name: str, **told: object) -> None:
    issuance = facts.issuance
    order = {} if issuance.order_number is None else {"order": issuance.order_number}
    journal.event(tx, name, issuance.certificate, job=facts.claim.id, issuance=issuance.id, **{**order, **told})


def still(tx: Tx, facts: Facts) -> Issuance | None:
    """The row as it is now, locked; None if a person stopped it."""
    found = issuances.as_it_is(tx, facts.issuance)
    return None if found is None or found.state.over else found


LONG: Final = timedelta(minutes=45)  # a CA that takes nothing for so long, as for want of quota: a person hears of it


def admit_to_issuer(tx: Tx, issuer: str, issuance: str) -> datetime | None:
    """None: go on. While a CA is down one probes it, and all others come back at a time, when it has found out."""
    row = issuers.get(tx, issuer, lock=True)
    if row is None:
        return None
    after, until = breaker.admit(row.breaker, issuance, tx.now())
    if after != row.breaker:
        issuers.save_breaker(tx, row.name, after)
    return until


def issuer_failed(tx: Tx, issuer: str, error: str, *, opens: bool = False) -> None:
    row = issuers.get(tx, issuer, lock=True)
    if row is None:
        return
    now, before = tx.now(), row.breaker
    if opens:
        before = replace(before, failures=max(before.failures, breaker.OPENS_AFTER - 1))
    after = breaker.failed(before, now, issuances.storable(error))
    issuers.save_breaker(tx, row.name, after)
    if after.open_at(now) and before.until is None:
        _tell_down(tx, row.name, after.error or "")


def issuer_succeeded(tx: Tx, row: IssuerRow) -> None:
    """It answers; `row` is as it was read, so that this costs nothing while all is well."""
    before = row.breaker
    if before == breaker.Breaker():
        return
    issuers.save_breaker(tx, row.name, breaker.succeeded(before))
    if before.until is not None:
        journal.audit(tx, "issuer_up", row.name)
        journal.event(tx, "issuer.up", row.name)


def _tell_down(tx: Tx, issuer: str, error: str) -> None:
    journal.audit(tx, "issuer_down", issuer, error=error)
    journal.event(tx, "issuer.down", issuer, error=error, alert=True)


def account_barred(tx: Tx, issuer: str, error: str) -> bool:
    """Our account is not let in. True: that is news."""
    row = issuers.get(tx, issuer, lock=True)
    if row is None:
        return True
    issuers.save_breaker(tx, row.name, breaker.barred(row.breaker, tx.now(), issuances.storable(error)))
    return not row.breaker.barred


def hold_budget(tx: Tx, issuer: str, key: str, until: datetime, error: str) -> None:
    """Once for all that were under way when the CA said "too many": the first that is told counts."""
    now = tx.now()
    row = issuers.get(tx, issuer, lock=True)
    whole = key in (ca_limits.request_key(issuer), ca_limits.order_key(issuer))  # not about one domain or name only
    if whole and row is not None and not row.breaker.open_at(now):
        after = breaker.limited(row.breaker, now, until, issuances.storable(error))
        issuers.save_breaker(tx, issuer, after)
        until = after.until or until
        if row.breaker.until is None and until - now >= LONG:
            _tell_down(tx, issuer, after.error or "")
    budgets.hold(tx, key, until)
