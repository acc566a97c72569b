"""An issuance: one attempt to obtain one certificate, in small steps that anyone can resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal

from holdfast.core.acme import Identifier
from holdfast.errors import IllegalMove

FALLBACK_AFTER: Final = 3  # failures in a row at one CA, before the next one is asked


class State(StrEnum):
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


OVER: Final = frozenset({State.ISSUED, State.FAILED, State.CANCELLED})
UNDER_WAY: Final = tuple(state for state in State if state not in OVER)

Event = Literal[
    "approved", "key stored", "order placed", "proofs asked", "proved", "csr handed in", "certificate received",
    "gave up", "cancelled",
]  # fmt: skip

MOVES: Final[Mapping[tuple[State, Event], State]] = {
    (State.AWAITING_APPROVAL, "approved"): State.REQUESTED,
    (State.REQUESTED, "key stored"): State.KEY_STORED,
    (State.KEY_STORED, "order placed"): State.ORDERED,
    (State.KEY_STORED, "csr handed in"): State.WAITING,  # with the order
    (State.ORDERED, "proofs asked"): State.PROVING,
    (State.PROVING, "proofs asked"): State.PROVING,  # a CA may want another kind of proof for a name
    (State.ORDERED, "proved"): State.FINALIZING,
    (State.PROVING, "proved"): State.FINALIZING,
    (State.FINALIZING, "proved"): State.FINALIZING,  # whoever resumes it hands the CSR in again
    (State.WAITING, "proved"): State.FINALIZING,  # the CA had not heard of the CSR after all
    (State.ORDERED, "csr handed in"): State.WAITING,
    (State.PROVING, "csr handed in"): State.WAITING,
    (State.FINALIZING, "csr handed in"): State.WAITING,
    (State.WAITING, "csr handed in"): State.WAITING,
    **{(state, "certificate received"): State.ISSUED
       for state in (State.ORDERED, State.PROVING, State.FINALIZING, State.WAITING)},
    **{(state, "gave up"): State.FAILED for state in UNDER_WAY},
    **{(state, "cancelled"): State.CANCELLED for state in UNDER_WAY},
}  # fmt: skip


def move(state: State, event: Event) -> State:
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
    state: State
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


# ── Which CA is asked ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A CA of the certificate's list, as it stands now."""

    name: str
    known: bool = True
    paused: bool = False
    down: bool = False  # its breaker is open
    held_until: datetime | None = None  # it named a time before which it wants to hear nothing


def choose(
    candidates: Sequence[Candidate], *, failures: int, left: timedelta | None, now: datetime, short: timedelta
) -> Candidate | None:
    """The CA for the next attempt; None if there is none that may be asked.

    The first of the list, and the next one after some failures in a row; the list is a ring, so that the first gets
    another chance. With little time left every failure moves on, and a CA that cannot help in time is passed over.
    """
    usable = [each for each in candidates if each.known and not each.paused]
    if not usable:
        return None
    little = left is not None and left < short
    turn = failures if little else failures // FALLBACK_AFTER
    ring = [usable[(turn + n) % len(usable)] for n in range(len(usable))]
    deadline = None if left is None else now + left
    return next((each for each in ring if not _hopeless(each, now, deadline, little=little)), ring[0])


def _hopeless(candidate: Candidate, now: datetime, deadline: datetime | None, *, little: bool) -> bool:
    if candidate.down:
        return little
    held = candidate.held_until
    return held is not None and held > now and deadline is not None and (little or held >= deadline)
