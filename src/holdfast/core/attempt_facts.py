"""What is known while an issuance is worked on: the facts of one claim, and what a remote can answer it.

`core/attempt.py` decides by these values alone. Each answer that a CA, a solver or the store can give is one of the
classes below; there is no other way for news to reach a decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from holdfast.core import renewal
from holdfast.core.breaker import Breaker
from holdfast.core.ca_limits import UNKNOWN, CaLimits, Reckoned, Used
from holdfast.core.certificate import Certificate, Version
from holdfast.core.issuance import Candidate, Issuance
from holdfast.core.job import Claim

# ── What the store says ──


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerFacts:
    """The issuer of the issuance, as its row and its kind say."""

    name: str
    known: bool = True  # False: its row was removed
    limits: CaLimits = UNKNOWN
    reckoned: Reckoned = field(default_factory=Reckoned)  # requests of a claim with this many names
    poll_window: timedelta = timedelta(0)  # zero: the default
    breaker: Breaker = field(default_factory=Breaker)


@dataclass(frozen=True, slots=True, kw_only=True)
class Previous:
    """The order that the certificate in use came from, if it is of the same issuer."""

    ref: Mapping[str, Any] | None = None
    same_names: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What is read only after a setback: while all is well these queries are not made."""

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
    fresh: bool = False  # it stored the key itself: nobody can have placed an order yet
    any_lifetime: bool = False  # the issuer lets nobody choose a lifetime
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

Call = Literal["admit", "store key", "open", "find", "look", "finalize"]
At = Literal["begin", "place", "prove"] | Call  # where a claim was when it got an answer


@dataclass(frozen=True, slots=True)
class Fine:
    """The call was made and there is no more to say: `find` found no order, `place` left one in the store."""

    at: At


@dataclass(frozen=True, slots=True)
class Shut:
    """The breaker of the issuer lets nobody in before `until`."""

    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertain:
    """An order may have been placed, and the CA cannot tell."""

    why: str
    for_a_person: bool = False  # only a person may order again


@dataclass(frozen=True, slots=True)
class OrderNotKept:
    """The order is placed, and its reference could not be stored: the store is away, or the issuance was changed."""

    ref: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ready:
    """All names are proved: the CSR can be handed in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """The CA is at work, or waits for a person on its side."""

    why: str
    after_s: float | None = None  # Retry-After
    word: str = ""  # the CA's own word for this state
    unknown: bool = False  # a word that we do not know
    person: bool = False  # a person must approve the order at the CA


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """The certificate, checked: key, names, chain and dates are as asked for."""

    version: Version
    added_names: tuple[str, ...] = ()  # beside those that were asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The order is over without a certificate that can be used."""

    why: str
    reason: str
    retryable: bool = True  # a new order may do better


# ── What comes of challenge responses ──

Marked = tuple[Mapping[str, Any], ...]  # the challenge responses of an issuance, with their marks


@dataclass(frozen=True, slots=True)
class Told:
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
class Later:
    """A remote could not answer now."""

    at: At
    reason: str
    why: str
    after: timedelta | None = None  # its own wish (Retry-After)
    sent: bool = True  # False: what was asked cannot have got there


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
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


Setback = Shut | Failed | Later | Refusal | AccountGone  # decided with `Facts.beside`
Answer = (
    Fine | Ready | Pending | Issued | Told | Unfinished | NotVisible | OrderNotKept | Uncertain | OurFault | Setback
)
