"""Probes and metrics: whether the store is well, and the gauges of the installation and its certificates."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from prometheus_client import Gauge

from holdfast.core import renewal
from holdfast.core.issuers import budget, ca_limits
from holdfast.core.issuers.issuer import IssuerRow, IssuerState
from holdfast.core.own_ca.ca import SigningCertificateExpiry
from holdfast.core.target import TargetRow, TargetState
from holdfast.core.work.cluster import Lease, Replica
from holdfast.errors import StoreError
from holdfast.operations.certificates.views import View, views_of
from holdfast.operations.notifications import gauges as notification_gauges
from holdfast.operations.notifications.gauges import SeenNotifications
from holdfast.operations.own_ca import authorities
from holdfast.ports import Clock
from holdfast.store import endpoints, finds, issuers, migrate, statistics
from holdfast.store.database import Database, Store
from holdfast.store.deployments import deployments, targets
from holdfast.store.own_ca import crls
from holdfast.store.statistics import EndedIssuance
from holdfast.store.tx import Tx
from holdfast.store.work import cluster, jobs
from holdfast.telemetry import Metrics, labelled

DEADLINE: Final = 5.0  # seconds for all looks of one scrape; a scraper waits ten
SHARE: Final = 20  # looking takes a twentieth of the time at most, however large the inventory is
PAGE: Final = 250  # certificates whose status is read at once
MOST_ENDED: Final = 5000  # attempts that are counted in one look; the rest are for the next one


class WatchedCertificate(NamedTuple):
    """One certificate with series of its own."""

    name: str
    ca: str
    owner: str
    not_after: datetime | None
    renewal_due: datetime | None
    next_attempt: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InventorySeen:
    """What one look found. The gauges are set from it afterwards: all of them, or none."""

    now: datetime
    phases: Mapping[tuple[str, str], int]
    ends: Mapping[int, int]
    under_way: Mapping[tuple[str, str], int]
    endpoints: Mapping[str, int]
    deployments: Mapping[str, int]
    targets: Sequence[TargetRow]
    finds: Mapping[tuple[str, str], int]
    unmanaged: int
    approvals: int
    issuers: Sequence[IssuerRow]
    own: Sequence[SigningCertificateExpiry]
    budgets: Mapping[tuple[str, str], int]
    watched: Sequence[WatchedCertificate]
    left_out: int
    ended: Sequence[EndedIssuance]
    last_event: int


@dataclass(slots=True, kw_only=True)
class Inventory:
    """Reads the figures of the inventory, unless it did so just now; counters are remembered between two reads."""

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
        self._last_event = await self.db.read(statistics.newest_event)

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


def look(tx: Tx, *, series: int, last_event: int | None) -> InventorySeen:
    now = tx.now()
    watched = _watched(tx, series)
    last = statistics.newest_event(tx) if last_event is None else last_event
    ended, last = statistics.ended_after(tx, last, MOST_ENDED)
    rows, states = issuers.all_issuers(tx), statistics.all_states(tx)
    return InventorySeen(
        now=now,
        phases=statistics.phases(tx, states),
        ends=statistics.all_ends(tx, now),
        under_way=statistics.under_way(tx),
        endpoints=endpoints.counts(tx),
        deployments=deployments.counts(tx),
        targets=targets.all_targets(tx),
        finds=finds.counts(tx),
        unmanaged=finds.count_unmanaged(tx),
        approvals=statistics.approvals_pending(tx),
        issuers=rows,
        own=authorities.expiries(tx),
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
    return {
        keys[held.key]: budget.remaining(held, now, urgent=True) for held in statistics.budgets_named(tx, list(keys))
    }


def _watched(tx: Tx, limit: int) -> list[WatchedCertificate]:
    """Most are well, and their rows tell when they are next looked at; of the others, all is looked at."""
    found = statistics.pressing(tx, limit)
    others = [each for each, plain in found.items() if plain is None]
    pages = [statistics.certificates_by_id(tx, others[start : start + PAGE]) for start in range(0, len(others), PAGE)]
    return [
        *(WatchedCertificate(*plain, plain.next_at) for plain in found.values() if plain is not None),
        *(_watch(view) for page in pages for view in views_of(tx, page)),
    ]


def _watch(view: View) -> WatchedCertificate:
    """The figures of one certificate; its renewal is due by its renewal policy, without regard to failed issuances."""
    found, held = view.certificate, view.current
    plan = renewal.decide(replace(found, failing=None), held, view.now)
    ca = found.wanted.issuers[0] if held is None else held.issuer
    said = view.status
    return WatchedCertificate(found.name, ca, found.wanted.owner, said.expires_at, plan.at, said.next_attempt_at)


# ── Showing ──


def show(seen: InventorySeen, metrics: Metrics) -> None:
    _set(metrics.certificates, ("phase", "reason"), seen.phases)
    _set(metrics.certificates_ending, ("days",), {(str(days),): number for days, number in seen.ends.items()})
    _set(metrics.endpoints, ("reason",), {(reason or "UNSEEN",): number for reason, number in seen.endpoints.items()})
    _set(metrics.deployments, ("state",), {(state,): number for state, number in seen.deployments.items()})
    away = {(row.name,): int(row.breaker.open_at(seen.now)) for row in seen.targets}
    _set(metrics.target_circuit_open, ("target",), away)
    paused = {(row.name,): int(row.state is TargetState.PAUSED) for row in seen.targets}
    _set(metrics.target_paused, ("target",), paused)
    _set(metrics.finds, ("state", "manager"), seen.finds)
    metrics.unmanaged.set(seen.unmanaged)
    _set(metrics.issuances, ("ca", "state"), seen.under_way)
    _set(metrics.ca_budget, ("ca", "limit"), seen.budgets)
    _set(metrics.ca_circuit_open, ("ca",), {(row.name,): int(row.breaker.open_at(seen.now)) for row in seen.issuers})
    _set(metrics.ca_paused, ("ca",), {(row.name,): int(row.state is IssuerState.PAUSED) for row in seen.issuers})
    _set(metrics.ca_issuer_not_after, ("ca",), {(each.ca,): each.not_after.timestamp() for each in seen.own})
    metrics.approvals_pending.set(seen.approvals)
    metrics.series_left_out.set(seen.left_out)
    _show_watched(seen.watched, metrics)
    for each in seen.ended:
        metrics.issuance_attempts.labels(ca=each.issuer, outcome=each.outcome, reason=each.reason).inc()
        if each.took_s is not None:
            metrics.issuance_duration.labels(ca=each.issuer).observe(each.took_s)


def _show_watched(watched: Sequence[WatchedCertificate], metrics: Metrics) -> None:
    known = [(labelled(ca=each.ca, certificate=each.name, owner=each.owner), each) for each in watched]
    metrics.not_after.show((at, each.not_after.timestamp()) for at, each in known if each.not_after)
    metrics.renewal_due.show((at, each.renewal_due.timestamp()) for at, each in known if each.renewal_due)
    metrics.next_attempt.show((at, each.next_attempt.timestamp()) for at, each in known if each.next_attempt)


def _set(gauge: Gauge, labels: Sequence[str], values: Mapping[Any, float]) -> None:
    """All of them, and none that was there before and is not any more."""
    gauge.clear()
    for place, value in values.items():
        gauge.labels(**dict(zip(labels, place, strict=True))).set(value)


PROBE_DEADLINE = 2.0  # seconds; a probe that waits longer is worth nothing


async def store_problem(db: Store) -> str:
    """One round trip and a look at the schema; empty when all is well, otherwise a sentence."""
    known = migrate.bundled()
    if isinstance(db, Database) and db.damage is not None:
        return f"{db.damage} {db.damage.hint}."
    if isinstance(db, Database) and (why := db.cannot_sign()):
        return why
    try:
        async with asyncio.timeout(PROBE_DEADLINE):
            current = await db.read(lambda tx: migrate.current(tx, known))
    except TimeoutError:
        return f"the store did not answer in {PROBE_DEADLINE:g} s"
    except StoreError as error:
        return str(error)
    return "" if current else "the schema is not the one this version needs"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSeen:
    """What one look at the store found. The gauges are set from it afterwards: all of them, or none."""

    now: datetime
    jobs: Mapping[tuple[str, str], int]
    oldest_ready_for: timedelta
    budgets: Sequence[budget.Budget]
    leases: Sequence[Lease]
    replicas: Sequence[Replica]
    self_checks: Mapping[str, bool]
    lists_end_at: Mapping[str, datetime]
    notifications: SeenNotifications


async def refresh(db: Store, metrics: Metrics, holder: str, ttl: timedelta) -> bool:
    """Set the gauges from SQL. If the store is away they stay as they are; store_up is 0 until the next heartbeat."""
    try:
        async with asyncio.timeout(PROBE_DEADLINE):
            seen = await db.read(_look)
    except (StoreError, TimeoutError):
        metrics.store_up.set(0)
        return False
    _show(seen, metrics, holder, ttl)
    if await store_problem(db):
        metrics.store_up.set(0)  # only a heartbeat that was written says that it is well
    return True


async def scrape(db: Store, metrics: Metrics, holder: str, ttl: timedelta, inventory: Inventory | None) -> None:
    """Refresh all figures of /metrics. If the store does not answer the first read, the inventory is not waited for."""
    began = asyncio.get_running_loop().time()
    well = await refresh(db, metrics, holder, ttl)
    if inventory is not None:
        took = asyncio.get_running_loop().time() - began
        await inventory.refresh(within=DEADLINE - took if well else 0.0)


def _look(tx: Tx) -> StoreSeen:
    return StoreSeen(
        now=tx.now(),
        jobs=jobs.counts(tx),
        oldest_ready_for=jobs.oldest_ready_for(tx),
        budgets=statistics.own_budgets(tx),
        leases=cluster.held_leases(tx),
        replicas=cluster.all_replicas(tx),
        self_checks={row["name"]: bool(row["ok"]) for row in cluster.all_selfchecks(tx)},
        lists_end_at=crls.ends(tx),
        notifications=notification_gauges.look(tx),
    )


def _show(seen: StoreSeen, metrics: Metrics, holder: str, ttl: timedelta) -> None:
    metrics.jobs.clear()
    for (kind, state), number in seen.jobs.items():
        metrics.jobs.labels(queue=kind, state=state).set(number)
    metrics.job_oldest_ready_age.set(seen.oldest_ready_for.total_seconds())
    metrics.budget_remaining.clear()
    for held in seen.budgets:
        metrics.budget_remaining.labels(budget=held.key).set(budget.remaining(held, seen.now, urgent=True))
    for lease in seen.leases:
        metrics.lease_held.labels(lease=lease.name).set(lease.holder == holder)
    alive = [replica for replica in seen.replicas if seen.now - replica.seen_at < ttl]
    metrics.replicas.set(len(alive))
    metrics.replicas_at_work.set(sum(not replica.draining for replica in alive))
    for name, ok in seen.self_checks.items():
        metrics.self_check_ok.labels(name=name).set(ok)
    for ca, ends_at in seen.lists_end_at.items():
        metrics.crl_expires.labels(ca=ca).set(ends_at.timestamp())
    notification_gauges.show(seen.notifications, metrics, seen.now)
