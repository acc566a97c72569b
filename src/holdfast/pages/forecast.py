"""Forecast: the months to come of all certificates against the limits of their issuers, and what if."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from holdfast.pages import charts
from holdfast.pages.visit import Visit

_MONTHS: Final = 12
_WISHES: Final = ("issuer", "lifetime_days", "more", "orders_burst", "orders_every_s")
_WIDTH, _HEIGHT = 780.0, 260.0


class Line(NamedTuple):
    """One issuer over the months."""

    issuer: str
    months: list[Any]  # None where nothing is ordered there
    first_broken: Any
    most: int


async def show(visit: Visit) -> Response:
    wished: dict[str, Any] = {name: text for name in _WISHES if (text := visit.query.get(name, "").strip())}
    found = await visit.call("stats.forecast", months=_MONTHS, **wished)
    heads = list(dict.fromkeys(each.month for each in found.months))
    lines = _lines(found.months, heads)
    drawn = _drawn(lines, visit.query.get("draw", ""))
    return await visit.show(
        "forecast.html",
        found=found,
        heads=heads,
        titles=[_title(head, first=head == heads[0]) for head in heads],
        lines=lines,
        drawn=drawn,
        bars=None if drawn is None else _bars(drawn),
        wished=wished,
        issuers=[each.name for each in (await visit.call("issuers.list")).items],
        first=min((each for line in lines for each in line.months if each and each.problem), key=_when, default=None),
        kept=(await visit.attention()).certificates,
        command=_command(wished),
    )


def _title(month: str, *, first: bool) -> str:
    """Nov; with its year in January, and at the beginning."""
    at = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    return f"{at:%b %Y}" if first or at.month == 1 else f"{at:%b}"


def _when(month: Any) -> Any:
    return month.problem.starts


def _lines(months: list[Any], heads: list[str]) -> list[Line]:
    found: dict[str, dict[str, Any]] = {}
    for each in months:
        found.setdefault(each.issuer, {})[each.month] = each
    lines = []
    for issuer, by_month in found.items():
        row = [by_month.get(head) for head in heads]
        broken = next((each for each in row if each and each.problem), None)
        most = max((each.used_percent or 0 for each in row if each), default=0)
        lines.append(Line(issuer, row, broken, most))
    return sorted(lines, key=lambda line: (-line.most, line.issuer))


def _drawn(lines: list[Line], wanted: str) -> Line | None:
    """The line that the person chose, or the one that is nearest to its limit."""
    return next((each for each in lines if each.issuer == wanted), lines[0] if lines else None)


def _bars(line: Line) -> Any:
    orders = [0 if each is None else each.orders for each in line.months]
    return charts.bars(orders, [0] * len(orders), width=_WIDTH, height=_HEIGHT)


def _command(wished: dict[str, Any]) -> str:
    written = {"issuer": "--issuer {}", "lifetime_days": "--lifetime {}d", "more": "--certificates {}"}
    given = " ".join(written[name].format(shlex.quote(text)) for name, text in wished.items() if name in written)
    return f"holdfast simulate --months {_MONTHS} {given}".strip()


PAGES: Final = [("/forecast", show, "GET")]
