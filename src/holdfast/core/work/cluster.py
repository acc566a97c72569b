"""Leases, replicas, and the turns of jobs that wait for one budget."""

from __future__ import annotations

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
    ends: datetime  # when the certificate that it renews expires


def dealt(turns: Iterable[Turn]) -> list[tuple[Turn, datetime]]:
    """Who gets another turn, and which. Turns are exchanged, not made: what the budgets allow stays as it is."""
    lines: dict[tuple[int, str], list[Turn]] = {}
    for turn in turns:
        lines.setdefault(turn.line, []).append(turn)
    return [(turn, at) for line in lines.values() for turn, at in _in_line(line) if at != turn.at]


def _in_line(line: list[Turn]) -> list[tuple[Turn, datetime]]:
    by_risk = sorted(line, key=lambda turn: (turn.ends, turn.at, turn.job))
    return list(zip(by_risk, sorted(turn.at for turn in line), strict=True))
