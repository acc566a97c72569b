"""What is told of an event, and about whom: the values that words are put into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from holdfast.core.ca_limits import is_pause
from holdfast.core.notice import Severity

Mode = Literal[
    "plain",  # one word, about nothing that lasts
    "opens",  # something lasts: told once, however many suffer from it
    "continues",  # something lasts, and there is news of it
    "clears",  # it is over; told if its beginning was
]
Details = Mapping[str, Any]
SHOWN: Final = 500  # characters of what somebody else said


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What the store knows about the subject of an event."""

    subject: str
    name: str
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    safe_until: datetime | None = None  # None: there is no certificate yet that could end
    issuer: str = ""  # the CA that an event of it is about
    ca_down: bool = False  # people know that its CA is down


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    severity: Severity
    title: str
    text: str
    mode: Mode
    key: str = ""  # of the outage; without one, each word is for itself
    gate: str = ""  # a part of it that has a first word of its own
    next: str = ""
    reason: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    not_to: str = ""  # a channel that need not be told, since it is the one that is spoken of
    of: str = ""  # the CA that it is about in truth; what it was noticed by is then only an example


Tell = Callable[[Details, About], Told | None]


def clear(title: str, text: str, key: str, *, not_to: str = "") -> Told:
    """As severe as what it clears, so that it goes where that went."""
    return Told(severity=Severity.INFO, title=title, text=text, mode="clears", key=key, not_to=not_to)


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
