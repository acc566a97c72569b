"""Durations as people write them: one grammar for settings, commands and documents."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

UNITS: Final = {
    "w": (timedelta(weeks=1), "week"),
    "d": (timedelta(days=1), "day"),
    "h": (timedelta(hours=1), "hour"),
    "m": (timedelta(minutes=1), "minute"),
    "s": (timedelta(seconds=1), "second"),
    "ms": (timedelta(milliseconds=1), "millisecond"),
}
PATTERN: Final = r"([0-9]+)(?:\.([0-9]{1,6}))?(ms|s|m|h|d|w)"  # a number and its unit, without a space
_WRITTEN: Final = tuple((unit, size) for unit, (size, _) in UNITS.items() if unit != "w")  # 14d says more than 2w
_PARSED: Final = re.compile(PATTERN)


def parse(text: str) -> timedelta:
    """The duration that a text such as 90d, 1.5h or 500ms says; ValueError if it says none, OverflowError if it is
    longer than a timedelta can be."""
    found = _PARSED.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r:.40} is no duration")
    whole, fraction, unit = found.groups()
    size = UNITS[unit][0]
    return int(whole) * size + int((fraction or "").ljust(6, "0")) * size / 10**6  # exact, as floats would not be


def brief(span: timedelta) -> str:
    """A duration as `parse` reads it, in its largest whole unit: 90d, 5m, 500ms; else as a fraction of seconds."""
    exact = (f"{span // size}{unit}" for unit, size in _WRITTEN if span and not span % size)
    return next(exact, _in_seconds(span))


def _in_seconds(span: timedelta) -> str:
    micros = span // timedelta(microseconds=1)
    return f"{micros // 10**6}.{micros % 10**6:06}".rstrip("0").rstrip(".") + "s"


def in_words(span: timedelta) -> str:
    """A duration as in a sentence: 1 second, 90 days."""
    exact = ((span // size, UNITS[unit][1]) for unit, size in _WRITTEN if span and not span % size)
    count, word = next(exact, (0, "second"))
    return f"{count} {word}{'' if count == 1 else 's'}"


def rounded(span: timedelta) -> str:
    """About how long, in one unit: 90 days for 89 days and 23 hours, 36 hours for a day and a half."""
    unit = next((unit for unit in "dhm" if span >= 2 * UNITS[unit][0]), "s")
    size, word = UNITS[unit]
    count = round(span / size)
    return f"{count} {word}{'' if count == 1 else 's'}"
