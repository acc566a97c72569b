"""Decides what follows in one claim of an issuance: `decide(facts, answer)` returns the next step, with its reason.

Nothing here calls, waits or writes. `engine/issuance/issue.py` reads the facts, asks the CA, has this module decide,
and does the step; so every rule about limits, waits, other issuers, doubtful and paid orders can be read, and tested,
as values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from holdfast.core import backoff, issuance_steps, reasons, renewal
from holdfast.core.backoff import PASSING, PASSING_TRIES, POLL, POLL_WINDOW, FailureClass
from holdfast.core.issuance import NOT_HANDED_IN, Issuance, IssuanceState, is_impatient, left_of, may_leave, sooner
from holdfast.core.issuance_steps import (
    At,
    Effect,
    Facts,
    GiveUp,
    IssuanceStep,
    MakeCall,
    PlaceOrder,
    RemoteAnswer,
    RemoteRefused,
    RemoteUnavailable,
    StartOver,
    WaitFor,
)
from holdfast.core.issuers import breaker, ca_limits
from holdfast.core.issuers.ca_limits import Used
from holdfast.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Payment:
    """What a claim took from budgets, and when."""

    taken: Mapping[str, timedelta]
    at: datetime | None

    def to_json(self) -> dict[str, object]:
        """As it is kept with the job, as long as it may be given back."""
        taken = {key: each.total_seconds() for key, each in self.taken.items()}
        return {"taken": taken, "at": None if self.at is None else self.at.isoformat()}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Payment:
        taken = {key: timedelta(seconds=each) for key, each in raw.get("taken", {}).items()}
        return cls(taken, datetime.fromisoformat(raw["at"]) if raw.get("at") else None)


NOTHING = Payment({}, None)


def pays_for_lookup(facts: Facts) -> bool:
    """Whether this claim has paid for looking the order up; the next one will, if it has not."""
    key, paid, many = ca_limits.request_key(facts.issuer.name), facts.claim.budgets, facts.issuer.reckoned
    first = facts.issuance.asked_at is None or facts.claim.recheck  # a claim that is to recheck may not be put off
    return first or key not in paid or paid.count(key) >= many.order + many.lookup


def next_budgets(facts: Facts, after: Issuance) -> list[str]:
    """What the next claim pays for: an order that is placed is paid for, one that may be is looked for first."""
    paid, key, many = facts.claim.budgets, ca_limits.request_key(facts.issuance.issuer), facts.issuer.reckoned
    if key not in paid or not facts.issuer.known:
        return list(paid) if after.ref is None else []
    if after.ref is not None:
        return [key] * many.look
    others = [each for each in paid if each != key]
    return [*[key] * (many.order + (many.lookup if after.asked_at is not None else 0)), *others]


def remembered(facts: Facts) -> dict[str, object] | None:
    """The payload of the job for its next claims: what may have to be given back for the certificate."""
    paid = _paid_for_certificate(facts)
    return {**facts.claim.payload, "paid": paid.to_json()} if paid.taken and facts.claim.paid else None


def refund(facts: Facts, *, gave_up: bool) -> Payment:
    """What was paid for and the CA cannot have counted: waiting for a CA must not use it up."""
    claim, issuance = facts.claim, facts.issuance
    if issuance.ref is None:
        unused = ca_limits.unused(claim.paid, issuance.issuer, facts.used, binding=facts.binding)
        return Payment(unused, claim.paid_at)
    if gave_up and issuance.state in NOT_HANDED_IN and not facts.binding:
        return _paid_for_certificate(facts)  # which no CA makes any more
    return NOTHING


def _paid_for_certificate(facts: Facts) -> Payment:
    """By this claim, or by the one that placed the order."""
    claim = facts.claim
    own = ca_limits.unused(claim.paid, facts.issuance.issuer, "an order perhaps", binding=False)
    return Payment(own, claim.paid_at) if own else Payment.from_json(claim.payload.get("paid") or {})


AGENT_CSR_FOR: Final = timedelta(hours=24)  # how long an attempt waits for the agent that has the key
AGENT_CSR_EVERY: Final = timedelta(seconds=30)  # if no wake-up comes before
LIMITED_FOR: Final = timedelta(minutes=15)  # where a CA says "too many" and names no time
SOONEST, LATEST = timedelta(milliseconds=50), timedelta(days=1)  # of a wait that a CA asks for
MOMENT: Final = timedelta(minutes=1)
PATIENT_FOR: Final = timedelta(days=30)  # with a CA that has a binding order and does not answer
DOUBT_FOR: Final = timedelta(days=1)  # how long an order is looked for, by us and by people, before it is placed again
VISIBLE_WITHIN: Final = timedelta(minutes=30)  # a response that is not to be seen by then will not be
PUBLISHED_AGAIN: Final = 4  # looks after which a response that is not to be seen is published once more
VALIDATION: Final = frozenset(
    {Reason.VALIDATION_FAILED, Reason.CAA_FORBIDS, Reason.DNS_TXT_NOT_VISIBLE, Reason.PROOF_NOT_VISIBLE}
)
DOWN: Final = frozenset({Reason.CA_DOWN, Reason.CA_TLS_FAILED, Reason.ANSWER_MALFORMED})  # what a breaker counts
LIMITS: Final = frozenset({Reason.CA_RATE_LIMITED, Reason.CA_QUOTA_USED_UP})
BARRED: Final = frozenset({Reason.ACCOUNT_REFUSED, Reason.EAB_REQUIRED})  # what is wrong is wrong for all certificates


def decide(facts: Facts, answer: RemoteAnswer) -> IssuanceStep:
    """Say what follows from this answer; the engine does it."""
    match answer:
        case issuance_steps.CallDone():
            return _next(facts, answer.at)
        case issuance_steps.OrderReady():
            return _hand_in(facts)
        case issuance_steps.OrderPending():
            return _pending(facts, answer)
        case issuance_steps.CertificateIssued():
            return issuance_steps.UseCertificate(answer)
        case issuance_steps.ResponsesReported():
            return _poll(facts, None, Reason.UNDER_WAY, proofs=answer.responses)
        case issuance_steps.Unfinished():
            return _unfinished(facts, answer)
        case issuance_steps.NotVisible():
            return _not_visible(facts, answer)
        case issuance_steps.OrderNotKept():
            return issuance_steps.KeepOrderReference(answer.ref)
        case issuance_steps.OrderUncertain():
            return _doubted(facts, answer)
        case issuance_steps.OrderFailed():
            return _failed(facts, answer)
        case issuance_steps.BreakerOpen():
            return _shut(facts, answer.until)
        case RemoteUnavailable():
            return _later(facts, answer)
        case RemoteRefused():
            return _refused(facts, answer)
        case issuance_steps.OurFault():
            return GiveUp(FailureClass.LOCAL, _reason(answer.reason), answer.why)
        case issuance_steps.AccountGone():
            return _by_another_account(facts, answer.why)


def _next(facts: Facts, made: At) -> IssuanceStep:
    """What follows a call that went well."""
    match made:
        case "begin":
            return _begin(facts)
        case "admit" if facts.issuance.state is IssuanceState.REQUESTED:
            return MakeCall("store key")
        case "admit" | "store key":
            return MakeCall("open")
        case "open" if facts.issuance.state is IssuanceState.KEY_STORED:
            return _look_before_placing(facts)
        case "find":
            return _nothing_found(facts)
        case "place" if facts.proved:
            return MakeCall("finalize")
        case _:
            return MakeCall("look")


def _begin(facts: Facts) -> IssuanceStep:
    if not facts.issuer.known:
        why = f"There is no CA named {facts.issuance.issuer!r} any more."
        return GiveUp(FailureClass.LOCAL, Reason.UNKNOWN_ISSUER, why)
    shut = facts.issuer.breaker
    if shut.until is None or (shut.limited and facts.issuance.ref is not None):
        return _next(facts, "admit")  # a limit is about new orders: those that are placed go on
    return MakeCall("admit")


# ── Placing ──


def _look_before_placing(facts: Facts) -> IssuanceStep:
    """A claim that resumes looks first for the order that a worker may have placed before it died."""
    known_none = facts.issuance.asked_at is None if facts.binding else facts.fresh
    if known_none and not facts.claim.recheck:
        return PlaceOrder()
    return MakeCall("find") if pays_for_lookup(facts) else _wait(facts, SOONEST, Reason.UNDER_WAY)


def _nothing_found(facts: Facts) -> IssuanceStep:
    """A CA may take an order long after we stopped waiting for its answer: it is looked for a while longer.

    A second order is flagged and told: the CA may still finish the first.
    """
    since = facts.issuance.asked_at
    if not facts.binding or since is None:
        return PlaceOrder()
    end = since + facts.issuer.lookup_for
    if facts.now < end:
        why = f"The CA did not answer our order and does not show it. After {end:%F %T}Z it is placed again."
        return _poll(facts, None, Reason.ORDER_UNANSWERED, why)
    return PlaceOrder(facts.issuance.uncertain_since or since)


def used_by_placing(answer: RemoteAnswer) -> Used:
    """How much of what the claim paid for the CA may have counted, by its answer to a new order."""
    match answer:
        case RemoteRefused():
            return "requests"
        case RemoteUnavailable() if answer.reason != Reason.KEY_MISSING:
            return "requests" if _unheard(answer) else "an order perhaps"
        case _:
            return "an order"


def takes_back(facts: Facts, answer: RemoteAnswer) -> bool:
    """Whether `asked_at` is taken back, as nothing got there: there is no order to look for."""
    unheard = isinstance(answer, RemoteUnavailable) and _unheard(answer)
    return facts.binding and unheard and facts.issuance.uncertain_since is None


def _unheard(answer: RemoteUnavailable) -> bool:
    return not answer.sent or answer.reason in LIMITS


def left_out(facts: Facts, answer: RemoteAnswer) -> Literal["replaces", "lifetime"] | None:
    """What the CA refused to hear and need not be told: not a failure, the order is placed again without it."""
    if not isinstance(answer, RemoteRefused):
        return None
    if answer.reason == Reason.REPLACES_REJECTED and facts.issuance.replaces is not None:
        return "replaces"
    return "lifetime" if answer.reason == Reason.LIFETIME_REJECTED and not facts.any_lifetime else None


def _doubted(facts: Facts, found: issuance_steps.OrderUncertain) -> IssuanceStep:
    """Wait, or order once more: the doubt has lasted long enough, or there is no time left for it."""
    since, current = facts.issuance.uncertain_since or facts.now, facts.current
    if found.for_a_person or facts.issuance.maybe_twice:
        return _left_to_a_person(facts, found.why, since)
    end = since + DOUBT_FOR if current is None else min(since + DOUBT_FOR, renewal.emergency_at(current))
    if facts.now < end:
        return _poll(facts, None, Reason.ORDER_UNCERTAIN, found.why, uncertain_since=since)
    return PlaceOrder(since)


def _left_to_a_person(facts: Facts, why: str, since: datetime) -> IssuanceStep:
    if facts.no_time_left and facts.has_others:
        why = f"{why} There is no time left to wait for a word, and there are other CAs."
        return GiveUp(FailureClass.TRANSIENT, Reason.ORDER_UNCERTAIN, why, withdraw=True)
    return replace(_poll(facts, None, Reason.ORDER_UNCERTAIN, why, uncertain_since=since), for_a_person=True)


# ── Challenge responses ──


def _unfinished(facts: Facts, answer: issuance_steps.Unfinished) -> WaitFor:
    """At once, in a claim with time of its own. How long responses may take to be seen counts from the last one."""
    anew: dict[str, Any] = {"polls": 0, "polled_since": facts.now, "failures": 0, "reason": None, "error": None}
    return _wait(facts, SOONEST, Reason.UNDER_WAY, proofs=answer.responses, **anew)


def _not_visible(facts: Facts, answer: issuance_steps.NotVisible) -> IssuanceStep:
    reason = Reason.DNS_TXT_NOT_VISIBLE if answer.by_dns else Reason.PROOF_NOT_VISIBLE
    why = f"Not yet to be seen for {', '.join(answer.names[:3])}."
    if facts.waited > VISIBLE_WITHIN:
        return GiveUp(FailureClass.VALIDATION, reason, why)
    again = (facts.issuance.polls + 1) % PUBLISHED_AGAIN == 0
    return _poll(facts, None, reason, why, proofs=answer.to_publish_again if again else answer.responses)


# ── An order that goes on, or is over ──


def _hand_in(facts: Facts) -> IssuanceStep:
    if facts.handed_in:
        return _poll(facts, None, Reason.UNDER_WAY)  # the CA took the CSR and does not show it yet
    return MakeCall("finalize") if facts.proved else issuance_steps.MoveOn("proved", "finalize")


def _pending(facts: Facts, look: issuance_steps.OrderPending) -> IssuanceStep:
    if facts.issuance.state is IssuanceState.FINALIZING:
        return issuance_steps.MoveOn("csr handed in", look, {"polls": 0, "polled_since": facts.now})
    current, others = facts.current, facts.has_others
    if others and current is not None and facts.waited > renewal.patience_at_the_end(current, facts.now):
        why = f"{look.why} There is no time left to wait for it, and there are other CAs."
        return GiveUp(FailureClass.TRANSIENT, Reason.CA_STILL_PENDING, why, withdraw=True)
    reason = Reason.AWAITING_APPROVAL_AT_CA if look.person else Reason.UNDER_WAY
    again = _poll(facts, look.after_s, reason, look.why if facts.binding else None)
    return replace(
        again, also=(*_approval(facts, look), *([issuance_steps.ReportUnknownWord(look.word)] if look.unknown else []))
    )


def _approval(facts: Facts, look: issuance_steps.OrderPending) -> list[Effect]:
    """Told once it lasts: many an order is approved in moments. What was told is cleared when the order goes on."""
    moments = min(facts.issuer.poll_window or POLL_WINDOW, POLL_WINDOW)
    if not facts.binding or (look.person and facts.waited < moments):
        return []
    return [issuance_steps.AlertOfCaApproval(look.person, look.word, look.why if look.person else "")]


def _failed(facts: Facts, look: issuance_steps.OrderFailed) -> IssuanceStep:
    reason = _reason(look.reason)
    if reason is Reason.WRONG_CERTIFICATE:
        return _wrong(facts, look.why)
    if reason is Reason.ORDER_EXPIRED:
        return _unknown_there(facts, look.why)
    failure = FailureClass.TRANSIENT if look.retryable else FailureClass.REFUSED
    return GiveUp(FailureClass.VALIDATION if reason in VALIDATION else failure, reason, look.why)


def _wrong(facts: Facts, why: str) -> IssuanceStep:
    """The CA issued something else. Where that is paid for, another order is for a person to decide."""
    given_up = GiveUp(FailureClass.REFUSED, Reason.WRONG_CERTIFICATE, why)
    if not facts.binding:
        return given_up
    current, others = facts.current, facts.has_others
    if not renewal.leaves_wrong(current, facts.now, others=others) and not _may_order_anew(facts):
        by = None if current is None or not others else renewal.short_from(current)
        return _kept(facts, Reason.WRONG_CERTIFICATE, why, "issuance.not_as_asked", by=by)
    return (
        given_up
        if others
        else replace(given_up, also=(issuance_steps.RaiseAlert("issuance.ordered_again", {"error": why}),))
    )


def _unknown_there(facts: Facts, why: str) -> IssuanceStep:
    """The CA does not know an order that it took. It is placed again, once; then a person looks into it."""
    if facts.binding and facts.beside.ordered_before:
        return _kept(facts, Reason.ORDER_UNCERTAIN, why, "issuance.barred")
    return GiveUp(FailureClass.TRANSIENT, Reason.ORDER_EXPIRED, why)


def _may_order_anew(facts: Facts) -> bool:
    """At this issuer: with a certificate about to expire, if that was not done before."""
    return facts.no_time_left and not facts.beside.ordered_before


def _kept(facts: Facts, reason: Reason, why: str, event: str, *, by: datetime | None = None) -> WaitFor:
    """Keep the order, look at it as seldom as at one that rests, and soon after `by`; tell people once."""
    wait = max(_next_poll(facts, None)[0], POLL.cap)
    if by is not None:
        wait = min(wait, max(by + MOMENT - facts.now, MOMENT))
    also = (
        ()
        if facts.issuance.reason == reason
        else (issuance_steps.RaiseAlert(event, {"why": reason.value, "error": why}),)
    )
    return _wait(facts, wait, reason, also=also, **_polled(facts), reason=reason.value, error=why)


# ── Not now ──


def _later(facts: Facts, why: RemoteUnavailable) -> IssuanceStep:
    """A rate limit is the budget's; anything else is tried again a few times, then the attempt failed."""
    if why.reason in LIMITS:
        return _limited(facts, why)
    if why.reason == Reason.AGENT_CSR_AWAITED:
        return _for_agent(facts, why)
    if why.reason == Reason.UNDER_WAY:  # as a look-up that is more than one claim pays for
        return _wait(facts, why.after or POLL.first, Reason.UNDER_WAY)
    reason = reasons.of(why.reason)  # one that we do not know is ours, and says nothing about the CA
    failures, hurt = facts.issuance.failures + 1, reason in DOWN
    also = (issuance_steps.CountFailure(why.why, opens=reason in reasons.FOR_A_PERSON),) if hurt else ()
    enough = (failures >= PASSING_TRIES and not _is_away(facts, reason)) or (hurt and _is_pressing(facts))
    if enough and not _worth_waiting_for(facts) and not _is_the_last(facts):
        if hurt and (moved := _elsewhere(facts, reason, why.why, wait=LATEST, also=also)):
            return moved
        return GiveUp(FailureClass.TRANSIENT, reason, why.why, also=also, withdraw=facts.binding)
    wait = max(PASSING.wait(failures, facts.issuance.id), min(why.after or timedelta(0), LATEST))
    polled: dict[str, Any] = {}
    if facts.issuance.ref is not None:
        wait, polled = max(wait, _next_poll(facts, None)[0]), _polled(facts)
    return _wait(facts, wait, reason, also=also, **polled, failures=failures, reason=reason.value, error=why.why)


