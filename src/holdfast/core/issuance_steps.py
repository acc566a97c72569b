"""The values that one claim of an issuance is decided by: its facts, the answers of remotes, and the steps that follow.

`core/issuance_decision.py` decides by these values alone; `engine/issuance/issue.py` does the steps. Each answer
that a CA, a solver or the store can give is one of the classes below: there is no other way for news to reach a
decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from holdfast.core import renewal
from holdfast.core.backoff import FailureClass
from holdfast.core.certificate import Certificate, Version
from holdfast.core.issuance import LOOKUP_FOR, Candidate, Issuance, IssuanceEvent
from holdfast.core.issuers.breaker import Breaker
from holdfast.core.issuers.ca_limits import UNKNOWN, CaLimits, Reckoned, Used
from holdfast.core.reasons import Reason
from holdfast.core.work.job import Claim

# ── What the store says ──


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerFacts:
    """The issuer of the issuance, as its row and its kind say."""

    name: str
    known: bool = True  # False: its row was removed
    limits: CaLimits = UNKNOWN
    reckoned: Reckoned = field(default_factory=Reckoned)  # requests of a claim with this many names
    poll_window: timedelta = timedelta(0)  # zero: the default
    lookup_for: timedelta = LOOKUP_FOR  # an order whose answer was lost is looked for so long before it is placed again
    breaker: Breaker = field(default_factory=Breaker)


@dataclass(frozen=True, slots=True, kw_only=True)
class Previous:
    """The order that the certificate in use came from, if it is of the same issuer."""

    ref: Mapping[str, Any] | None = None
    same_names: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Facts that are read only after a setback: while all is well these queries are not made."""

    ordered_before: bool = False  # an earlier attempt at this issuer ended with its order placed, and no person acted
    begun_anew: bool = False  # the attempt before this one lost its account as well
    others: tuple[Candidate, ...] = ()  # the other issuers of the certificate, as they stand now


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One claim of one issuance. The engine replaces this value as the claim goes on; nothing changes it in place."""

    issuance: Issuance
    certificate: Certificate
    current: Version | None  # the certificate in use
    issuer: IssuerFacts
    claim: Claim
    now: datetime  # the database's, when the claim read its facts
    asked_before: datetime | None = None  # `asked_at` of the issuance, when the claim read its facts
    previous: Previous = field(default_factory=Previous)
    beside: Beside = field(default_factory=Beside)
    # What this claim has learnt, or done:
    binding: bool = False  # at this issuer an order is for good
    account: str | None = None  # URL of our account there, where issuers have such
    used: Used = "nothing"  # of what the claim paid for
    fresh: bool = False  # it stored the key itself: no order can have been placed yet
    any_lifetime: bool = False  # the issuer rejects requested lifetimes
    proved: bool = False  # it is committed that the CSR goes next
    handed_in: bool = False

    @property
    def has_others(self) -> bool:
        return len(self.certificate.wanted.issuers) > 1

    @property
    def no_time_left(self) -> bool:
        return self.current is not None and self.now >= renewal.emergency_at(self.current)

    @property
    def waited(self) -> timedelta:
        """How long the order has been polled."""
        return self.now - (self.issuance.polled_since or self.now)


# ── What can be asked, and answered ──

IssuerCall = Literal["admit", "store key", "open", "find", "look", "finalize"]
At = Literal["begin", "place", "prove"] | IssuerCall  # where a claim was when it got an answer


@dataclass(frozen=True, slots=True)
class CallDone:
    """The call was made and there is no more to say: `find` found no order, `place` left one in the store."""

    at: At


@dataclass(frozen=True, slots=True)
class BreakerOpen:
    """The breaker of the issuer is open until `until`."""

    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderUncertain:
    """An order may have been placed, and the CA cannot tell."""

    why: str
    for_a_person: bool = False  # only a person may order again


@dataclass(frozen=True, slots=True)
class OrderNotKept:
    """The order is placed, and its reference could not be stored: the store is away, or the issuance was changed."""

    ref: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OrderReady:
    """All names are proved: the CSR can be handed in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderPending:
    """The CA is at work, or waits for a person on its side."""

    why: str
    after_s: float | None = None  # Retry-After
    word: str = ""  # the CA's own word for this state
    unknown: bool = False  # a word that we do not know
    person: bool = False  # a person must approve the order at the CA


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateIssued:
    """The certificate, checked: key, names, chain and dates are as asked for."""

    version: Version
    added_names: tuple[str, ...] = ()  # beside those that were asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFailed:
    """The order is over without a certificate that can be used."""

    why: str
    reason: str
    retryable: bool = True  # a new order may do better


# ── What comes of challenge responses ──

Marked = tuple[Mapping[str, Any], ...]  # the challenge responses of an issuance, with their marks


