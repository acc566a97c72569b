"""People who log in: their accounts, the sessions of their browsers, and the rules of a log-in."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from holdfast.core.access import Role

PERSON_ROLES: Final = (Role.ADMIN, Role.OPERATOR, Role.VIEWER, Role.AUDITOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    id: str
    name: str  # by which the audit log knows them, as it does the name of a token
    role: Role
    rights: frozenset[str] = frozenset()
    owners: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    password: str | None = field(default=None, repr=False)  # argon2id, with its parameters and salt
    totp: str | None = None  # the id of a sealed secret
    totp_step: int = 0  # the last one of which a code was used
    issuer: str | None = None  # of the OpenID provider that vouches for them
    subject: str | None = None  # the provider's name for them, which never changes
    created_by: str
    created_at: datetime
    last_login_at: datetime | None = None
    disabled_at: datetime | None = None
    version: int = 1


class LoginMethod(StrEnum):
    PASSWORD = "password"  # noqa: S105  (with a second factor)
    PASSKEY = "passkey"
    PROVIDER = "provider"
    LINK = "link"  # made on the server's machine
    SETUP = "setup"  # a link that lets a person choose how to log in, and nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSession:
    """One browser in which a person is logged in."""

    id: str
    hash: str = field(repr=False)
    person: str
    method: LoginMethod
    address: str
    client: str
    sid: str | None = None  # the OpenID provider's name for it
    created_at: datetime
    used_at: datetime
    expires_at: datetime
    ended_at: datetime | None = None

    def good_at(self, now: datetime, idle_for: timedelta) -> bool:
        return self.ended_at is None and now < self.expires_at and now < self.used_at + idle_for


class TicketKind(StrEnum):
    LOGIN = "login"  # a link that logs a person in once
    SETUP = "setup"  # a link to choose a password and a second factor
    SECOND_FACTOR = "second factor"  # the password was right
    NEW_PASSKEY = "new passkey"  # a challenge for an enrolment
    SEEN = "seen"  # it was used, and must not come twice: a challenge, a state, a message of a provider


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What may be used once, until it expires."""

    hash: str = field(repr=False)
    kind: TicketKind
    person: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Passkey:
    id: str  # the credential's, as base64url
    person: str
    name: str
    credential: bytes = field(repr=False)  # id and public key, as the authenticator wrote them
    sign_count: int  # 0 for ever, if the authenticator does not count
    created_at: datetime
    last_used_at: datetime | None = None

    def counts_on(self, count: int) -> bool:
        """Whether this is the next use of the same authenticator, and not of a copy (WebAuthn §6.1.1)."""
        return count > self.sign_count or (count == 0 and self.sign_count == 0)


# ── Guessing ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failed log-ins of one name, or from one address. All replicas count together."""

    key: str
    failures: int
    counted_since: datetime
    refused_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """So many failures in a window cost nothing; each further one doubles the wait, up to a bound.

    There is no lock-out: with one, a stranger could lock an admin out by failing.
    """

    free: int
    longest: timedelta

    def after(self, before: Failures | None, key: str, now: datetime) -> Failures:
        """What is remembered after one more try."""
        if before is None or now >= max(before.counted_since, before.refused_until) + WINDOW:
            before = Failures(key=key, failures=0, counted_since=now, refused_until=now)
        number = before.failures + 1
        doubled = min(max(0, number - self.free), 20)  # beyond that every bound is reached
        wait = min(self.longest, FIRST_WAIT * 2 ** (doubled - 1)) if doubled else timedelta(0)
        return Failures(key=key, failures=number, counted_since=before.counted_since, refused_until=now + wait)


WINDOW: Final = timedelta(minutes=15)
FIRST_WAIT: Final = timedelta(seconds=2)
OF_NAME: Final = Patience(free=5, longest=timedelta(minutes=1))
OF_ADDRESS: Final = Patience(free=20, longest=timedelta(minutes=15))
SHORTEST_PASSWORD: Final = 12
LONGEST_PASSWORD: Final = 256


def password_problem(password: str, name: str) -> str | None:
    """Length is what counts; rules about digits and signs only lead to predictable passwords (NIST SP 800-63B)."""
    if len(password) < SHORTEST_PASSWORD:
        return f"A password has at least {SHORTEST_PASSWORD} characters. Several words make a good one."
    if len(password) > LONGEST_PASSWORD:
        return f"A password has at most {LONGEST_PASSWORD} characters."
    if name.lower() in password.lower() or len(set(password)) < 5:
        return "This password is easy to guess: it has your name in it, or the same few characters."
    return None


# ── Where a log-in leads to ──

_LOCAL: Final = re.compile(r"/(?![/\\])[!-\[\]-~]{0,2000}")  # no backslash, no blank, no control character


def local_path(text: str | None) -> str:
    """A path of this site as it is given, else "/". Browsers read // and /\\ as the beginning of another host."""
    if text is None or not _LOCAL.fullmatch(text) or text.partition("?")[0].startswith("/login"):
        return "/"
    return text


# ── Groups of an OpenID provider ──


@dataclass(frozen=True, slots=True)
class GroupRule:
    """What the members of a group may do, and for which owners' certificates; without owners for all."""

    group: str
    role: Role
    rights: frozenset[str] = frozenset()
    owners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Granted:
    role: Role
    rights: frozenset[str]
    owners: tuple[str, ...]


def granted(rules: Sequence[GroupRule], groups: Collection[str]) -> Granted | None:
    """The first rule that fits decides about the role. All rules with that role that fit give their owners.

    None: the person is in no group that is let in.
    """
    fit = [rule for rule in rules if rule.group in groups]
    if not fit:
        return None
    same = [rule for rule in fit if rule.role is fit[0].role]
    owners = dict.fromkeys(owner for rule in same for owner in rule.owners)
    everything = any(not rule.owners for rule in same)
    return Granted(fit[0].role, frozenset().union(*(rule.rights for rule in same)), () if everything else tuple(owners))


_RULE: Final = re.compile(
    r"([^=]{1,200})=(admin|operator|viewer|auditor)(\+export)?(?::([\w.:/@+-]+(?: [\w.:/@+-]+)*))?", re.ASCII
)


def group_rule(text: str) -> GroupRule | None:
    """`group=role`, `group=role:owner other-owner` or `group=role+export`; None if it is something else."""
    found = _RULE.fullmatch(text.strip())
    if found is None:
        return None
    rights = frozenset({"export"}) if found[3] else frozenset[str]()
    return GroupRule(found[1].strip(), Role(found[2]), rights, tuple((found[4] or "").split()))
