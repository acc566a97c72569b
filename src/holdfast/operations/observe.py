"""What probes and scrapers ask: is the store well, and what do the gauges say now."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.core import budget
from holdfast.errors import StoreError
from holdfast.operations import observe_notices
from holdfast.operations.gauges import DEADLINE, Inventory
from holdfast.operations.observe_notices import SeenNotices
from holdfast.store import crls, gauges, jobs, leases, migrate, replicas, selfchecks
from holdfast.store.database import Store
from holdfast.store.tx import Tx
from holdfast.telemetry import Metrics

PROBE_DEADLINE = 2.0  # seconds; a probe that waits longer is worth nothing


async def store_problem(db: Store) -> str:
    """One round trip and a look at the schema; empty when all is well, otherwise a sentence."""
    known = migrate.bundled()
    try:
        async with asyncio.timeout(PROBE_DEADLINE):
            current = await db.read(lambda tx: migrate.current(tx, known))
    except TimeoutError:
        return f"the store did not answer in {PROBE_DEADLINE:g} s"
    except StoreError as error:
        return str(error)
    return "" if current else "the schema is not the one this version needs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one look at the store found. The gauges are set from it afterwards: all of them, or none."""

    now: datetime
    jobs: Mapping[tuple[str, str], int]
    oldest_ready_for: timedelta
    budgets: Sequence[budget.Budget]
    leases: Sequence[leases.Lease]
    replicas: Sequence[replicas.Replica]
    self_checks: Mapping[str, bool]
    lists_end_at: Mapping[str, datetime]
    notices: SeenNotices


async def refresh(db: Store, metrics: Metrics, holder: str, ttl: timedelta) -> bool:
    """Set the gauges from SQL. If the store is away they stay as they are; store_up is 0 until the next heartbeat."""
    try:
        async with asyncio.timeout(PROBE_DEADLINE):
            seen = await db.read(_look)
    except (StoreError, TimeoutError):
        metrics.store_up.set(0)
        return False
    _show(seen, metrics, holder, ttl)
    return True


async def scrape(db: Store, metrics: Metrics, holder: str, ttl: timedelta, inventory: Inventory | None) -> None:
    """All that /metrics shows. Whoever hears nothing at the first look need not wait for a second one."""
    began = asyncio.get_running_loop().time()
    well = await refresh(db, metrics, holder, ttl)
    if inventory is not None:
        took = asyncio.get_running_loop().time() - began
        await inventory.refresh(within=DEADLINE - took if well else 0.0)


def _look(tx: Tx) -> Seen:
    return Seen(
        now=tx.now(),
        jobs=jobs.counts(tx),
        oldest_ready_for=jobs.oldest_ready_for(tx),
        budgets=gauges.own_budgets(tx),
        leases=leases.held(tx),
        replicas=replicas.everyone(tx),
        self_checks={row["name"]: bool(row["ok"]) for row in selfchecks.everything(tx)},
        lists_end_at=crls.ends(tx),
        notices=observe_notices.look(tx),
    )


def _show(seen: Seen, metrics: Metrics, holder: str, ttl: timedelta) -> None:
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
    observe_notices.show(seen.notices, metrics, seen.now)