@dataclass(frozen=True, slots=True)
class ResponsesReported:
    """The CA was told of every response."""

    responses: Marked


@dataclass(frozen=True, slots=True)
class Unfinished:
    """There is more to publish, to look at or to tell of than one claim may do."""

    responses: Marked


@dataclass(frozen=True, slots=True, kw_only=True)
class NotVisible:
    """Published responses that cannot be seen yet where the CA will look."""

    names: tuple[str, ...]
    by_dns: bool
    responses: Marked
    to_publish_again: Marked  # the same, without the mark of being published at those that are missing


# ── What goes wrong ──


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteUnavailable:
    """A remote could not answer now."""

    at: At
    reason: str
    why: str
    after: timedelta | None = None  # its own wish (Retry-After)
    sent: bool = True  # False: what was asked cannot have got there


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRefused:
    """A remote said no."""

    at: At
    reason: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OurFault:
    """No solver for a name, a secret that cannot be opened, a CSR that cannot be built: no CA is to blame."""

    reason: str
    why: str


@dataclass(frozen=True, slots=True)
class AccountGone:
    """The CA does not know the account any more that we used, or that placed the order."""

    why: str


Setback = BreakerOpen | OrderFailed | RemoteUnavailable | RemoteRefused | AccountGone  # decided with `Facts.beside`
RemoteAnswer = (
    CallDone
    | OrderReady
    | OrderPending
    | CertificateIssued
    | ResponsesReported
    | Unfinished
    | NotVisible
    | OrderNotKept
    | OrderUncertain
    | OurFault
    | Setback
)


# ── Steps that go on within the claim ──


@dataclass(frozen=True, slots=True)
class MakeCall:
    """Make this call."""

    call: IssuerCall


@dataclass(frozen=True, slots=True)
class PlaceOrder:
    """Place the order; `doubted_since`: once more, although one may be there."""

    doubted_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class MoveOn:
    """Commit that the issuance moved; then make a call, or decide about an answer again."""

    event: IssuanceEvent
    then: IssuerCall | RemoteAnswer
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndAccount:
    """Put away the account that the CA does not know any more; then decide as for `AccountGone`."""

    why: str


# ── What is written beside a step that ends the claim ──


@dataclass(frozen=True, slots=True)
class HoldBudget:
    """The CA said "too many": no job uses this budget before `until`."""

    key: str
    until: datetime
    error: str


@dataclass(frozen=True, slots=True)
class CountFailure:
    """One more failure for the breaker of the issuer."""

    error: str
    opens: bool = False  # at once: a person must act, and is told


@dataclass(frozen=True, slots=True)
class BarAccount:
    """The CA does not let our account in; the first to hear so tells people."""

    reason: Reason
    error: str


@dataclass(frozen=True, slots=True)
class RaiseAlert:
    """An event with an alert."""

    event: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReportUnknownWord:
    """A word of a CA that we do not know: an event, once for each word."""

    word: str


@dataclass(frozen=True, slots=True)
class AlertOfCaApproval:
    """Tell that a person must approve the order at the CA, or that the order goes on; each once."""

    needed: bool
    word: str
    why: str


Effect = HoldBudget | CountFailure | BarAccount | RaiseAlert | ReportUnknownWord | AlertOfCaApproval


# ── Steps that end the claim ──


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Come back later, as the same attempt."""

    after: timedelta
    reason: Reason
    changes: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[Effect, ...] = ()
    for_a_person: bool = False  # what is in doubt is not ordered again by itself


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The attempt failed; the certificate climbs its ladder."""

    failure: FailureClass
    reason: Reason
    error: str
    also: tuple[Effect, ...] = field(default=(), kw_only=True)
    barred: bool = field(default=False, kw_only=True)  # the account is: only the first certificate counts it
    withdraw: bool = field(default=False, kw_only=True)  # the CA may be at work: the order is cancelled there

    @property
    def validated(self) -> bool:
        """Whether the CA looked at a response and did not accept it: it counts these by name."""
        return self.reason in (Reason.VALIDATION_FAILED, Reason.CAA_FORBIDS)


@dataclass(frozen=True, slots=True)
class StartOver:
    """End the attempt without counting it, and begin another at this issuer."""

    at: str
    reason: Reason
    error: str
    also: tuple[Effect, ...] = ()


@dataclass(frozen=True, slots=True)
class UseCertificate:
    """Put the certificate in use."""

    issued: CertificateIssued


@dataclass(frozen=True, slots=True)
class KeepOrderReference:
    """Store the reference of a placed order with the outcome of the job, which waits for the store."""

    ref: Mapping[str, Any]


LastStep = WaitFor | GiveUp | StartOver | UseCertificate | KeepOrderReference
IssuanceStep = MakeCall | PlaceOrder | MoveOn | EndAccount | LastStep
