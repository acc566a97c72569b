"""How pages write times, durations, numbers and the words of others."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Final

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_SHORT: Final = 600  # seconds below which seconds are shown, too


def span(length: timedelta | float, units: int = 2) -> str:
    """Two units: 3 h 12 min. A duration has no sign."""
    left = abs(length.total_seconds() if isinstance(length, timedelta) else length)
    if left < 1:
        return "0 s" if left < 0.001 else f"{left * 1000:.0f} ms"
    left = int(left)
    first = next(place for place, (size, _) in enumerate(_UNITS) if left >= size)
    if first == 2 and left >= _SHORT and units == 2:
        units = 1  # 41 min, and no seconds
    parts: list[str] = []
    for size, word in _UNITS[first : first + units]:
        whole, left = divmod(left, size)
        if whole or not parts:
            parts.append(f"{whole} {word}")
    return " ".join(parts)


def wait(length: timedelta) -> str:
    """Of a ladder: whole hours stay hours, 32 h."""
    hours = length / timedelta(hours=1)
    return f"{hours:.0f} h" if hours >= 1 and hours == int(hours) else span(length)


def coarse(length: timedelta | float) -> str:
    """One unit, for tables: 35 d; two where days are few: 1 d 6 h."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    return span(seconds, 1 if abs(seconds) >= 30 * 86400 else 2)


def number(value: int) -> str:
    return f"{value:,}"


def counted(value: int, one: str, many: str = "") -> str:
    """1 certificate, 2 certificates."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def exact(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def day(at: datetime, now: datetime) -> str:
    """9 Nov; with the year if it is another one."""
    at = at.astimezone(UTC)
    return f"{at.day} {at:%b}" if at.year == now.year else f"{at.day} {at:%b %Y}"


def moment(at: datetime, now: datetime) -> str:
    """today 10:43, 9 Nov 10:43, 9 Nov 2025."""
    at = at.astimezone(UTC)
    if at.date() == now.date():
        return f"today {at:%H:%M}"
    return f"{day(at, now)} {at:%H:%M}" if at.year == now.year else day(at, now)


def plain(text: str) -> str:
    """Text from outside, with control and bidirectional characters as visible marks."""
    return "".join(char if _harmless(char) else f"\\u{ord(char):04x}" for char in text)


def _harmless(char: str) -> bool:
    return char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def sentence(text: str) -> str:
    """A text that ends like a sentence."""
    return text if not text or text[-1] in ".!?…" else f"{text}."


def share(part: float, whole: float) -> int:
    """Per cent, from 0 to 100."""
    return 0 if whole <= 0 else round(100 * max(0.0, min(1.0, part / whole)))
