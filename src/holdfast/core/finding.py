"""What a look found: whether it is as it should be, what was seen, and the one thing to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"  # worth knowing; nothing has to be done
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    level: Level
    saw: str
    fix: str = ""  # empty if all is well


def ok(check: str, saw: str) -> Finding:
    return Finding(check=check, level=Level.OK, saw=saw)


def note(check: str, saw: str, fix: str) -> Finding:
    return Finding(check=check, level=Level.NOTE, saw=saw, fix=fix)


def bad(check: str, saw: str, fix: str) -> Finding:
    return Finding(check=check, level=Level.BAD, saw=saw, fix=fix)
