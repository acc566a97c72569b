"""Spans and moments as people type them: one language for all commands."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import typer

from holdfast.cli.calling import clock
from holdfast.core import durations
from holdfast.errors import Usage

_LONGEST: Final = timedelta(days=36500)  # beyond a century, adding it to a date may overflow
_SPAN: Final = re.compile(durations.PATTERN)


class NotATime(Usage):
    code = "not-a-time"
    hint = "A span such as 20s, 30m, 6h, 14d or 2w, a day such as 2026-09-12, or a time such as 2026-09-12T08:00Z."


def span(text: str) -> timedelta:
    try:
        length = durations.parse(text)
    except ValueError:
        raise NotATime(f"{text!r:.40} is no span of time.") from None
    except OverflowError:
        length = timedelta.max
    if length > _LONGEST:
        raise NotATime(f"{text!r:.40} is no span of time below a century.")
    return length


def moment(text: str) -> datetime:
    """A time, or a span from now on; with a minus, before now."""
    if _SPAN.fullmatch(text.removeprefix("-")):
        return clock().now() + (-span(text[1:]) if text.startswith("-") else span(text))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise NotATime(f"{text!r:.40} is no time.") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def ago(text: str) -> datetime:
    """A time, or a span before now, with or without a minus: for what has happened."""
    return moment(f"-{text}" if _SPAN.fullmatch(text) else text)


def seconds(given: object) -> float:
    """How long to wait: a span, or bare seconds; not less than one."""
    text = str(given)
    try:
        found = float(text) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII) else span(text).total_seconds()
    except NotATime:
        raise typer.BadParameter(f"{text!r:.40} is no span of time: such as 20s, 5m, 1h, or seconds.") from None
    if found < 1:
        raise typer.BadParameter(f"{text} is not a second.")
    return found
