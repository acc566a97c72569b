"""Leases, replicas, and the turns of jobs that wait for one budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who may act under a name, until when (by the database's clock), and the number that proves it."""

    name: str
    holder: str
    fence: int
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One running process. The holder id is new at each start; the name is what people know it by."""

    holder: str
    name: str
    version: str
    started_at: datetime
    seen_at: datetime
    draining: bool  # it is to take no more work: it stops, or an operator drained it
    loops: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # how each ended last, by its own clock
    heartbeat: Mapping[str, Any] = field(default_factory=dict)  # what else it told with its last one

    @property
    def rests(self) -> bool:
        """It knows that it is to take no more work: from then on it has taken none."""
        return self.draining and bool(self.heartbeat.get("rests"))

    @property
    def clock_ahead_s(self) -> float | None:
        """How far its clock is ahead of the database's."""
        found = self.heartbeat.get("ahead")
        return None if found is None else float(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A job that was promised a time by its budgets (core/issuers/budget.py)."""

    job: str
    line: tuple[int, str]  # priority and budgets: turns are only changed among those that wait for the same
    at: datetime
    ends: datetime | None  # when the certificate that it renews expires; None: it is the first
    owner: str = ""


def dealt(turns: Iterable[Turn], soon: datetime) -> list[tuple[Turn, datetime]]:
    """Who gets another turn, and which. Turns are exchanged, not made: what the budgets allow stays as it is.

    Certificates that expire before `soon` go first, by their end; the others in turn between their owners.
    """
    lines: dict[tuple[int, str], list[Turn]] = {}
    for turn in turns:
        lines.setdefault(turn.line, []).append(turn)
    return [(turn, at) for line in lines.values() for turn, at in _in_line(line, soon) if at != turn.at]


def _in_line(line: list[Turn], soon: datetime) -> list[tuple[Turn, datetime]]:
    at_risk = sorted((each for each in line if each.ends is not None and each.ends <= soon), key=_by_end)
    rest = sorted((each for each in line if each.ends is None or each.ends > soon), key=_by_end)
    order = [*at_risk, *_between_owners(rest)]
    return list(zip(order, sorted(turn.at for turn in line), strict=True))


def _by_end(turn: Turn) -> tuple[datetime, datetime, str]:
    """A first certificate has no end: its place is by the turn that it was promised."""
    return (turn.ends or turn.at, turn.at, turn.job)


def _between_owners(turns: list[Turn]) -> list[Turn]:
    """The first of each owner, then the second of each: whoever has many waits for their own."""
    seen: Counter[str] = Counter()
    places = list[tuple[int, int, Turn]]()
    for turn in turns:
        places.append((seen[turn.owner], len(places), turn))
        seen[turn.owner] += 1
    return [turn for _, _, turn in sorted(places, key=lambda place: place[:2])]
