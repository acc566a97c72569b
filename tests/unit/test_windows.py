"""Maintenance windows in time zones, and on the days on which clocks are set."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.windows import MaintenanceWindow, first_opening

BERLIN = "Europe/Berlin"
MINUTE = timedelta(minutes=1)
FIRST, LAST = datetime.fromisoformat("2020-01-01"), datetime.fromisoformat("2035-01-01")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def window(
    opens: str, closes: str, zone: str = BERLIN, days: frozenset[int] = frozenset(range(7))
) -> MaintenanceWindow:
    minutes = [int(each[:2]) * 60 + int(each[3:]) for each in (opens, closes)]
    return MaintenanceWindow(days=days, opens=minutes[0], closes=minutes[1], zone=zone)


def open_on(found: MaintenanceWindow, day: str) -> list[str]:
    """The stretches of a day in UTC, and of the nights around it, in which it is open."""
    first, spans = at(day) - timedelta(hours=10), list[tuple[datetime, datetime]]()
    for minute in (first + n * MINUTE for n in range(30 * 60)):
        if first_opening([found], minute) != minute:
            continue
        if spans and spans[-1][1] == minute:
            spans[-1] = (spans[-1][0], minute + MINUTE)
        else:
            spans.append((minute, minute + MINUTE))
    return [f"{start:%d %H:%M}-{end:%H:%M}" for start, end in spans]


# 29 March 2026: clocks in Berlin go from 02:00 to 03:00 at 01:00 UTC. 25 October: from 03:00 to 02:00, at 01:00 UTC.


def test_a_window_is_open_by_the_clocks_of_its_zone() -> None:
    night = window("02:00", "05:00")
    assert open_on(night, "2026-01-10") == ["10 01:00-04:00"]
    assert open_on(night, "2026-07-10") == ["10 00:00-03:00"]


def test_days_are_those_of_its_zone() -> None:
    early = window("01:00", "02:00", days=frozenset({5}))  # Saturday in Berlin; in UTC it is Friday in summer
    assert first_opening([early], at("2026-07-08")) == at("2026-07-10T23:00")
    kiritimati = window("08:00", "09:00", "Pacific/Kiritimati", frozenset({0}))  # 14 hours ahead
    assert first_opening([kiritimati], at("2026-07-08")) == at("2026-07-12T18:00")


@pytest.mark.parametrize(
    ("opens", "closes", "spans"),
    [
        ("01:00", "04:00", ["29 00:00-02:00"]),  # three hours by the clock, of which one never comes
        ("02:30", "04:00", ["29 01:00-02:00"]),  # it opens at a time that never comes: as clocks are set
        ("01:00", "02:30", ["29 00:00-01:00"]),  # it closes at such a time
        ("02:15", "02:45", ["29 01:00-01:30"]),  # it is nothing but such a time: its length is kept
        ("23:00", "04:00", ["28 22:00-02:00"]),  # over midnight
    ],
)
def test_a_time_that_never_comes_is_the_moment_at_which_clocks_are_set_forward(
    opens: str, closes: str, spans: list[str]
) -> None:
    sunday = window(opens, closes, days=frozenset({5} if opens > closes else {6}))
    assert open_on(sunday, "2026-03-29") == spans


@pytest.mark.parametrize(
    ("opens", "closes", "spans"),
    [
        ("02:15", "02:45", ["25 00:15-01:45"]),  # from the first 02:15 to the last 02:45
        ("01:00", "02:30", ["24 23:00-01:30"]),
        ("02:30", "04:00", ["25 00:30-03:00"]),
    ],
)
def test_a_time_that_comes_twice_opens_the_first_time_and_closes_the_last(
    opens: str, closes: str, spans: list[str]
) -> None:
    assert open_on(window(opens, closes, days=frozenset({6})), "2026-10-25") == spans


def test_clocks_that_skip_midnight_or_half_an_hour_are_clocks_too() -> None:
    cairo = window("00:00", "02:00", "Africa/Cairo", frozenset({4}))  # 24 April 2026 begins at 01:00 there
    assert open_on(cairo, "2026-04-24") == ["23 22:00-23:00"]
    howe = window("02:10", "02:20", "Australia/Lord_Howe", frozenset({6}))  # 4 October: from 02:00 to 02:30
    assert open_on(howe, "2026-10-04") == ["03 15:30-15:40"]


@pytest.mark.parametrize(
    "name", ["", "Europe", "europe/berlin", "../../etc/passwd", "localtime", "right/UTC", "Mars/Base"]
)
def test_a_zone_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="there is no time zone"):
        MaintenanceWindow(zone=name)


def test_what_was_stored_before_there_were_zones_is_in_utc() -> None:
    assert MaintenanceWindow.from_json({"days": [0], "opens": 60, "closes": 120}).zone == "UTC"


@given(
    when=st.datetimes(FIRST, LAST),
    zone=st.sampled_from(["UTC", BERLIN, "America/New_York", "Africa/Cairo", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    opens=st.integers(0, 1439),
    closes=st.integers(1, 1440),
    days=st.frozensets(st.integers(0, 6), min_size=1),
)
def test_a_window_opens_within_eight_days_and_is_open_then(
    when: datetime, zone: str, opens: int, closes: int, days: frozenset[int]
) -> None:
    if opens == closes:
        return
    now, found = when.replace(tzinfo=UTC), MaintenanceWindow(days=days, opens=opens, closes=closes, zone=zone)
    first = first_opening([found], now)
    assert now <= first <= now + timedelta(days=8)
    assert first_opening([found], first) == first
