"""What can follow in one claim of an issuance: `core/attempt.py` decides on a step, `engine/issue.py` does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from holdfast.core.attempt_facts import Answer, Call, Issued
from holdfast.core.backoff import FailureClass
from holdfast.core.issuance import Event
from holdfast.core.reasons import Reason

# ── Steps that go on within the claim ──


@dataclass(frozen=True, slots=True)
class Ask:
    """Make this call."""

    call: Call


@dataclass(frozen=True, slots=True)
class Place:
    """Place the order; `doubted_since`: once more, although one may be there."""

    doubted_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class MoveOn:
    """Commit that the issuance moved; then make a call, or decide about an answer again."""

    event: Event
    then: Call | Answer
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndAccount:
    """Put away the account that the CA does not know any more; then decide as for `AccountGone`."""

    why: str


# ── What is written beside a step that ends the claim ──


@dataclass(frozen=True, slots=True)
class Hold:
    """The CA said "too many": no job uses this budget before `until`."""

    key: str
    until: datetime
    error: str


@dataclass(frozen=True, slots=True)
class Hurt:
    """One more failure for the breaker of the issuer."""

    error: str


@dataclass(frozen=True, slots=True)
class Bar:
    """The CA does not let our account in; the first to hear so tells people."""

    reason: Reason
    error: str


@dataclass(frozen=True, slots=True)
class Tell:
    """An event with an alert."""

    event: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TellWord:
    """A word of a CA that we do not know: an event, once for each word."""

    word: str


@dataclass(frozen=True, slots=True)
class TellApproval:
    """Tell that a person must approve the order at the CA, or that the order goes on; each once."""

    needed: bool
    word: str
    why: str


Effect = Hold | Hurt | Bar | Tell | TellWord | TellApproval


# ── Steps that end the claim ──


@dataclass(frozen=True, slots=True)
class Wait:
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
    withdraw: bool = field(default=False, kw_only=True)  # the CA may be at work: it is told that nobody waits

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
class Keep:
    """Put the certificate in use."""

    issued: Issued


@dataclass(frozen=True, slots=True)
class KeepOrder:
    """Store the reference of a placed order with the outcome of the job, which waits for the store."""

    ref: Mapping[str, Any]


End = Wait | GiveUp | StartOver | Keep | KeepOrder
Step = Ask | Place | MoveOn | EndAccount | End
