"""What one person keeps for themselves: things that need a person and were put off, and saved views."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

GROUPS: Final = frozenset({"approvals", "dead-letters", "paused"})  # each is one row, whatever its first name is


@dataclass(frozen=True, slots=True, kw_only=True)
class Snooze:
    """One thing that an actor does not want to see until a time."""

    actor: str
    what: str
    name: str  # empty for a group
    standing: str
    number: int
    why: str
    at: datetime
    until: datetime

    def holds(self, standing: str, number: int, now: datetime) -> bool:
        """Not when the thing has changed since: it stands otherwise, or there are more of them."""
        return now < self.until and standing == self.standing and number <= self.number


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedView:
    """A filter of the list of certificates under a name."""

    actor: str
    name: str
    query: str
    at: datetime


def key_of(what: str, name: str) -> tuple[str, str]:
    return what, "" if what in GROUPS else name
