"""Every wait in the product: the seeds' sequences to the second, and what holds for any count and key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import backoff
from holdfast.core.backoff import (
    CHANNEL_DOWN_AFTER,
    ISSUANCE,
    JOB,
    NOTIFICATION,
    NOTIFICATION_MAX_ATTEMPTS,
    POLL,
    POLL_WINDOW,
    STORE,
    FailureClass,
    Ladder,
    counts_against_certificate,
    issuance_ladder,
    issuance_next_at,
    issuance_wait,
    next_poll,
    notification_wait,
    poll_wait,
    rest_wait,
    retry_after,
    retry_after_in_words,
    spread,
)

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
LADDERS = [each for each in vars(backoff).values() if isinstance(each, Ladder)]

quick = settings(max_examples=60, deadline=None)  # a loaded machine is not a failing test
counts = st.integers(min_value=-5, max_value=10**9)
keys = st.text(max_size=20)
DATE_PARTS = [
    "Sun,",
    "15",
    "Nov",
    "2026",
    "13:00:00",
    "24:61",
    "GMT",
    "EST",
    "+9999",
    "-0000",
    "0",
    "-1",
    "9" * 20,
]
lives = st.timedeltas(min_value=-30 * DAY, max_value=400 * DAY)
ladders = st.builds(
    lambda first, factor, times, jitter: Ladder(first=first, factor=factor, cap=first * times, jitter=jitter),
    st.timedeltas(min_value=timedelta(milliseconds=1), max_value=DAY),
    st.floats(min_value=1, max_value=1000),
    st.integers(min_value=1, max_value=10**5),
    st.floats(min_value=0, max_value=0.99),
)


# ── Spread and ladders ────────────────────────────────────────────────────────────────────────────────────


def test_a_spread_is_the_same_in_every_release() -> None:
    # Stored rows outlive the process that wrote them: another formula would move every wait under way.
    assert spread("order_1") == 0.0428492572834549


def test_spreads_fill_the_interval_evenly() -> None:
    tenths = [0] * 10
    for i in range(5000):
        tenths[int(spread(f"order_{i}") * 10)] += 1
    assert min(tenths) > 400
    assert max(tenths) < 600


@quick
@given(ladder=st.sampled_from(LADDERS) | ladders, n=counts)
def test_rungs_never_fall_and_lie_between_the_first_and_the_cap(ladder: Ladder, n: int) -> None:
    assert ladder.first <= ladder.rung(n) <= ladder.rung(n + 1) <= ladder.cap


@pytest.mark.parametrize("n", [10_000, 10**9])
@pytest.mark.parametrize("ladder", LADDERS)
def test_an_absurd_count_waits_for_the_cap(ladder: Ladder, n: int) -> None:
    assert ladder.rung(n) == ladder.cap


def test_a_slow_ladder_reaches_its_cap_too() -> None:
    slow = Ladder(first=SECOND, factor=1.001, cap=HOUR)
    assert slow.rung(8000) < HOUR
    assert slow.rung(10_000) == HOUR


def test_a_ladder_with_factor_one_stays_on_its_first_rung() -> None:
    flat = Ladder(first=SECOND, factor=1, cap=HOUR)
    assert flat.rung(1) == flat.rung(10**9) == SECOND


@quick
@given(ladder=st.sampled_from(LADDERS) | ladders, n=counts, key=keys)
def test_jitter_stays_within_its_share_of_the_rung(ladder: Ladder, n: int, key: str) -> None:
    rung, wait = ladder.rung(n), ladder.wait(n, key)
    rounding = timedelta(microseconds=1)
    assert rung * (1 - ladder.jitter) - rounding <= wait <= rung * (1 + ladder.jitter) + rounding


def test_jitter_differs_between_rows_and_between_attempts_and_goes_both_ways() -> None:
    waits = {POLL.wait(n, f"order_{i}") for i in range(50) for n in (5, 6)}
    assert len(waits) == 100
    assert min(waits) < 250 * SECOND
    assert max(waits) > 350 * SECOND


def test_a_job_waits_thirty_seconds_then_twice_as_long_up_to_an_hour() -> None:
    assert [JOB.rung(n) / SECOND for n in range(1, 10)] == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_an_unreachable_store_is_tried_again_within_fifteen_seconds() -> None:
    assert [STORE.rung(n) / SECOND for n in range(1, 8)] == [0.5, 1, 2, 4, 8, 15, 15]


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": timedelta(0)},
        {"cap": MINUTE / 2},
        {"factor": 0.5},
        {"factor": float("inf")},
        {"jitter": 1.0},
    ],
)
def test_a_ladder_cannot_be_built_wrong(wrong: dict[str, object]) -> None:
    right: dict[str, object] = {"first": MINUTE, "factor": 2, "cap": HOUR, "jitter": 0.1}
    Ladder(**right)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a ladder needs"):
        Ladder(**right | wrong)  # type: ignore[arg-type]


# ── CA poll ───────────────────────────────────────────────────────────────────────────────────────────────


def test_polls_wait_five_seconds_then_three_times_as_long() -> None:
    assert [POLL.rung(n) / SECOND for n in (1, 2, 3, 4)] == [5, 15, 45, 135]


@quick
@given(n=st.integers(min_value=5, max_value=10**9))
def test_the_fifth_and_later_polls_wait_five_minutes(n: int) -> None:
    assert POLL.rung(n) == 5 * MINUTE


@quick
@given(n=counts, key=keys)
def test_a_poll_wait_is_the_ladder_within_a_fifth_while_the_window_is_far(n: int, key: str) -> None:
    wait = poll_wait(n, waited=timedelta(0), window=DAY, key=key)
    assert wait is not None
    assert 0.8 * POLL.rung(n) <= wait <= 1.2 * POLL.rung(n)


@quick
@given(window=st.timedeltas(min_value=SECOND, max_value=2 * HOUR), key=keys)
def test_polling_ends_exactly_with_the_window(window: timedelta, key: str) -> None:
    waited, polls = timedelta(0), 1
    while (wait := poll_wait(polls, waited=waited, window=window, key=key)) is not None:
        assert wait > timedelta(0)
        waited, polls = waited + wait, polls + 1
    assert waited == window


def test_the_default_window_is_used_up_by_seven_or_eight_polls_at_most() -> None:
    for i in range(50):
        waited, polls = timedelta(0), 1
        while wait := poll_wait(polls, waited=waited, window=POLL_WINDOW, key=f"order_{i}"):
            waited, polls = waited + wait, polls + 1
        assert 6 <= polls <= 8


def test_an_order_rests_once_its_window_is_used_up() -> None:
    assert poll_wait(6, waited=POLL_WINDOW - SECOND, window=POLL_WINDOW, key="o") == SECOND
    assert poll_wait(6, waited=POLL_WINDOW, window=POLL_WINDOW, key="o") is None
    assert poll_wait(6, waited=POLL_WINDOW + DAY, window=POLL_WINDOW, key="o") is None


def test_a_window_of_zero_means_ten_minutes() -> None:
    assert timedelta(minutes=10) == POLL_WINDOW
    assert poll_wait(6, waited=599 * SECOND, window=timedelta(0), key="o") == SECOND
    assert poll_wait(6, waited=600 * SECOND, window=timedelta(0), key="o") is None


@quick
@given(age=lives, more=st.timedeltas(timedelta(0), DAY), key=keys)
def test_rest_is_five_minutes_to_an_hour_and_never_denser_with_age(age: timedelta, more: timedelta, key: str) -> None:
    assert 5 * MINUTE <= rest_wait(age, key=key) <= rest_wait(age + more, key=key) <= HOUR


def test_rest_is_a_twelfth_of_the_age_in_between() -> None:
    for i in range(50):
        assert 10 * MINUTE <= rest_wait(2 * HOUR, key=f"order_{i}") <= 12 * MINUTE
        assert 50 * MINUTE <= rest_wait(DAY, key=f"order_{i}") <= HOUR


# ── Issuance ──────────────────────────────────────────────────────────────────────────────────────────────


def test_issuance_waits_double_from_one_hour_to_thirty_two() -> None:
    waits = [issuance_wait(n, left_at_first_failure=None) / HOUR for n in range(1, 9)]
    assert waits == [1, 2, 4, 8, 16, 32, 32, 32]


@pytest.mark.parametrize("count", [None, 0, -1, -(10**9)])
def test_a_missing_or_impossible_count_waits_one_hour(count: int | None) -> None:
    # Otherwise an upgrade or a hand-edited row would start everything that is failing at once.
    assert issuance_wait(count, left_at_first_failure=None) == HOUR


def test_the_next_attempt_is_counted_from_the_last_failure() -> None:
    assert issuance_next_at(NOW, 3, left_at_first_failure=None) == NOW + 4 * HOUR
    assert issuance_next_at(NOW, None, left_at_first_failure=64 * HOUR) == NOW + 30 * MINUTE


@quick
@given(left=st.timedeltas(min_value=11 * DAY, max_value=400 * DAY))
def test_from_eleven_days_left_the_ladder_is_the_plain_one(left: timedelta) -> None:
    assert issuance_ladder(left) == ISSUANCE


def test_below_eleven_days_first_the_cap_shrinks_and_then_the_base() -> None:
    assert issuance_ladder(8 * DAY) == Ladder(first=HOUR, factor=2, cap=DAY)
    assert issuance_ladder(64 * HOUR) == Ladder(first=30 * MINUTE, factor=2, cap=8 * HOUR)


@pytest.mark.parametrize("left", [2 * HOUR, MINUTE])
def test_a_short_life_waits_a_minute_at_first_and_a_quarter_of_an_hour_at_last(left: timedelta) -> None:
    waits = [issuance_wait(n, left_at_first_failure=left) / MINUTE for n in range(1, 7)]
    assert waits == [1, 2, 4, 8, 15, 15]


@pytest.mark.parametrize("left", [timedelta(0), -3 * DAY])
def test_one_that_has_ended_climbs_the_plain_ladder(left: timedelta) -> None:
    waits = [issuance_wait(n, left_at_first_failure=left, over_for=-left) / HOUR for n in range(1, 9)]
    assert waits == [1, 2, 4, 8, 16, 32, 32, 32]


def test_the_dense_steps_before_an_end_do_not_go_on_after_it() -> None:
    """They grow again from an hour: an end at midnight must not be followed by a try every quarter of an hour."""
    at, n, waits = NOW, 12, list[float]()
    for _ in range(8):
        wait = issuance_wait(n, left_at_first_failure=HOUR, over_for=at - NOW)
        at, n = at + wait, n + 1
        waits.append(wait / HOUR)
    assert waits == [1, 1, 2, 4, 8, 16, 32, 32]
    assert issuance_wait(12, left_at_first_failure=HOUR, over_for=-MINUTE) == 15 * MINUTE  # not yet
    assert issuance_wait(12, left_at_first_failure=30 * DAY, over_for=MINUTE) == 32 * HOUR  # never denser than before


@quick
@given(n=counts, left=lives.filter(lambda left: left > timedelta(0)), more=st.timedeltas(timedelta(0), 20 * DAY))
def test_less_life_left_never_means_a_longer_wait(n: int, left: timedelta, more: timedelta) -> None:
    short = issuance_wait(n, left_at_first_failure=left)
    assert MINUTE <= short <= issuance_wait(n, left_at_first_failure=left + more)
    assert short <= issuance_wait(n, left_at_first_failure=None)


@pytest.mark.parametrize(("scaled", "tries"), [(True, 11), (False, 4)])
def test_a_last_day_leaves_room_for_eleven_tries_instead_of_four(scaled: bool, tries: int) -> None:
    at, n = NOW, 0
    while (at := issuance_next_at(at, n + 1, left_at_first_failure=DAY if scaled else None)) < NOW + DAY:
        n += 1
    assert n == tries


def test_every_failure_counts_against_the_certificate_except_a_rate_limit() -> None:
    assert {f for f in FailureClass if not counts_against_certificate(f)} == {FailureClass.RATE_LIMITED}
    assert [f.value for f in FailureClass] == ["transient", "rate_limited", "validation", "refused", "local"]


# ── Notification ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_notification_waits_one_two_four_and_eight_minutes_and_is_then_dead() -> None:
    waits = [notification_wait(attempts) for attempts in (1, 2, 3, 4, 5)]
    assert waits == [1 * MINUTE, 2 * MINUTE, 4 * MINUTE, 8 * MINUTE, None]
    assert NOTIFICATION_MAX_ATTEMPTS == 5
    assert CHANNEL_DOWN_AFTER == 3 * DAY


@quick
@given(attempts=st.integers(min_value=5, max_value=10**9))
def test_a_dead_notification_stays_dead(attempts: int) -> None:
    assert notification_wait(attempts) is None


def test_the_notification_ladder_ends_at_one_hour() -> None:
    assert [NOTIFICATION.rung(n) / MINUTE for n in (6, 7, 8)] == [32, 60, 60]


# ── Retry-After ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("120", 2 * MINUTE),
        (" 120 ", 2 * MINUTE),
        ("007", 7 * SECOND),
        ("86400", DAY),
        ("Sun, 15 Nov 2026 13:00:00 GMT", HOUR),
        ("Sunday, 15-Nov-26 13:00:00 GMT", HOUR),  # RFC 850, which RFC 9110 still wants read
        ("Sun Nov 15 13:00:00 2026", HOUR),  # asctime, likewise
        ("Sun, 15 Nov 2026 13:00:00 -0000", HOUR),
        ("Sun, 15 Nov 2026 15:00:00 +0200", HOUR),
        # absurd: clamped
        ("0", 5 * SECOND),
        ("-5", 5 * SECOND),
        ("-99999999999999999999", 5 * SECOND),
        ("315360000", DAY),  # ten years
        ("9" * 64, DAY),
        ("Sun, 15 Nov 2026 11:00:00 GMT", 5 * SECOND),  # an hour ago
        ("Thu, 01 Jan 1970 00:00:00 GMT", 5 * SECOND),
        ("Sun, 15 Nov 2036 12:00:00 GMT", DAY),
        ("Fri, 31 Dec 9999 23:59:59 -2359", DAY),
        # garbage: none at all
        (None, None),
        ("", None),
        ("   ", None),
        ("soon", None),
        ("+5", None),
        ("1.5", None),
        ("1e3", None),
        ("1_000", None),
        ("0x10", None),
        ("-", None),
        ("5 5", None),
        ("٣", None),  # a digit to str.isdigit, not to HTTP
        ("Sun, ١٥ Nov 2026 13:00:00 GMT", None),
        ("9" * 65, None),
        ("Sun, 45 Nov 2026 13:00:00 GMT", None),
        ("Sun, 15 Nov 2026 13:00:00 +9999", None),
        ("Sun, 15 Nov 99999 13:00:00 GMT", None),
    ],
)
def test_a_retry_after_is_read_clamped_or_ignored(value: str | None, wait: timedelta | None) -> None:
    assert retry_after(value, NOW) == wait


def test_the_limits_of_a_retry_after_are_the_callers() -> None:
    limits = {"low": MINUTE, "high": 1.5 * SECOND + HOUR}
    assert retry_after("1", NOW, **limits) == MINUTE
    assert retry_after("100000", NOW, **limits) == 1.5 * SECOND + HOUR


@quick
@given(value=st.text(max_size=70) | st.lists(st.sampled_from(DATE_PARTS), max_size=8).map(" ".join))
def test_no_retry_after_can_crash_us_or_leave_the_limits(value: str) -> None:
    wait = retry_after(value, NOW)
    assert wait is None or 5 * SECOND <= wait <= DAY


@quick
@given(seconds=st.integers(min_value=5, max_value=86400))
def test_seconds_and_the_date_that_far_off_mean_the_same(seconds: int) -> None:
    date = format_datetime(NOW + seconds * SECOND, usegmt=True)
    assert retry_after(date, NOW) == retry_after(str(seconds), NOW) == seconds * SECOND


def test_a_remote_gets_a_longer_wait_if_it_asks_for_one_and_no_shorter_ever():
    told = {"waited": timedelta(0), "window": timedelta(0), "age": timedelta(0), "key": "x"}
    own, rests = next_poll(1, asked=None, **told)
    assert (own, rests) == (poll_wait(1, waited=timedelta(0), window=timedelta(0), key="x"), False)
    assert next_poll(1, asked=timedelta(seconds=1), **told) == (own, False)
    assert next_poll(1, asked=timedelta(hours=2), **told) == (timedelta(hours=2), False)


def test_an_order_that_outlived_its_window_rests():
    told = {"waited": timedelta(minutes=11), "window": timedelta(0), "key": "x"}
    wait, rests = next_poll(9, age=timedelta(days=3), asked=timedelta(seconds=1), **told)
    assert rests
    assert timedelta(minutes=50) <= wait <= timedelta(hours=1)


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("too many new orders (300) from this account in the last 3h0m0s, retry after 2026-11-15 13:30:00 UTC", 90),
        ("… retry after 2026-11-15 12:02:00 UTC: see https://letsencrypt.org/docs/rate-limits/", 2),
        ("retry after 2026-11-15T12:10:00Z", 10),
        ("retry after 2025-01-01 00:00:00 UTC", 5 / 60),
        ("retry after 2036-01-01 00:00:00 UTC", 24 * 60),
        ("retry after 2026-99-99 00:00:00 UTC", None),
        ("retry after a while", None),
        ("", None),
    ],
)
def test_a_time_is_read_out_of_a_sentence(text: str, wait: float | None) -> None:
    found = retry_after_in_words(text, NOW)
    assert (None if found is None else found / MINUTE) == wait
