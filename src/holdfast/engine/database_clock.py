"""The database's clock as a worker last saw it, to notice when somebody sets it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

CLOCK_JUMP: Final = timedelta(seconds=60)


@dataclass(slots=True)
class DatabaseClock:
    at: datetime | None = None
    seen: float = 0.0  # then, by our own monotonic clock
    look_at: float = 0.0  # when to look again
    distrusted_until: float = 0.0

    def expected(self, asked_at: float, own: datetime) -> datetime | None:
        """Where it should be, by our own count since we last saw it; None while it is too early to look again."""
        if asked_at < self.look_at:
            return None
        return own if self.at is None else self.at + timedelta(seconds=asked_at - self.seen)

    def plausible(self, now: datetime | None, expected: datetime | None, asked_at: float) -> bool:
        """Not while the clock has just been set: every lease would look expired, and all work would be stolen."""
        if asked_at < self.distrusted_until:
            return False
        if self.at is None or now is None or expected is None:
            return True
        return abs(now - expected) <= CLOCK_JUMP

    def note(
        self, now: datetime, expected: datetime, asked_at: float, *, again_after: timedelta, doubt_for: timedelta
    ) -> float:
        """Remember it; how many seconds it jumped, 0 if it went as it should."""
        jump = now - expected if self.at is not None else timedelta(0)
        jumped = abs(jump) > CLOCK_JUMP
        if jumped:
            self.distrusted_until = asked_at + doubt_for.total_seconds()
        self.at, self.seen, self.look_at = now, asked_at, asked_at + again_after.total_seconds()
        return jump.total_seconds() if jumped else 0.0
