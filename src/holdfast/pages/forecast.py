"""Forecast: the weeks to come of all certificates against the limits of their issuers, and what if."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from holdfast.pages import charts
from holdfast.pages.visit import Visit

_MONTHS: Final = 12
_WISHES: Final = ("issuer", "lifetime_days", "more", "orders_burst", "orders_every_s")
_FRESH: Final = 60  # seconds for which the certificates that were read are good enough for another wish
_WEEK: Final = timedelta(days=7)


class Cell(NamedTuple):
    """One limit in one month: its busiest week."""

    needed: int
    percent: int | None
    over: bool


class Line(NamedTuple):
    """One limit over the months."""

    key: str
    limit: Any
    cells: list[Cell]

    @property
    def most(self) -> int:
        return max(self.limit.weeks, default=0)


async def show(visit: Visit) -> Response:
    wished: dict[str, Any] = {name: text for name in _WISHES if (text := visit.query.get(name, "").strip())}
    if wished.get("more") == "0":
        del wished["more"]
    found = await visit.call("stats.forecast", months=_MONTHS, max_age_s=_FRESH, **wished)
    heads = sorted({each.starts for each in found.months})
    lines = [Line(f"{each.issuer} {each.what}".strip(), each, _cells(each, heads)) for each in found.limits]
    drawn = next((each for each in lines if each.key == visit.query.get("draw")), lines[0] if lines else None)
    broken = [each for each in lines if each.limit.first_broken]
    return await visit.show(
        "forecast.html",
        found=found,
        titles=[f"{at:%b %Y}" if at.month == 1 else f"{at:%b}" for at in heads],
        lines=lines,
        drawn=drawn,
        chart=None if drawn is None else charts.weeks(drawn.limit.weeks, drawn.limit.allowed, drawn.limit.begins),
        wished=wished,
        issuers=[each.name for each in (await visit.call("issuers.list")).items],
        first=min(broken, key=lambda line: line.limit.first_broken, default=None),
        broken=len(broken),
        kept=(await visit.attention()).certificates,
        command=_command(wished),
        copies=_copies(visit, wished),
    )


def _cells(limit: Any, heads: Sequence[datetime]) -> list[Cell]:
    """The busiest week of each month; a week belongs to the month in which it ends, so that the first is not lost."""
    most = dict.fromkeys(((at.year, at.month) for at in heads), 0)
    for number, needed in enumerate(limit.weeks):
        ends = limit.begins + (number + 1) * _WEEK - timedelta(days=1)
        place = (ends.year, ends.month)
        if place in most:
            most[place] = max(most[place], needed)
    return [_cell(needed, limit.allowed) for needed in most.values()]


def _cell(needed: int, allowed: int | None) -> Cell:
    percent = None if not allowed else 100 * needed // allowed
    return Cell(needed, percent, allowed is not None and needed > allowed)


def _command(wished: dict[str, Any]) -> str:
    written = {"issuer": "--issuer {}", "lifetime_days": "--lifetime {}d", "more": "--certificates {}"}
    given = " ".join(written[name].format(shlex.quote(text)) for name, text in wished.items() if name in written)
    return f"holdfast simulate --months {_MONTHS} {given}".strip()


def _copies(visit: Visit, wished: dict[str, Any]) -> dict[str, str]:
    query = "&".join(f"{name}={text}" for name, text in {"months": _MONTHS, **wished}.items())
    address = shlex.quote(f"/api/v1/forecast?{query}")
    curl = f'curl -H "Authorization: Bearer $HOLDFAST_TOKEN" "$HOLDFAST_SERVER_URL"{address}'
    return {"Command": _command(wished), "curl": curl}


PAGES: Final = [("/forecast", show, "GET")]
