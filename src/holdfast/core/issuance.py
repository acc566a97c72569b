"""An issuance: one attempt to obtain one certificate, in small steps that anyone can resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal

from holdfast.core.certificate import Certificate, Version
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.renewal import PATIENT_SHARE, good_until
from holdfast.errors import IllegalMove

LOOKUP_FOR: Final = timedelta(minutes=10)
ORDER_NUMBERS: Final = ("order", "ssl", "enrollment", "serial")  # keys of `ref`; the first that is there has the number
FALLBACK_AFTER: Final = 3  # failures in a row at one CA, before the next one is asked


class IssuanceState(StrEnum):
    AWAITING_APPROVAL = "awaiting_approval"
    REQUESTED = "requested"
    KEY_STORED = "key_stored"  # key sealed and CSR made: nothing has left yet
    ORDERED = "ordered"  # the CA's reference is committed
    PROVING = "proving"
    FINALIZING = "finalizing"
    WAITING = "waiting"  # the CA is at work
    ISSUED = "issued"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        return self in OVER


OVER: Final = frozenset({IssuanceState.ISSUED, IssuanceState.FAILED, IssuanceState.CANCELLED})
UNDER_WAY: Final = tuple(state for state in IssuanceState if state not in OVER)
NOT_HANDED_IN: Final = frozenset(
    {IssuanceState.KEY_STORED, IssuanceState.ORDERED, IssuanceState.PROVING}
)  # the CA has no CSR, unless with the order

IssuanceEvent = Literal[
    "approved", "key stored", "order placed", "proofs asked", "proved", "csr handed in", "certificate received",
    "gave up", "cancelled",
]  # fmt: skip

MOVES: Final[Mapping[tuple[IssuanceState, IssuanceEvent], IssuanceState]] = {
    (IssuanceState.AWAITING_APPROVAL, "approved"): IssuanceState.REQUESTED,
    (IssuanceState.REQUESTED, "key stored"): IssuanceState.KEY_STORED,
    (IssuanceState.KEY_STORED, "order placed"): IssuanceState.ORDERED,
    (IssuanceState.KEY_STORED, "csr handed in"): IssuanceState.WAITING,  # with the order
    (IssuanceState.ORDERED, "proofs asked"): IssuanceState.PROVING,
    (IssuanceState.PROVING, "proofs asked"): IssuanceState.PROVING,  # a CA may want another kind of proof for a name
    (IssuanceState.ORDERED, "proved"): IssuanceState.FINALIZING,
    (IssuanceState.PROVING, "proved"): IssuanceState.FINALIZING,
    (IssuanceState.FINALIZING, "proved"): IssuanceState.FINALIZING,  # a worker that resumes it hands the CSR in again
    (IssuanceState.WAITING, "proved"): IssuanceState.FINALIZING,  # the CA had not heard of the CSR after all
    (IssuanceState.ORDERED, "csr handed in"): IssuanceState.WAITING,
    (IssuanceState.PROVING, "csr handed in"): IssuanceState.WAITING,
    (IssuanceState.FINALIZING, "csr handed in"): IssuanceState.WAITING,
    (IssuanceState.WAITING, "csr handed in"): IssuanceState.WAITING,
    **{(state, "certificate received"): IssuanceState.ISSUED
       for state in (IssuanceState.ORDERED, IssuanceState.PROVING, IssuanceState.FINALIZING, IssuanceState.WAITING)},
    **{(state, "gave up"): IssuanceState.FAILED for state in UNDER_WAY},
    **{(state, "cancelled"): IssuanceState.CANCELLED for state in UNDER_WAY},
}  # fmt: skip


def move(state: IssuanceState, event: IssuanceEvent) -> IssuanceState:
    """The state after an event; no other function says one."""
    try:
        return MOVES[state, event]
    except KeyError:
        raise IllegalMove(f"an issuance that is {state} cannot be {event!r}") from None


Withdrawal = Literal["owed", "done", "none", "refused"]  # none: the CA has no such order


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuance:
    id: str
    certificate: str
    generation: int
    state: IssuanceState
    version: int = 1  # of the row: every step compares it
    issuer: str
    cause: str
    urgent: bool = False
    identifiers: tuple[Identifier, ...]
    key_secret: str | None = None
    csr: bytes | None = None
    asked_at: datetime | None = None  # an order was begun, and is binding
    ref: Mapping[str, Any] | None = None  # all that is needed to find the order again
    uncertain_since: datetime | None = None  # it may have been placed, and the CA cannot tell
    maybe_twice: bool = False  # after such a doubt it was ordered once more
    withdrawal: Withdrawal | None = None  # telling the CA that the order is given up
    proofs: Sequence[Mapping[str, Any]] = field(default_factory=tuple)  # published, or about to be
    replaces: str | None = None
    failures: int = 0  # passing ones in a row, within this attempt
    polls: int = 0
    polled_since: datetime | None = None
    requested_by: str
    started_at: datetime
    ended_at: datetime | None = None
    error: str | None = None
    reason: str | None = None

    @property
    def order_number(self) -> str | None:
        """The CA's own name for the order, by which its people find it; None while there is none."""
        known = [value for key in ORDER_NUMBERS if (value := (self.ref or {}).get(key)) is not None]
        return str(known[0]) if known else None