def _for_agent(facts: Facts, why: RemoteUnavailable) -> IssuanceStep:
    """The key is made on a host that asks us: it is waited for, and no failure is counted until that took too long."""
    began, current = facts.issuance.started_at, facts.current
    patience = AGENT_CSR_FOR if current is None else min(AGENT_CSR_FOR, (current.not_after - began) / 8)
    if facts.now >= began + patience:
        return GiveUp(FailureClass.TRANSIENT, Reason.AGENT_CSR_LATE, why.why)
    reason = Reason.AGENT_CSR_AWAITED
    return _wait(facts, AGENT_CSR_EVERY, reason, reason=reason.value, error=why.why)


def _is_away(facts: Facts, reason: Reason) -> bool:
    """The CA is away, as a sealed Vault is, and has nothing of ours; without another issuer the attempt waits for it.

    To give it up would count a failure, and wait an hour and more after the CA is back.
    """
    return reason is Reason.CA_DOWN and facts.issuance.ref is None and not facts.has_others


def _is_pressing(facts: Facts) -> bool:
    """The certificate is about to expire, and there are other issuers: this one had our order, and its chance."""
    return facts.issuance.ref is not None and facts.has_others and facts.no_time_left


def _worth_waiting_for(facts: Facts) -> bool:
    """The CA has the CSR, or may have it, and makes a certificate of it: a second order would be a second one."""
    issuance, current = facts.issuance, facts.current
    unheard = facts.binding and issuance.asked_at is not None
    if issuance.state not in (IssuanceState.FINALIZING, IssuanceState.WAITING) and not unheard:
        return False
    patience = PATIENT_FOR if facts.binding and not facts.has_others else LATEST
    return facts.now < (issuance.started_at + patience if current is None else renewal.emergency_at(current))


