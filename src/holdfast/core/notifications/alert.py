"""Alerts: what an event is worth telling people, and the outages that several alerts are about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from shlex import quote
from typing import Any, Final, Literal

from holdfast.core.issuers.ca_limits import is_pause
from holdfast.core.notifications.notification import Severity

Mode = Literal[
    "plain",  # one alert, and no outage
    "opens",  # the first alert of an outage; later ones with its key are only counted
    "continues",  # opens the outage, or is sent as news of it
    "clears",  # the all-clear; sent only if the outage is open
]
Details = Mapping[str, Any]
SHOWN: Final = 500  # characters of an error text from a CA or a channel


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The subject of an event, as the store knows it."""

    subject: str
    name: str
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    safe_until: datetime | None = None  # None: the certificate has no version yet that could expire
    issuer: str = ""  # the issuer that the event is about
    ca_down: bool = False  # the outage of its issuer is open: people know

    @property
    def typed(self) -> str:
        """Its name as an argument of a command: a wildcard is not for the shell to expand."""
        return quote(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """The words of one alert, before the channels that want it are known."""

    severity: Severity
    title: str
    text: str
    mode: Mode
    key: str = ""  # of the outage; empty: the alert belongs to none
    gate: str = ""  # key of a part of the outage that has a first alert of its own
    next: str = ""
    reason: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    not_to: str = ""  # the channel that the alert is about: it is not sent there
    of: str = ""  # the issuer that the alert is about; the certificate of the event is then only an example


AlertRule = Callable[[Details, About], Alert | None]


def clear(title: str, text: str, key: str, *, not_to: str = "") -> Alert:
    """The all-clear of an outage. Routing gives it the severity of the outage, so that it reaches the same channels."""
    return Alert(severity=Severity.INFO, title=title, text=text, mode="clears", key=key, not_to=not_to)


def said(details: Details) -> str:
    error = str(details.get("error") or "")
    return error if is_pause(error) else error[:SHOWN]  # a link that is cut leads nowhere


def in_words(left: timedelta) -> str:
    """Two days or more in days, two hours or more in hours: 13 days, 47 hours, 90 minutes."""
    seconds = left.total_seconds()
    for unit, length in (("days", 86400), ("hours", 3600)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    minutes = max(round(seconds / 60), 1)
    return f"{minutes} minutes" if minutes > 1 else "a minute"


# ── Outages ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Something that is wrong for a while; its alerts share one key."""

    key: str
    event: str
    severity: Severity
    subject: str
    name: str
    repeats: int
    opened_at: datetime
    seen_at: datetime


def certificate_key(certificate: str) -> str:
    return f"certificate/{certificate}"


def issuer_key(issuer: str) -> str:
    return f"issuer/{issuer}"


def account_key(issuer: str) -> str:
    return f"ca-account/{issuer}"


def endpoint_key(endpoint: str) -> str:
    return f"endpoint/{endpoint}"


def find_key(find: str) -> str:
    return f"find/{find}"


UNMANAGED_KEY: Final = "finds/unmanaged"


def approval_key(approval: str) -> str:
    return f"approval/{approval}"


def windows_key(issuer: str) -> str:
    return f"ca-windows/{issuer}"


def order_key(certificate: str) -> str:
    return f"order/{certificate}"


def ca_approval_key(issuance: str) -> str:
    return f"ca-approval/{issuance}"


def revocation_key(version: str) -> str:
    return f"revocation/{version}"


def withdrawal_key(issuance: str) -> str:
    return f"withdrawal/{issuance}"


def signing_certificate_key(ca: str) -> str:
    return f"ca-issuer/{ca}"
