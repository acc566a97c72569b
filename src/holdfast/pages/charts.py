"""Charts as numbers: where each mark of a drawing stands. Templates draw them as SVG, with colours by class."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

# ── Expiry calendar ──


class Cell(NamedTuple):
    x: int
    y: int
    level: int  # 0 to 4
    number: int
    at: datetime
    today: bool


class Week(NamedTuple):
    x: int
    planned: int
    height: int


class Calendar(NamedTuple):
    cells: list[Cell]
    months: list[tuple[int, str]]
    weeks: list[Week]
    width: int
    most: int
    fullest: Cell | None


_STEP = 16
_BARS = 24


def calendar(days: Sequence[Any], weeks: int = 26) -> Calendar:
    """Weeks as columns from Monday on; `days` are the buckets of stats.expiry, from today on."""
    first = days[0].at
    monday = first - timedelta(days=first.weekday())
    most = max((each.expiring for each in days), default=0)
    cells, planned = list[Cell](), [0] * weeks
    for each in days:
        column, row = divmod((each.at - monday).days, 7)
        if column < weeks:
            level = 0 if not each.expiring else 1 + min(3, 4 * each.expiring // (most + 1))
            cells.append(Cell(column * _STEP, row * _STEP, level, each.expiring, each.at, each.at == first))
            planned[column] += each.renewals
    highest = max(planned) or 1
    bars = [Week(n * _STEP, each, round(_BARS * each / highest)) for n, each in enumerate(planned)]
    fullest = max(cells, key=lambda cell: cell.number, default=None)
    return Calendar(cells, _months(monday, weeks), bars, weeks * _STEP, most, fullest if most else None)


def _months(monday: datetime, weeks: int) -> list[tuple[int, str]]:
    found, last = list[tuple[int, str]](), ""
    for column in range(weeks):
        name = f"{monday + timedelta(days=7 * column + 6):%b}"
        if name != last and (not found or column * _STEP - found[-1][0] >= 2 * _STEP):
            found.append((column * _STEP, name))
        last = name
    return found


# ── Bars above and below a line ──


class Bar(NamedTuple):
    x: float
    up: float  # heights
    down: float
    place: int


class Bars(NamedTuple):
    bars: list[Bar]
    zero: float
    width: float
    bar: float
    lines: list[tuple[float, str]]
    height: float


def bars(up: Sequence[int], down: Sequence[int], *, width: float = 284, height: float = 110) -> Bars:
    """Successes above the line, failures below it, to one scale."""
    top, bottom = nice(max(up, default=0)), max(down, default=0)
    bottom = 0 if not bottom else max(bottom, top // 4)
    scale = height / ((top + bottom) or 1)
    step = width / max(1, len(up))
    zero = top * scale
    marks = [Bar(n * step, a * scale, b * scale, n) for n, (a, b) in enumerate(zip(up, down, strict=True))]
    lines = [(0.0, str(top)), (zero / 2, str(top // 2) if top > 1 else ""), (zero, "0")]
    if bottom:
        lines.append((zero + bottom * scale, str(bottom)))
    return Bars(marks, zero, width, max(1.0, step * 0.72), lines, height)


def nice(value: float) -> int:
    """The next of 1, 2, 4, 5, 8 times a power of ten: what an axis ends with."""
    if value <= 1:
        return 1
    power = 10 ** (len(str(int(value))) - 1)
    return int(next(each * power for each in (1, 2, 4, 5, 8, 10) if each * power >= value))


# ── Lines ──


def line(values: Sequence[float | None], *, width: float, height: float, top: float) -> str:
    """A path over equal steps; where nothing was measured the line goes on to the next value."""
    step = width / max(1, len(values) - 1)
    known = [
        (n * step, height - (height - 2) * min(1.0, each / (top or 1)))
        for n, each in enumerate(values)
        if each is not None
    ]
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in known) if known else ""


def area(path: str, *, width: float, height: float) -> str:
    """The same, closed along the ground."""
    if not path:
        return ""
    first, last = path[1:].split(" ")[0], path.rsplit("L", 1)[-1].split(" ")[0].removeprefix("M")
    return f"{path} L{last} {height} L{first} {height} Z"


# ── Gauges ──


class Gauge(NamedTuple):
    left: int
    burst: int
    share: float  # 0 to 100
    reserve: float  # 0 to 100
    low: bool  # only the reserve is left


def gauge(left: int, burst: int, reserve: float = 0.2) -> Gauge:
    share = 100 * left / burst if burst else 0
    kept = 100 * reserve if burst >= 5 else 0
    return Gauge(left, burst, share, kept, bool(kept) and share <= kept)


# ── Weeks against a limit ──


class WeekBar(NamedTuple):
    x: float
    within: float  # heights
    beyond: float  # what does not fit, on top
    needed: int
    at: datetime


class Weeks(NamedTuple):
    bars: list[WeekBar]
    bar: float  # its width
    limit: float | None  # where the line is
    lines: list[tuple[float, str]]
    months: list[tuple[float, str]]
    width: float
    height: float
    peak: WeekBar | None  # the first that does not fit


def weeks(
    needed: Sequence[int], allowed: int | None, begins: datetime, *, width: float = 780, height: float = 250
) -> Weeks:
    """A bar for each week; the limit is drawn where it is near enough to be seen beside them."""
    near = allowed is not None and allowed <= 5 * max(1, *needed)
    top = nice(max(1, *needed, allowed if near and allowed else 0))
    step, scale = width / len(needed), height / top
    bars = [
        WeekBar(
            n * step,
            scale * (min(each, allowed) if allowed is not None else each),
            scale * max(0, each - allowed) if allowed is not None else 0.0,
            each,
            begins + timedelta(days=7 * n),
        )
        for n, each in enumerate(needed)
    ]
    return Weeks(
        bars,
        step * 0.78,
        height - scale * allowed if near and allowed is not None else None,
        [(height - height * part / 4, f"{top * part / 4:g}") for part in range(5)],
        _month_marks(begins, len(needed), step),
        width,
        height,
        next((each for each in bars if each.beyond), None),
    )


def _month_marks(begins: datetime, number: int, step: float) -> list[tuple[float, str]]:
    """Where each month begins; the year stands with January."""
    marks, last = list[tuple[float, str]](), begins.month
    for n in range(1, number):
        at = begins + timedelta(days=7 * n)
        if at.month != last:
            marks.append((n * step, f"{at:%b %Y}" if at.month == 1 else f"{at:%b}"))
            last = at.month
    return marks
