"""Overview: what needs a person, by the time until it hurts; then budgets, replicas, and the future in pictures."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from starlette.responses import Response

from holdfast.core.personal import GROUPS
from holdfast.operations.access import Action
from holdfast.pages import budgets, charts
from holdfast.pages.visit import Visit

_BUDGETS: Final = 3  # gauges beside the list
_DAYS: Final = 28
_SHOWN: Final = 8  # rows of what needs a person, before the rest is asked for: the pictures stay in sight


async def show(visit: Visit) -> Response:
    found = await visit.attention()
    if not found.certificates:
        return await _first_run(visit)
    gauges, paused = await _issuers(visit)
    ahead = await visit.call("stats.expiry", by="day", number=182)
    back = await visit.call("stats.outcomes", by="day", number=_DAYS)
    times = await visit.call("stats.times")
    return await visit.show(
        "overview.html",
        found=found,
        whole="all" in visit.query,
        shown=_SHOWN,
        gauges=gauges[:_BUDGETS],
        paused=paused,
        cluster=await _cluster(visit),
        holder=visit.services.holder,
        calendar=charts.calendar(ahead),
        ahead=ahead,
        outcomes=back,
        bars=charts.bars([each.issued for each in back], [each.failed for each in back]),
        outcomes_say=_outcomes_say(back, visit.frame.now()),
        times=times,
        spark=_spark(times),
    )


async def _issuers(visit: Visit) -> tuple[list[Any], list[str]]:
    """The budgets that are nearest to their end, and the issuers that are paused."""
    if not visit.may(Action.SEE_ISSUERS):
        return [], []
    rows = (await visit.call("issuers.list")).items
    found = [each for row in rows for each in await budgets.of_issuer(visit, row.name)]
    return sorted(found, key=lambda each: each.gauge.share), [row.name for row in rows if row.state == "paused"]


async def _cluster(visit: Visit) -> object:
    whole = visit.may(Action.SEE_CLUSTER) and not visit.principal.confined
    return await visit.call("cluster.get") if whole else None


def _outcomes_say(days: list[Any], now: datetime) -> str:
    """One line that says what the chart shows."""
    failed = sum(each.failed for each in days)
    if not sum(each.issued for each in days) + failed:
        return "No attempt ended in these four weeks."
    if not failed:
        return f"No attempt failed in {len(days)} days."
    worst = max(days, key=lambda each: each.failed)
    code = max(worst.reasons, key=worst.reasons.get, default="")
    why = f", mostly {code}" if code else ""
    when = "today" if now - worst.at < timedelta(days=1) else f"on {worst.at.day} {worst.at:%b}"
    return f"Most attempts failed {when}: {worst.failed}{why}."


def _spark(times: Any) -> dict[str, str]:
    known = [each.p95_s for each in times.spans if each.p95_s is not None]
    top = max(known, default=1.0)
    size: dict[str, float] = {"width": 278, "height": 44}
    half = charts.line([each.p50_s for each in times.spans], **size, top=top)
    most = charts.line([each.p95_s for each in times.spans], **size, top=top)
    return {"p50": half, "p95": most, "area": charts.area(most, **size)}


async def _first_run(visit: Visit) -> Response:
    """An empty installation teaches: issue one, take over what there is, connect an issuer."""
    channels = await visit.call("channels.list") if visit.may(Action.SEE_CHANNELS) else []
    issuers = (await visit.call("issuers.list")).items if visit.may(Action.SEE_ISSUERS) else []
    return await visit.show(
        "first_run.html",
        facts=visit.frame.facts(),
        channels=channels,
        issuers=issuers,
        can_ask=visit.may(Action.CREATE),
    )


_SPANS: Final = ((4 * 3600, "4 hours"), (86_400, "1 day"), (3 * 86_400, "3 days"), (7 * 86_400, "1 week"))


async def snooze_dialog(visit: Visit) -> Response:
    what, name = visit.query.get("what", ""), visit.query.get("name", "")
    return visit.part("dialogs/snooze.html", what=what, name=name if what not in GROUPS else "", spans=_SPANS)


PAGES: Final = [("/", show, "GET"), ("/attention/snooze", snooze_dialog, "GET")]