def _is_the_last(facts: Facts) -> bool:
    """It was placed after another was given up, and there is no other issuer: a third would be no better."""
    placed = facts.binding and facts.issuance.ref is not None
    return placed and not facts.has_others and facts.beside.ordered_before


def _limited(facts: Facts, why: RemoteUnavailable) -> IssuanceStep:
    """Hold the budget that the CA speaks of; wait, unless another issuer is sooner, or this wait is too long."""
    reason, error, issuance = Reason(why.reason), why.why, facts.issuance
    wait = min(max(why.after or LIMITED_FOR, timedelta(seconds=5)), LATEST)
    key = ca_limits.refused_key(facts.issuer.limits, issuance.issuer, issuance.identifiers, error, facts.claim.budgets)
    hold = issuance_steps.HoldBudget(key, facts.now + wait, error)
    if moved := _elsewhere(facts, reason, error, wait=wait, also=(hold,)):
        return moved
    current = facts.current
    if facts.has_others and current is not None and facts.now + wait >= renewal.safe_until(current):
        return GiveUp(FailureClass.RATE_LIMITED, reason, error, also=(hold,))
    wait = max(wait, _next_poll(facts, None)[0])
    again = _wait(facts, wait, reason, **_polled(facts), reason=reason.value, error=error)
    return replace(again, also=(replace(hold, until=facts.now + again.after),))


