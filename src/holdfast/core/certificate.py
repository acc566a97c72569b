"""A certificate: what its owner wants, what we hold of it, and the moves of both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from holdfast.core.acme import Identifier
from holdfast.errors import IllegalMove

MAX_NAMES: Final = 100


class State(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"  # nothing is done, by somebody's wish
    ARCHIVED = "archived"  # for good; what it holds is kept


class VersionState(StrEnum):
    ACTIVE = "active"
    SUPERSEDED = "superseded"
    REVOKED = "revoked"
    IMPORTED = "imported"  # in use like an active one, and not issued through us


MOVES: Final[Mapping[tuple[State, str], State]] = {
    (State.ACTIVE, "paused"): State.PAUSED,
    (State.PAUSED, "resumed"): State.ACTIVE,
    (State.ACTIVE, "archived"): State.ARCHIVED,
    (State.PAUSED, "archived"): State.ARCHIVED,
}


def move(state: State, event: str) -> State:
    try:
        return MOVES[state, event]
    except KeyError:
        raise IllegalMove(f"a certificate that is {state} cannot be {event!r}") from None


# ── What its owner wants ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When to renew, where the CA does not say: after a share of its life, or so long before its end."""

    fraction: float | None = None  # None: 2/3, and 1/2 for those that live less than 10 days
    before: timedelta | None = None
    ari: bool = True  # ask the CA (RFC 9773)

    def __post_init__(self) -> None:
        if self.fraction is not None and not 0.1 <= self.fraction <= 0.95:
            raise ValueError("a fraction is between 0.1 and 0.95")
        if self.before is not None and self.before <= timedelta(0):
            raise ValueError("'before' is longer than nothing")
        if self.fraction is not None and self.before is not None:
            raise ValueError("either a fraction or 'before', not both")

    def to_json(self) -> dict[str, Any]:
        before = None if self.before is None else self.before.total_seconds()
        return {"fraction": self.fraction, "before_s": before, "ari": self.ari}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Rule:
        before = raw.get("before_s")
        return cls(
            fraction=raw.get("fraction"),
            before=None if before is None else timedelta(seconds=before),
            ari=bool(raw.get("ari", True)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A maintenance window, in UTC: on these days from one minute of the day to another, over midnight if it must."""

    days: frozenset[int] = frozenset(range(7))  # Monday is 0: the day on which it opens
    opens: int = 0  # minutes after midnight
    closes: int = 24 * 60

    def __post_init__(self) -> None:
        if not self.days or not self.days <= frozenset(range(7)):
            raise ValueError("a window opens on at least one day of the week")
        if not (0 <= self.opens < 24 * 60 and 0 < self.closes <= 24 * 60) or self.opens == self.closes:
            raise ValueError("a window opens and closes at different minutes of the day")

    @property
    def length(self) -> timedelta:
        return timedelta(minutes=(self.closes - self.opens) % (24 * 60) or 24 * 60)

    def to_json(self) -> dict[str, Any]:
        return {"days": sorted(self.days), "opens": self.opens, "closes": self.closes}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Window:
        return cls(days=frozenset(raw["days"]), opens=raw["opens"], closes=raw["closes"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What its owner asks for. Changing any of the inputs is a new generation."""

    name: str
    identifiers: tuple[Identifier, ...]
    issuers: tuple[str, ...]  # the first is asked first
    key_kind: str = "ec-p256"
    profile: str | None = None
    preferred_chain: str | None = None
    lifetime: timedelta | None = None
    reuse_key: bool = False
    rule: Rule = field(default_factory=Rule)
    windows: tuple[Window, ...] = ()
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    approval_required: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.identifiers) <= MAX_NAMES:
            raise ValueError(f"a certificate has 1 to {MAX_NAMES} names")
        if not self.issuers:
            raise ValueError("a certificate needs a CA to come from")

    def fingerprint(self) -> str:
        """Equal as long as the same certificate would be issued: a new one is a new generation, failures forgotten."""
        life = None if self.lifetime is None else self.lifetime.total_seconds()
        inputs = [
            sorted((each.type, each.value) for each in self.identifiers),
            list(self.issuers),
            [self.key_kind, self.profile, self.preferred_chain, life],
        ]
        return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:32]


def in_common_with(theirs: Iterable[Identifier]) -> Callable[[Iterable[Identifier]], str | None]:
    """Finds a name of ours that certificates with their names are good for, or the other way round; None: no such."""
    known = {(each.type, each.value) for each in theirs}
    below = {_above(value) for type_, value in known if type_ == "dns"}

    def found(ours: Iterable[Identifier]) -> str | None:
        for each in ours:
            wider = f"*.{_above(each.value)}"
            if (each.type, each.value) in known or (each.type, wider) in known:
                return each.value
            if each.value == wider and _above(wider) in below:
                return each.value
        return None

    return found


def _above(name: str) -> str:
    """The name without its first label: a wildcard is good for those that have this in common with it."""
    return name.partition(".")[2]


# ── What we hold ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One issued certificate with its key."""

    id: str
    certificate: str
    generation: int
    state: VersionState
    key_secret: str
    chain_pem: str
    serial: str
    not_before: datetime
    not_after: datetime
    issuer: str
    account: str | None
    spki_sha256: str
    issued_at: datetime
    issuance: str | None = None
    revoke_reason: int | None = None
    revoke_asked_at: datetime | None = None
    revoked_at: datetime | None = None

    @property
    def life(self) -> timedelta:
        return self.not_after - self.not_before

    @property
    def revoked(self) -> bool:
        """Or about to be: from the wish on it must not be relied upon."""
        return self.state is VersionState.REVOKED or self.revoke_asked_at is not None

    @property
    def revocation_done(self) -> bool:
        """The CA has revoked it, and not only been asked to."""
        return self.state is VersionState.REVOKED or self.revoked_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ari:
    """The CA's window for the current version, and the instant that was picked in it once."""

    start: datetime
    end: datetime
    pick: datetime
    explanation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """Failures in a row. Present only while it is failing; a missing count is that of an older release."""

    attempts: int | None
    last_at: datetime
    first_at: datetime | None = None
    error: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    id: str
    wanted: Wanted
    state: State
    generation: int
    version: int  # of the row: a change compares it
    fingerprint: str
    changed_by: str
    created_at: datetime
    failing: Failing | None = None
    next_action_at: datetime | None = None
    next_cause: str | None = None
    current_version: str | None = None
    ari: Ari | None = None
    ari_forced_at: datetime | None = None
    ari_ask_at: datetime | None = None

    @property
    def name(self) -> str:
        return self.wanted.name


def failed(failing: Failing | None, at: datetime, *, error: str, reason: str) -> Failing:
    """One failure more."""
    if failing is None:
        return Failing(attempts=1, first_at=at, last_at=at, error=error, reason=reason)
    return replace(
        failing,
        attempts=(failing.attempts or 0) + 1,
        first_at=failing.first_at or failing.last_at,
        last_at=at,
        error=error,
        reason=reason,
    )
