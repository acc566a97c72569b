"""What may be asked about all certificates at once, and the answer in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal

Sort = Literal["name", "expires"]
# The phases of the status block; `failing` without those whose next attempt is made in time, which are `retrying`, and
# `ok` without those whose time has come, which are `due`; a renewal that has no budget yet is `waiting`, and one whose
# deployment fails is `not-served`.
Standing = Literal[
    "expired", "failing", "revoked", "not-served", "retrying", "awaiting_approval", "waiting", "paused", "due",
    "pending", "renewing", "ok", "archived",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryFilter:
    """Which certificates. The principal's own labels and owners narrow those that are asked for."""

    text: str | None = None  # in its name, or in one of those it is for
    state: str | None = None  # None: all but archived ones
    owners: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    issuer: str | None = None
    failing: bool = False
    for_a_person: bool = False  # its issuance, or its next one, waits for something that a person must do
    standings: tuple[str, ...] = ()  # any of these
    at: datetime | None = None  # the time that standings are of
    expires_before: datetime | None = None
    whatever_state: bool = False  # archived ones, too


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which rows of the audit log."""

    actor: str | None = None
    action: str | None = None
    subject: str | None = None
    since: datetime | None = None
    until: datetime | None = None  # and not at it


@dataclass(frozen=True, slots=True, kw_only=True)
class InventorySummary:
    """The inventory in numbers."""

    at: datetime
    states: Mapping[str, int]
    failing: int
    due: int  # their time has come, and no attempt has begun
    under_way: int
    awaiting_approval: int
    never_issued: int
    expired: int
    expiring: Mapping[str, int]  # within so many days
    jobs: Mapping[str, int]
    notifications_dead: int | None  # None: the principal may not see them all


EXPIRING_WITHIN: Final = (1, 7, 14, 30, 90)  # days


Bucket = Literal["hour", "day", "week", "month"]
SPANS: Final[Mapping[Bucket, timedelta]] = {
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(days=7),
    "month": timedelta(days=30),
}
MOST_BUCKETS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Equal spans of time, one after the other."""

    start: datetime
    step: timedelta
    number: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= MOST_BUCKETS:
            raise ValueError(f"at most {MOST_BUCKETS} spans at a time")

    @property
    def end(self) -> datetime:
        return self.start + self.number * self.step

    def begins(self, index: int) -> datetime:
        return self.start + index * self.step


def grid_around(now: datetime, bucket: Bucket, number: int, *, back: bool) -> Grid:
    """The span that `now` is in, and those after it, or before it; they begin at full hours or days, UTC."""
    step = SPANS[bucket]
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    first = now.replace(minute=0, second=0, microsecond=0) if bucket == "hour" else midnight
    return Grid(start=first - (number - 1) * step if back else first, step=step, number=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryCount:
    """How many certificates end in a span, and how many renewals are planned in it."""

    at: datetime
    expiring: int
    renewals: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeCounts:
    """Attempts that ended in a span."""

    at: datetime
    issued: int
    failed: int
    cancelled: int
    reasons: Mapping[str, int]  # of those that failed


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerRate:
    """Certificates that one CA issued in a span, and how long that took on average and at most."""

    at: datetime
    issuer: str
    issued: int
    mean_s: float
    longest_s: float