def _shut(facts: Facts, until: datetime) -> IssuanceStep:
    """While a CA is down one claim probes it, and all others wait for what it finds."""
    shut = facts.issuer.breaker
    reason, words = _why_down(facts), "is down"
    if shut.limited:
        reason, words = Reason.CA_RATE_LIMITED, "allows no more"
    elif shut.barred:
        reason, words = Reason.ACCOUNT_REFUSED, "does not let us in"
    error = f"{facts.issuer.name} {words}: {shut.error or ''}"
    wait = max(until - facts.now, SOONEST)
    away = LATEST if shut.barred else max(wait, shut.lasted)
    moved = _elsewhere(facts, reason, error, wait=away)
    return moved or _wait(facts, wait, reason, reason=reason.value, error=error)


def _why_down(facts: Facts) -> Reason:
    """What this issuance was told itself, if it was: who must act is then known more exactly."""
    known = reasons.of(facts.issuance.reason)
    return known if known in DOWN else Reason.CA_DOWN


def _elsewhere(
    facts: Facts, reason: Reason, why: str, *, wait: timedelta, also: tuple[Effect, ...] = ()
) -> StartOver | None:
    """Begin at another issuer, if this one keeps us waiting for too long and that one does not."""
    issuance = replace(facts.issuance, asked_at=facts.asked_before)
    perhaps = facts.binding and facts.used == "an order perhaps"  # else this claim was told that nothing is placed
    if perhaps or not may_leave(issuance, facts.certificate):
        return None
    left = left_of(facts.current, facts.now)
    if not is_impatient(left, waited=facts.now - issuance.started_at, wait=wait, in_line=False):
        return None
    to = sooner(facts.beside.others, left=left, wait=wait, now=facts.now)
    return None if to is None else StartOver(to.name, reason, why, also)


