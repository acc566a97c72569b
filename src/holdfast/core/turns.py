"""Whose turn is next where many wait for one budget: whoever has the least time left, whenever they came."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A job that was promised a time by its budgets (core/budget.py)."""

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
