"""When the end of one of our own issuers is near: people need the time to make the next one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from holdfast.core.ca import CaOptions
from holdfast.core.notice import PLAIN_LIFE, Crossings, Severity, crossed, severity_of_crossing, thresholds

LEAST: Final = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerEnd:
    """The end of one CA's issuer, and how much must be left of it."""

    ca: str
    serial: str
    not_after: datetime
    needs: timedelta  # with less than this left, what it signs is cut to its end
    root_here: bool  # the key of its root is kept here, so that the next one can be made here

    def near(self, now: datetime) -> bool:
        return self.not_after - now < self.needs

    @property
    def crossing_key(self) -> str:
        """Under which it is noted what was told of it: the next issuer is another one."""
        return f"ca/{self.ca}/{self.serial}"


def needed(options: CaOptions) -> timedelta:
    longest = max((each.lifetime_s for each in options.profiles), default=0)
    return max(LEAST, timedelta(seconds=longest))


def crossings(end: IssuerEnd, now: datetime, told: set[int]) -> Crossings:
    """First when what it signs begins to be cut, then as every end is told of."""
    return crossed((end.needs, *thresholds(PLAIN_LIFE)), end.not_after, now, told)


def severity(number: int) -> Severity:
    return severity_of_crossing(max(number - 1, 0))


def remedy(ca: str, *, root_here: bool) -> str:
    """How it gets a later end."""
    if root_here:
        return f"holdfast ca renew-issuer {ca}"
    return f"holdfast pki recertify, where the root's key is; then: holdfast ca renew-issuer {ca} --chain FILE"