# ── No ──


def _refused(facts: Facts, why: RemoteRefused) -> IssuanceStep:
    reason, error = _reason(why.reason), why.why
    if why.at in ("find", "look") and _keeps_order(facts):
        return _kept(facts, reason, error, "issuance.barred")
    if reason is Reason.ACCOUNT_GONE:
        return issuance_steps.EndAccount(error)
    if reason is Reason.NAME_PAUSED_AT_CA and (moved := _elsewhere(facts, reason, error, wait=LATEST)):
        return moved
    if reason in BARRED and facts.issuance.ref is None and facts.asked_before is None:
        return _not_let_in(facts, reason, error)
    failure = FailureClass.VALIDATION if reason in VALIDATION else FailureClass.REFUSED
    placed = facts.binding and facts.issuance.ref is not None  # we may not look at it, but it may go on
    return GiveUp(failure, reason, error, withdraw=placed)


def _keeps_order(facts: Facts) -> bool:
    """Whether an order that the CA does not let us look at stays ours: a key was changed, the order may be well."""
    if not facts.binding:
        return False
    placed = facts.issuance.ref is not None and not facts.has_others
    return _worth_waiting_for(facts) or (placed and not _may_order_anew(facts))


def _not_let_in(facts: Facts, reason: Reason, why: str) -> IssuanceStep:
    """The account is stopped, once, and not one certificate after the other: the first that is told counts it."""
    bar, shut = issuance_steps.BarAccount(reason, why), facts.issuer.breaker
    if moved := _elsewhere(facts, reason, why, wait=LATEST, also=(bar,)):
        return moved
    if not shut.barred:
        return GiveUp(FailureClass.REFUSED, reason, why, barred=True)
    until = breaker.barred(shut, facts.now, why).until or facts.now
    wait = until - facts.now + backoff.BREAKER_DOWN.first * backoff.spread(facts.issuance.id)
    return _wait(facts, wait, reason, also=(bar,), reason=reason.value, error=why, asked_at=facts.asked_before)


