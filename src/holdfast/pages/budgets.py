"""What an issuer still allows, in words: which limit, how much is left, and when there is more."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from holdfast.pages import charts, words
from holdfast.pages.charts import Gauge
from holdfast.pages.visit import Visit


class Left(NamedTuple):
    issuer: str
    what: str  # orders, 3 h
    gauge: Gauge
    says: str
    key: str


async def of_issuer(visit: Visit, name: str) -> list[Left]:
    found = await visit.call("issuers.budget", name=name)
    now = visit.frame.now()
    return [_shown(name, each, now) for each in found if each.burst > 1]


def _shown(issuer: str, found: Any, now: datetime) -> Left:
    window = timedelta(seconds=found.every_s * found.burst)
    gauge = charts.gauge(found.left, found.burst)
    return Left(issuer, f"{_what(found.key)}, {words.span(window, 1)}", gauge, _says(found, now), found.key)


def _what(key: str) -> str:
    """ca/NAME/orders, ca/NAME/domain/shop.example"""
    *_, last = parts = key.split("/")
    return last if len(parts) <= 3 else f"{parts[-2]} {last}" if parts[-2] not in ("domain", "names") else last


def _says(found: Any, now: datetime) -> str:
    if found.held_until is not None and found.held_until > now:
        return f"The CA said: not before {found.held_until:%H:%M} UTC"
    owed = (found.burst - found.left) * found.every_s
    if found.left >= found.burst:
        return "full"
    if not found.left:
        return f"one more in about {words.span(found.every_s)}"
    return f"full again in {words.span(owed)}"
