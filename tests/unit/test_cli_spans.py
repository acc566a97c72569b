"""Spans and moments as they are typed: the same words mean the same in every command."""

from datetime import UTC, datetime, timedelta

import pytest
import typer

from holdfast.cli.certificates.progress import TimeoutOption
from holdfast.cli.durations import NotATime, ago, moment, seconds, span
from holdfast.world import SystemClock


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("1s", timedelta(seconds=1)),
        ("20m", timedelta(minutes=20)),
        ("6h", timedelta(hours=6)),
        ("14d", timedelta(days=14)),
        ("2w", timedelta(weeks=2)),
        ("1.5h", timedelta(minutes=90)),
    ],
    ids=["seconds", "minutes", "hours", "days", "weeks", "fraction"],
)
def test_a_span_is_a_number_and_a_unit(text: str, length: timedelta) -> None:
    assert span(text) == length
    assert seconds(text) == length.total_seconds()
    before = SystemClock().now()
    assert before + length <= moment(text) <= SystemClock().now() + length
    assert before - length <= moment(f"-{text}") <= SystemClock().now() - length
    assert before - length <= ago(text) <= SystemClock().now() - length
    assert before - length <= ago(f"-{text}") <= SystemClock().now() - length


@pytest.mark.parametrize("text", ["", "5", "d", "1y", "-1d", "1.5.5h", "٣d", "9999999d", "999999w", "1 d"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(NotATime, match="is no span of time"):
        span(text)


@pytest.mark.parametrize("read", [moment, ago])
def test_a_moment_is_a_day_or_a_time_and_without_a_zone_in_utc(read: object) -> None:
    assert callable(read)
    assert read("2026-11-16") == datetime(2026, 11, 16, tzinfo=UTC)
    assert read("2026-11-16T08:30") == datetime(2026, 11, 16, 8, 30, tzinfo=UTC)
    assert read("2026-11-16T08:30:00+02:00") == datetime(2026, 11, 16, 6, 30, tzinfo=UTC)
    for wrong in ("soon", "", "999999w", "--3d", "2026-13-01"):
        with pytest.raises(NotATime):
            read(wrong)


def test_a_timeout_is_a_span_or_bare_seconds() -> None:
    assert (seconds("20s"), seconds("20"), seconds("1.5"), seconds(300)) == (20, 20, 1.5, 300)
    for wrong in ("0", "0.5", "0s", "-5", "nan", "soon"):
        with pytest.raises(typer.BadParameter):
            seconds(wrong)
    assert TimeoutOption.__metadata__[0].parser is seconds  # type: ignore[attr-defined]
