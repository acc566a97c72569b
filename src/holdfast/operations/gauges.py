"""The gauges about certificates and CAs: counted in SQL over the whole inventory, no more often than is cheap."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from prometheus_client import Gauge

from holdfast.core import budget, ca_limits, renewal
from holdfast.core.ca_end import IssuerEnd
from holdfast.errors import StoreError
from holdfast.operations import ca_ends
from holdfast.operations.certificates import View
from holdfast.operations.inventory import views_of
from holdfast.ports import Clock
from holdfast.store import gauges, issuers
from holdfast.store.database import Store
from holdfast.store.gauges import Ended
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx
from holdfast.telemetry import Metrics, labelled

DEADLINE: Final = 5.0  # seconds for all looks of one scrape; a scraper waits ten
SHARE: Final = 20  # looking takes a twentieth of the time at most, however large the inventory is
PAGE: Final = 250  # certificates whose status is read at once
MOST_ENDED: Final = 5000  # attempts that are counted in one look; the rest are for the next one


class Watched(NamedTuple):
    """One certificate with series of its own."""

    name: str
    ca: str
    owner: str
    not_after: datetime | None
    renewal_due: datetime | None
    next_attempt: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one look found. The gauges are set from it afterwards: all of them, or none."""

    now: datetime
    phases: Mapping[tuple[str, str], int]
    ends: Mapping[int, int]
    under_way: Mapping[tuple[str, str], int]
    approvals: int
    issuers: Sequence[IssuerRow]
    own: Sequence[IssuerEnd]
    budgets: Mapping[tuple[str, str], int]
    watched: Sequence[Watched]
    left_out: int
    ended: Sequence[Ended]
    last_event: int


@dataclass(slots=True, kw_only=True)
class Inventory:
    """Looks at the store when asked, unless it looked just now; what is counted up is remembered between looks."""

    db: Store
    metrics: Metrics
    clock: Clock
    every: timedelta
    series: int  # certificates with series of their own, at most
    _looked_at: float | None = None
    _look_again_at: float = 0.0
    _last_event: int | None = None
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def begin(self) -> None:
        """Count from here on; without it, from the first look on."""
        self._last_event = await self.db.read(gauges.newest_event)

    async def refresh(self, *, within: float = DEADLINE) -> None:
        """Bring the gauges up to date, for all who ask meanwhile; if the store is away they stay, and grow old."""
        end = self.clock.monotonic() + within
        async with self._looking:
            now = self.clock.monotonic()
            if now < end and now >= self._look_again_at:
                await self._look(end - now)
        if self._looked_at is not None:
            self.metrics.gauges_age.set(self.clock.monotonic() - self._looked_at)

    async def _look(self, within: float) -> None:
        began = self.clock.monotonic()
        try:
            async with asyncio.timeout(within):
                seen = await self.db.read(lambda tx: look(tx, series=self.series, last_event=self._last_event))
        except (StoreError, TimeoutError):
            self.metrics.gauges_failures.inc()
            self._look_again_at = self.clock.monotonic() + self.every.total_seconds()
            return
        took = self.clock.monotonic() - began
        self._looked_at, self._last_event = began, seen.last_event
        self._look_again_at = began + max(self.every.total_seconds(), SHARE * took)
        show(seen, self.metrics)
        self.metrics.gauges_took.set(took)


# ── Looking ──


def look(tx: Tx, *, series: int, last_event: int | None) -> Seen:
    now = tx.now()
    watched = _watched(tx, series)
    last = gauges.newest_event(tx) if last_event is None else last_event
    ended, last = gauges.ended_after(tx, last, MOST_ENDED)
    rows, states = issuers.all_issuers(tx), gauges.states(tx)
    return Seen(
        now=now,
        phases=gauges.phases(tx, states),
        ends=gauges.ends(tx, now),
        under_way=gauges.under_way(tx),
        approvals=gauges.approvals_pending(tx),
        issuers=rows,
        own=ca_ends.all_of(tx),
        budgets=_left(tx, [each.name for each in rows], now),
        watched=watched,
        left_out=max(0, sum(states.values()) - states.get("archived", 0) - len(watched)),
        ended=ended,
        last_event=last,
    )


def _left(tx: Tx, names: Iterable[str], now: datetime) -> dict[tuple[str, str], int]:
    """Of the limits of whole CAs: those by domain or by set of names are as many as there are names."""
    keys = {ca_limits.request_key(name): (name, "requests") for name in names}
    keys |= {ca_limits.order_key(name): (name, "orders") for name, _ in keys.values()}
    return {keys[held.key]: budget.remaining(held, now, urgent=True) for held in gauges.budgets_named(tx, list(keys))}


def _watched(tx: Tx, limit: int) -> list[Watched]:
    """Most are well, and their rows tell when they are next looked at; of the others, all is looked at."""
    found = gauges.pressing(tx, limit)
    others = [each for each, plain in found.items() if plain is None]
    pages = [gauges.some(tx, others[start : start + PAGE]) for start in range(0, len(others), PAGE)]
    return [
        *(Watched(*plain, plain.next_at) for plain in found.values() if plain is not None),
        *(_watch(view) for page in pages for view in views_of(tx, page)),
    ]


def _watch(view: View) -> Watched:
    """Its renewal is due when the rules say so, whatever failed since."""
    found, held = view.certificate, view.current
    plan = renewal.decide(replace(found, failing=None), held, view.now)
    ca = found.wanted.issuers[0] if held is None else held.issuer
    ends = None if held is None else held.not_after
    return Watched(found.name, ca, found.wanted.owner, ends, plan.at, view.status.next_attempt_at)


# ── Showing ──


def show(seen: Seen, metrics: Metrics) -> None:
    _set(metrics.certificates, ("phase", "reason"), seen.phases)
    _set(metrics.certificates_ending, ("days",), {(str(days),): number for days, number in seen.ends.items()})
    _set(metrics.issuances, ("ca", "state"), seen.under_way)
    _set(metrics.ca_budget, ("ca", "limit"), seen.budgets)
    _set(metrics.ca_circuit_open, ("ca",), {(row.name,): int(row.breaker.open_at(seen.now)) for row in seen.issuers})
    _set(metrics.ca_paused, ("ca",), {(row.name,): int(row.state == "paused") for row in seen.issuers})
    _set(metrics.ca_issuer_not_after, ("ca",), {(each.ca,): each.not_after.timestamp() for each in seen.own})
    metrics.approvals_pending.set(seen.approvals)
    metrics.series_left_out.set(seen.left_out)
    _show_watched(seen.watched, metrics)
    for each in seen.ended:
        metrics.issuance_attempts.labels(ca=each.issuer, outcome=each.outcome, reason=each.reason).inc()
        if each.took_s is not None:
            metrics.issuance_duration.labels(ca=each.issuer).observe(each.took_s)


def _show_watched(watched: Sequence[Watched], metrics: Metrics) -> None:
    known = [(labelled(ca=each.ca, certificate=each.name, owner=each.owner), each) for each in watched]
    metrics.not_after.show((at, each.not_after.timestamp()) for at, each in known if each.not_after)
    metrics.renewal_due.show((at, each.renewal_due.timestamp()) for at, each in known if each.renewal_due)
    metrics.next_attempt.show((at, each.next_attempt.timestamp()) for at, each in known if each.next_attempt)


def _set(gauge: Gauge, labels: Sequence[str], values: Mapping[Any, float]) -> None:
    """All of them, and none that was there before and is not any more."""
    gauge.clear()
    for place, value in values.items():
        gauge.labels(**dict(zip(labels, place, strict=True))).set(value)
