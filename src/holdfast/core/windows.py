"""Maintenance windows: hours of a week in a time zone, and when the next of them opens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Final

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")  # as people write them; Monday is 0
UTC_NAME: Final = "UTC"
_OF_THE_MACHINE: Final = frozenset({"localtime", "Factory"})  # another on each
_MINUTE: Final = timedelta(minutes=1)


@lru_cache(maxsize=256)
def zone_of(name: str) -> tzinfo:
    """A time zone by its IANA name; ValueError if there is none."""
    if name == UTC_NAME:
        return UTC
    from zoneinfo import ZoneInfo, available_timezones  # commands load this module, and few of them need zones

    if name not in available_timezones() - _OF_THE_MACHINE:
        raise ValueError(f"there is no time zone {name!r:.60}; one is Europe/Berlin")
    return ZoneInfo(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceWindow:
    """On these days from one minute of the day to another, over midnight if it must, by the clocks of its zone."""

    days: frozenset[int] = frozenset(range(7))  # Monday is 0: the day on which it opens
    opens: int = 0  # minutes after midnight
    closes: int = 24 * 60
    zone: str = UTC_NAME

    def __post_init__(self) -> None:
        if not self.days or not self.days <= frozenset(range(7)):
            raise ValueError("a window opens on at least one day of the week")
        if not (0 <= self.opens < 24 * 60 and 0 < self.closes <= 24 * 60) or self.opens == self.closes:
            raise ValueError("a window opens and closes at different minutes of the day")
        zone_of(self.zone)

    @property
    def length(self) -> timedelta:
        return timedelta(minutes=(self.closes - self.opens) % (24 * 60) or 24 * 60)

    def to_json(self) -> dict[str, object]:
        return {"days": sorted(self.days), "opens": self.opens, "closes": self.closes, "zone": self.zone}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> MaintenanceWindow:
        zone = raw.get("zone", UTC_NAME)
        return cls(days=frozenset(raw["days"]), opens=raw["opens"], closes=raw["closes"], zone=zone)


def first_opening(windows: Sequence[MaintenanceWindow], at: datetime) -> datetime:
    """The first moment from `at` on that lies in one of them."""
    return min(_opening(window, at) for window in windows)


def _opening(window: MaintenanceWindow, at: datetime) -> datetime:
    zone = zone_of(window.zone)
    today = at.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    for day in range(-1, 9):
        begins = today + timedelta(days=day)
        if begins.weekday() not in window.days:
            continue
        opens, closes = _span(window, begins, zone)
        if at < closes:
            return max(at, opens)
    raise AssertionError("a window opens every week")


def _span(window: MaintenanceWindow, midnight: datetime, zone: tzinfo) -> tuple[datetime, datetime]:
    """When it opens and closes on the day that begins then.

    Where clocks are set back, a time that comes twice opens the first time and closes the last. Where they are set
    forward, a time that never comes is the moment at which they are; a window that would be nothing but such times
    keeps its length from there.
    """
    opening = midnight + timedelta(minutes=window.opens)
    opens = _instant(opening, zone, fold=0)
    closes = _instant(opening + window.length, zone, fold=1)
    return opens, closes if closes > opens else opens + window.length


def _instant(wall: datetime, zone: tzinfo, *, fold: int) -> datetime:
    """When the clocks of a zone show this; if they never do, when they skip it."""
    if zone is UTC:
        return wall.replace(tzinfo=UTC)
    found = wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
    if found.astimezone(zone).replace(tzinfo=None) == wall:
        return found
    first, last = sorted(wall.replace(tzinfo=zone, fold=each).astimezone(UTC) for each in (0, 1))
    before = first.astimezone(zone).utcoffset()
    while last - first > _MINUTE:  # clocks are set at whole minutes
        middle = first + (last - first) // _MINUTE // 2 * _MINUTE
        if middle.astimezone(zone).utcoffset() == before:
            first = middle
        else:
            last = middle
    return last
