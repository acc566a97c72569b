"""The breaker of a remote: after some failures in a row it opens for a while; then one probe decides for all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from holdfast.core.backoff import BREAKER_BARRED, BREAKER_DOWN, BREAKER_LIMITED, Ladder, spread

OPENS_AFTER: Final = 5  # failures in a row, of whatever certificate
PROBE_FOR: Final = timedelta(minutes=5)  # a probe that was not heard of for so long has died


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """Closed while `until` is None."""

    failures: int = 0
    until: datetime | None = None
    probe: str | None = None  # who tries for all, once `until` has passed
    probe_until: datetime | None = None
    error: str | None = None
    limits: int = 0  # times in a row that it said "too many requests", and nothing else; below 0: that it barred us

    def open_at(self, now: datetime) -> bool:
        return self.until is not None and now < self.until

    def shut_at(self, now: datetime) -> bool:
        """Whether a newcomer must wait: the breaker is open, or a probe is under way."""
        probed = self.probe is not None and self.probe_until is not None and now < self.probe_until
        return self.open_at(now) or (self.until is not None and probed)

    @property
    def limited(self) -> bool:
        return self.limits > 0

    @property
    def barred(self) -> bool:
        """The remote refuses our account, for all certificates alike."""
        return self.limits < 0 and self.until is not None

    @property
    def lasted(self) -> timedelta:
        """For how long it has been shut, at least: the waits that are over."""
        return (
            _sum(BREAKER_DOWN, self.failures - OPENS_AFTER)
            + _sum(BREAKER_LIMITED, self.limits - 1)
            + _sum(BREAKER_BARRED, -self.limits - 1)
        )


def _sum(ladder: Ladder, rungs: int) -> timedelta:
    return sum((ladder.rung(n) for n in range(1, min(rungs, 50) + 1)), timedelta(0))


def failed(breaker: Breaker, now: datetime, error: str, *, opens_after: int = OPENS_AFTER) -> Breaker:
    failures = breaker.failures + 1
    if failures < opens_after:
        return replace(breaker, failures=failures, error=error, probe=None, probe_until=None)
    if breaker.open_at(now):
        return replace(breaker, error=error)  # asked before it opened: no news
    wait = BREAKER_DOWN.rung(failures - opens_after + 1)
    return replace(breaker, failures=failures, until=now + wait, error=error, probe=None, probe_until=None)


def succeeded(breaker: Breaker) -> Breaker:
    return Breaker()


def limited(breaker: Breaker, now: datetime, until: datetime, error: str) -> Breaker:
    """It named a time; when that is over, one asks for all. If it says so again and again, we come more seldom."""
    limits = max(breaker.limits, 0) + 1
    until = max(until, now + BREAKER_LIMITED.rung(limits))
    return replace(breaker, limits=limits, until=until, error=error, probe=None, probe_until=None)


def barred(breaker: Breaker, now: datetime, error: str) -> Breaker:
    """The remote refuses our account: one probe goes now and then, until it succeeds or the settings change."""
    if breaker.barred and breaker.open_at(now):
        return replace(breaker, error=error)  # asked before that: no news
    times = max(-breaker.limits, 0) + 1
    until = now + BREAKER_BARRED.rung(times)
    return replace(breaker, limits=-times, until=until, error=error, probe=None, probe_until=None)


def another_chance(breaker: Breaker, now: datetime, *, opens_after: int = OPENS_AFTER) -> Breaker:
    """A person changed the settings: one probe is sent now, and the waits begin anew if it fails."""
    failures, limits = min(breaker.failures, opens_after), max(min(breaker.limits, 1), -1)
    return replace(breaker, failures=failures, limits=limits, until=now, probe=None, probe_until=None)


def admit(breaker: Breaker, who: str, now: datetime) -> tuple[Breaker, datetime | None]:
    """Whether `who` may ask now, or when to come back. Once the time is over the first becomes the probe."""
    if breaker.until is None or breaker.probe == who:
        return breaker, None
    if now < breaker.until:
        return breaker, breaker.until + BREAKER_DOWN.first * spread(who)
    if breaker.probe is not None and breaker.probe_until is not None and now < breaker.probe_until:
        return breaker, now + BREAKER_DOWN.first * (1 + spread(who)) / 2
    return replace(breaker, probe=who, probe_until=now + PROBE_FOR), None