def _by_another_account(facts: Facts, why: str) -> IssuanceStep:
    """The next claim makes one. Without its account an order is out of reach: it is begun anew, and not counted."""
    if facts.issuance.ref is None:
        return _later(facts, RemoteUnavailable(at="open", reason=Reason.ACCOUNT_GONE, why=why))
    if facts.beside.begun_anew:
        return GiveUp(FailureClass.REFUSED, Reason.ACCOUNT_GONE, why)
    return StartOver(facts.issuance.issuer, Reason.ACCOUNT_GONE, why)


def _reason(code: str) -> Reason:
    return Reason(code) if code in set(Reason) else Reason.CA_REFUSED


# ── How long ──


def _poll(facts: Facts, after_s: float | None, reason: Reason, why: str | None = None, **changes: Any) -> WaitFor:
    """Look again by the ladder of polls; after its window an order is looked at ever more seldom."""
    asked = None if after_s is None else min(max(timedelta(seconds=after_s), SOONEST), LATEST)
    wait, rests = _next_poll(facts, asked)
    if rests and reason is Reason.UNDER_WAY:
        reason = Reason.CA_STILL_PENDING
    elif not rests and asked is not None and not facts.binding:
        wait = asked  # what ACME servers name is short, and meant
    told = None if reason is Reason.UNDER_WAY else reason.value
    return _wait(facts, wait, reason, **_polled(facts), failures=0, reason=told, error=why, **changes)