# ── Which CA is asked ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A CA of the certificate's list, as it stands now."""

    name: str
    known: bool = True
    paused: bool = False
    down: bool = False  # its breaker is open
    doubtful: bool = False  # it was down, and it is not known yet whether it still is
    held_until: datetime | None = None  # it named a time before which it wants to hear nothing
    turn_at: datetime | None = None  # when its budgets would let another order go


def choose(
    candidates: Sequence[Candidate], *, failures: int, left: timedelta | None, now: datetime, short: timedelta
) -> Candidate | None:
    """The CA for the next attempt; None if there is none that may be asked.

    The first of the list, and the next one after some failures in a row; the list is a ring, so that the first gets
    another chance. With little time left every failure moves on. One that cannot help is passed over while another can.
    """
    usable = [each for each in candidates if each.known and not each.paused]
    if not usable:
        return None
    little = left is not None and left < short
    turn = failures if little else failures // FALLBACK_AFTER
    ring = [usable[(turn + n) % len(usable)] for n in range(len(usable))]
    timid = little and not failures  # else it is its turn
    sound = [each for each in ring if can_help(each, left=left, now=now) and not (timid and each.doubtful)]
    in_time = [each for each in ring if left is None or each.held_until is None or each.held_until < now + left]
    return next(iter([*sound, *in_time, *ring]))


def can_help(candidate: Candidate, *, left: timedelta | None, now: datetime) -> bool:
    """Whether a CA that may be asked takes an order soon; `left` is the time that the certificate in use has."""
    if not candidate.known or candidate.paused or candidate.down:
        return False
    held = timedelta(0) if candidate.held_until is None else candidate.held_until - now
    turn = timedelta(0) if candidate.turn_at is None else candidate.turn_at - now
    return held <= patience(left) and turn <= patience_in_line(left)


def sooner(others: Sequence[Candidate], *, left: timedelta | None, wait: timedelta, now: datetime) -> Candidate | None:
    """The issuer that would take the order sooner than one that lets it wait for `wait`; None: there is no such."""
    able = [each for each in others if can_help(each, left=left, now=now) and (each.turn_at or now) - now <= wait / 2]
    return min(able, key=lambda each: each.doubtful, default=None)


# ── How long one waits for it ──

PATIENCE: Final = timedelta(hours=1)
PATIENCE_AT_LAST: Final = timedelta(minutes=1)
PATIENCE_AT_FIRST: Final = timedelta(minutes=10)  # there is no certificate yet, and a person waits for it


def patience(left: timedelta | None) -> timedelta:
    """How long an attempt without an order waits for a CA that is away, if there are others."""
    return PATIENCE_AT_FIRST if left is None else min(PATIENCE, patience_in_line(left))


def patience_in_line(left: timedelta | None) -> timedelta:
    """Likewise for its turn where many share what the CA allows: that the line goes on is not in doubt."""
    return PATIENCE if left is None else max(left * PATIENT_SHARE, PATIENCE_AT_LAST)


# ── When an attempt leaves one issuer for another ──


def left_of(current: Version | None, now: datetime) -> timedelta | None:
    """The time that is left for another attempt; None if there is no certificate yet."""
    return None if current is None else good_until(current) - now


def is_impatient(left: timedelta | None, *, waited: timedelta, wait: timedelta, in_line: bool) -> bool:
    """Whether an attempt without an order has waited long enough, or would have to.

    `in_line`: for its turn at a budget, and not for a CA that is away.
    """
    return wait > patience_in_line(left) if in_line else max(wait, waited) > patience(left)


def may_leave(issuance: Issuance, found: Certificate) -> bool:
    """Nothing is placed at its issuer, or may be; and there are others."""
    return issuance.ref is None and issuance.asked_at is None and len(found.wanted.issuers) > 1
