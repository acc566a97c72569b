"""ACME objects (RFC 8555 §7.1): accounts, orders, authorizations, challenges, and the one table of moves of each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal, TypeVar

from holdfast.core.backoff import VALIDATION
from holdfast.core.own_ca.problem import Problem

IdentifierType = Literal["dns", "ip", "uri"]  # uri: of agents alone; no client can ask for one


@dataclass(frozen=True, slots=True, order=True)
class Identifier:
    """A name in its one spelling; a wildcard keeps its "*." here, and loses it in its authorization."""

    type: IdentifierType
    value: str

    @property
    def wildcard(self) -> bool:
        return self.value.startswith("*.")

    @property
    def base(self) -> str:
        return self.value.removeprefix("*.")

    def to_json(self) -> dict[str, str]:
        return {"type": self.type, "value": self.value}


# ── The machines of §7.1.6 ──


INTERNAL: Final = "internal:"  # before the id, in place of a thumbprint


class AccountState(StrEnum):
    VALID = "valid"
    DEACTIVATED = "deactivated"  # by its owner, for good
    REVOKED = "revoked"  # by us, for good


class OrderState(StrEnum):
    PENDING = "pending"
    READY = "ready"
    PROCESSING = "processing"  # its intent is committed, and a job signs it
    VALID = "valid"
    INVALID = "invalid"


class AuthzState(StrEnum):
    PENDING = "pending"
    VALID = "valid"
    INVALID = "invalid"
    DEACTIVATED = "deactivated"
    EXPIRED = "expired"
    REVOKED = "revoked"


class ChallengeState(StrEnum):
    PENDING = "pending"
    PROCESSING = "processing"  # a job tests it; tries that failed for now stay inside
    VALID = "valid"
    INVALID = "invalid"


ORDER_MOVES: Final[Mapping[tuple[OrderState, str], OrderState]] = {
    (OrderState.PENDING, "authorized"): OrderState.READY,
    (OrderState.PENDING, "refused"): OrderState.INVALID,
    (OrderState.PENDING, "expired"): OrderState.INVALID,
    (OrderState.READY, "finalized"): OrderState.PROCESSING,
    (OrderState.READY, "refused"): OrderState.INVALID,
    (OrderState.READY, "expired"): OrderState.INVALID,
    (OrderState.PROCESSING, "issued"): OrderState.VALID,
    (OrderState.PROCESSING, "refused"): OrderState.INVALID,
}

AUTHZ_MOVES: Final[Mapping[tuple[AuthzState, str], AuthzState]] = {
    (AuthzState.PENDING, "proved"): AuthzState.VALID,
    (AuthzState.PENDING, "disproved"): AuthzState.INVALID,
    (AuthzState.PENDING, "deactivated"): AuthzState.DEACTIVATED,
    (AuthzState.PENDING, "expired"): AuthzState.EXPIRED,
    (AuthzState.VALID, "deactivated"): AuthzState.DEACTIVATED,
    (AuthzState.VALID, "expired"): AuthzState.EXPIRED,
    (AuthzState.VALID, "revoked"): AuthzState.REVOKED,
}

CHALLENGE_MOVES: Final[Mapping[tuple[ChallengeState, str], ChallengeState]] = {
    (ChallengeState.PENDING, "answered"): ChallengeState.PROCESSING,
    (ChallengeState.PROCESSING, "tried"): ChallengeState.PROCESSING,
    (ChallengeState.PROCESSING, "proved"): ChallengeState.VALID,
    (ChallengeState.PROCESSING, "disproved"): ChallengeState.INVALID,
}

ACCOUNT_MOVES: Final[Mapping[tuple[AccountState, str], AccountState]] = {
    (AccountState.VALID, "deactivated"): AccountState.DEACTIVATED,
    (AccountState.VALID, "revoked"): AccountState.REVOKED,
}

S = TypeVar("S", bound=StrEnum)


def sources(table: Mapping[tuple[S, str], S], event: str) -> tuple[str, ...]:
    """The states that an event can happen in: what a conditional UPDATE compares with."""
    return tuple(state.value for (state, name) in table if name == event)


# ── The objects, as the store keeps them ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    id: str
    ca: str
    thumbprint: str  # RFC 7638, of the key it has now
    jwk: str  # canonical JSON
    state: AccountState
    contacts: tuple[str, ...] = ()
    eab_kid: str | None = None
    eab: str | None = None  # the binding as the client sent it (§7.3.4): shown back in the account
    names: tuple[str, ...] = ()  # patterns that a trusting CA lets it have without a challenge
    owner: str = ""  # whose it is, for policies: the owner of its EAB key
    agreed: bool = False  # to the terms of service
    created_at: datetime

    @property
    def internal(self) -> bool:
        """This installation's own: it has no key, so no client can sign for it."""
        return self.thumbprint.startswith(INTERNAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    id: str
    ca: str
    account: str
    state: OrderState
    profile: str
    identifiers: tuple[Identifier, ...]
    authzs: tuple[str, ...] = ()  # ids, in the order of the identifiers
    not_before: datetime | None = None  # as asked for
    not_after: datetime | None = None
    replaces: str | None = None  # RFC 9773 certID
    expires_at: datetime
    error: Problem | None = None
    certificate: str | None = None  # id, once valid
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    id: str
    authz: str
    type: str
    state: ChallengeState
    token: str
    thumbprint: str | None = None  # of the account's key when it answered
    error: Problem | None = None
    next_try_at: datetime | None = None
    valid_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Authz:
    id: str
    account: str
    identifier: Identifier  # without "*."
    wildcard: bool
    state: AuthzState
    expires_at: datetime
    challenges: tuple[Challenge, ...] = ()


# ── Rules ──


def state_at(order: Order, now: datetime) -> OrderState:
    """What an order is now, however late the sweep: only open orders expire (never processing, never valid)."""
    open_still = order.state in (OrderState.PENDING, OrderState.READY)
    return OrderState.INVALID if open_still and order.expires_at <= now else order.state


def authz_state_at(authz: Authz, now: datetime) -> AuthzState:
    open_still = authz.state in (AuthzState.PENDING, AuthzState.VALID)
    return AuthzState.EXPIRED if open_still and authz.expires_at <= now else authz.state


def likeness(
    identifiers: Iterable[Identifier],
    profile: str,
    replaces: str | None,
    not_before: datetime | None,
    not_after: datetime | None,
) -> str:
    """Equal for two requests exactly if one order serves both."""
    parts = [*(f"{each.type}:{each.value}" for each in sorted(identifiers)), profile, replaces or ""]
    parts += [str(at) for at in (not_before, not_after)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def key_authorization(token: str, thumbprint: str) -> str:
    return f"{token}.{thumbprint}"


def offered_types(identifier: Identifier, allowed: Sequence[str]) -> tuple[str, ...]:
    """Which challenges can prove this name: a wildcard only by DNS (§7.1.3), an address never by it (RFC 8738 §7)."""
    if identifier.type == "ip":
        return tuple(kind for kind in allowed if kind in ("http-01", "tls-alpn-01"))
    if identifier.wildcard:
        return tuple(kind for kind in allowed if kind.startswith("dns-"))
    return tuple(allowed)


def permits(patterns: Iterable[str], identifier: Identifier) -> bool:
    """Whether one of the patterns covers a name: "a.example", "*.example" (every name below it), or an address."""
    return any(_covers(pattern.lower(), identifier.value) for pattern in patterns)


def _covers(pattern: str, name: str) -> bool:
    if pattern == "*":
        return True
    if pattern.startswith("*."):
        return name.removeprefix("*.").endswith(pattern[1:]) or name == pattern
    return name == pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class EabKey:
    """An EAB key, without its secret."""

    kid: str
    ca: str
    secret_id: str
    names: tuple[str, ...] = ()  # patterns; what its account gets without a challenge from a CA that trusts
    owner: str = ""  # whose its account will be, for policies
    note: str = ""
    account: str | None = None  # bound once, for good
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def usable_at(self, now: datetime) -> bool:
        """Whether an account may be bound with it now."""
        return self.account is None and self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


Tries = tuple[Mapping[str, Any], ...]  # what each test of the challenge saw, the first one first


@dataclass(frozen=True, slots=True)
class Proved:
    tries: Tries


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The failure may pass by itself: the challenge stays in processing (RFC 8555 §8.2)."""

    tries: Tries
    after: timedelta


@dataclass(frozen=True, slots=True)
class Disproved:
    tries: Tries
    problem: Problem


ValidationStep = Proved | TryAgain | Disproved


def decide_validation(
    before: Tries, evidence: Mapping[str, object], problem: Problem | None, *, retryable: bool, most: int
) -> ValidationStep:
    """Say what follows from a test, by what it saw and what was wrong; `most` is how often a challenge is tested."""
    if problem is None:
        return Proved((*before, evidence))
    tries = (*before, {**evidence, "problem": problem.type, "error": problem.detail})
    if retryable and len(tries) < most:
        return TryAgain(tries, VALIDATION.rung(len(tries)))
    return Disproved(tries, problem)
