"""How the steps of an issuance are written: each in one transaction, with its events, budgets and breaker.

Plain functions of an open transaction. Each looks first whether the issuance is still under way: a person may have
stopped it while a CA was asked. What the CA said about itself (`Effect`) counts all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.core import telling
from holdfast.core.attempt_budget import next_budgets, remembered
from holdfast.core.attempt_facts import Facts
from holdfast.core.attempt_steps import (
    Bar,
    Effect,
    GiveUp,
    Hold,
    Hurt,
    Keep,
    StartOver,
    Tell,
    TellApproval,
    TellWord,
    Wait,
)
from holdfast.core.backoff import POLL, FailureClass
from holdfast.core.issuance import Event, Issuance, move
from holdfast.engine import ca_breaker
from holdfast.errors import LeaseLost, TxConflict
from holdfast.operations import issuing
from holdfast.operations.issuing import Ids, Proofs
from holdfast.store import budgets, issuances, issuer_accounts, jobs, journal, outages
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx


class Overtaken(Exception):
    """The issuance is not as it was when this claim read it: a person stopped it, or another worker was faster."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts.issuance.id)
        self.facts = facts


def save(
    tx: Tx,
    facts: Facts,
    row: IssuerRow,
    event: Event | None,
    told: Mapping[str, Any] | None = None,
    *,
    then: Event | None = None,
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
        ca_breaker.succeeded(tx, row)
    healed: dict[str, Any] = {} if event is None else {"failures": 0, "error": None, "reason": None}
    try:
        return issuances.save(tx, before, by=facts.claim, **{**healed, **changes})
    except TxConflict:  # running the same again would find the same
        if not jobs.still_ours(tx, facts.claim):
            raise LeaseLost(facts.claim.id) from None
        raise Overtaken(facts) from None


def wait(tx: Tx, facts: Facts, step: Wait) -> None:
    issuance = still(tx, facts)
    if issuance is not None:
        _wait(tx, facts, step, issuance)
    _effects(tx, facts, step.also)


def _wait(tx: Tx, facts: Facts, step: Wait, issuance: Issuance) -> None:
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
            issuing.count_validation(tx, issuance, row)
        counts = ca_breaker.barred(tx, issuance.issuer, step.error) if step.barred else True
        told: dict[str, Any] = {"failure": step.failure, "reason": step.reason.value, "error": step.error}
        issuing.give_up(tx, issuance, **told, count=counts, withdraw=step.withdraw, proofs=left)
    _effects(tx, facts, step.also)


def start_over(tx: Tx, facts: Facts, step: StartOver, ids: Ids) -> None:
    issuance = still(tx, facts)
    if issuance is not None and not issuing.move_on(tx, issuance, ids, step.at, reason=step.reason, why=step.error):
        failure = FailureClass.TRANSIENT
        issuing.give_up(tx, issuance, failure=failure, reason=step.reason.value, error=step.error, count=False)
    _effects(tx, facts, step.also)


def keep(tx: Tx, facts: Facts, row: IssuerRow, step: Keep, left: Proofs) -> None:
    issuance, version = still(tx, facts), step.issued.version
    if issuance is None:
        journal.event(tx, "certificate.discarded", version.certificate, serial=version.serial)
        return
    account = issuer_accounts.current(tx, version.issuer)
    known = None if account is None else account.url
    new = version if known is None else replace(version, account=known)
    issuing.activate(tx, issuance, new, known=facts.certificate, proofs=left)
    if step.issued.added_names:
        told = {"version": version.id, "issuer": version.issuer, "names": [*step.issued.added_names]}
        tell(tx, facts, "certificate.extra_names", **told)
    ca_breaker.succeeded(tx, row)


def placed(facts: Facts, ref: Mapping[str, Any]) -> dict[str, Any]:
    """What is stored of an order that was placed."""
    return {"ref": dict(ref), "uncertain_since": None, "polls": 0, "polled_since": facts.now}


def placed_by(facts: Facts) -> Event:
    return "csr handed in" if facts.binding else "order placed"


def keep_order(tx: Tx, facts: Facts, ref: Mapping[str, Any]) -> None:
    """The order as it was placed, whatever became of the attempt meanwhile; one that was stopped is withdrawn."""
    found = issuances.get(tx, facts.issuance.id, lock=True)
    if found is None or found.ref is not None:
        return
    if found.state.over:
        issuing.withdraw_order(tx, found, ref=dict(ref))
    else:
        issuances.save(tx, found, **placed(facts, ref), state=move(found.state, placed_by(facts)))


# ── What is written beside a step ──


def _effects(tx: Tx, facts: Facts, effects: tuple[Effect, ...]) -> None:
    for each in effects:
        _effect(tx, facts, each)


def _effect(tx: Tx, facts: Facts, effect: Effect) -> None:
    issuer = facts.issuance.issuer
    match effect:
        case Hold():
            ca_breaker.hold(tx, issuer, effect.key, effect.until, effect.error)
        case Hurt():
            ca_breaker.failed(tx, issuer, effect.error)
        case Bar():
            if ca_breaker.barred(tx, issuer, effect.error):
                told = {"why": effect.reason.value, "error": effect.error, "issuer": issuer}
                tell(tx, facts, "issuance.barred", **told, alert=True)
        case Tell():
            tell(tx, facts, effect.event, **effect.facts, alert=True)
        case TellWord():
            if issuances.is_new_word(tx, issuer, effect.word):
                about = {"issuance": facts.issuance.id, "certificate": facts.issuance.certificate}
                journal.event(tx, "issuer.unknown_word", issuer, word=effect.word, **about)
        case TellApproval():
            if effect.needed is not outages.is_open(tx, telling.ca_approval_key(facts.issuance.id)):
                event = "issuance.needs_approval" if effect.needed else "issuance.goes_on"
                tell(tx, facts, event, issuer=issuer, word=effect.word, error=effect.why)


def tell(tx: Tx, facts: Facts, name: str, **told: Any) -> None:
    issuance = facts.issuance
    journal.event(tx, name, issuance.certificate, job=facts.claim.id, issuance=issuance.id, **told)


def still(tx: Tx, facts: Facts) -> Issuance | None:
    """The row as it is now, locked; None if a person stopped it."""
    found = issuances.as_it_is(tx, facts.issuance)
    return None if found is None or found.state.over else found