def _next_poll(facts: Facts, asked: timedelta | None) -> tuple[timedelta, bool]:
    issuance, now, current = facts.issuance, facts.now, facts.current
    polls, window, age = issuance.polls + 1, facts.issuer.poll_window, now - issuance.started_at
    key = f"{issuance.id}:{polls}"
    wait, rests = backoff.next_poll(polls, waited=facts.waited, window=window, age=age, asked=asked, key=key)
    if rests and asked is None and current is not None and now < renewal.emergency_at(current):
        wait = min(wait, max(renewal.emergency_at(current) - now, POLL.cap))  # it may be left, or tried anew, then
    return wait, rests


def _polled(facts: Facts) -> dict[str, Any]:
    return {"polls": facts.issuance.polls + 1, "polled_since": facts.issuance.polled_since or facts.now}


def _wait(facts: Facts, after: timedelta, why: Reason, *, also: tuple[Effect, ...] = (), **changes: object) -> WaitFor:
    return WaitFor(_in_time(facts, after), why, changes, also)


def _in_time(facts: Facts, after: timedelta) -> timedelta:
    """Where another issuer could help, no attempt sleeps past the moment at which it must be asked."""
    current, now = facts.current, facts.now
    if current is None or not facts.has_others:
        return after
    emergency = renewal.emergency_at(current)
    left = emergency - now if now < emergency else (current.not_after - now) / 10
    return min(after, max(left, MOMENT)) if left > timedelta(0) else after
