"""People who log in: their accounts, the sessions of their browsers, and the rules of a log-in."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
    PASSKEY = "passkey"  # a challenge for a log-in
    NEW_PASSKEY = "new passkey"  # a challenge for an enrolment
    PROVIDER = "provider"  # a log-in that is under way at an OpenID provider
    SEEN = "seen"  # a message of a provider that must not come twice


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What may be used once, until it expires."""

    hash: str = field(repr=False)
    kind: TicketKind
    person: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    expires_at: datetime


# ── Where a log-in leads to ──

_LOCAL: Final = re.compile(r"/(?![/\\])[!-\[\]-~]{0,2000}")  # no backslash, no blank, no control character


def local_path(text: str | None) -> str:
    """A path of this site as it is given, else "/". Browsers read // and /\\ as the beginning of another host."""
    if text is None or not _LOCAL.fullmatch(text) or text.partition("?")[0].startswith("/login"):
        return "/"
    return text
