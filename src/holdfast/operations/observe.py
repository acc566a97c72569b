"""What probes and scrapers ask: is the store well, and what do the gauges say now."""

from __future__ import annotations

import asyncio

from holdfast.core import budget
from holdfast.errors import StoreError
from holdfast.store import budgets, jobs, leases, migrate, replicas, selfchecks
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


async def refresh(db: Store, metrics: Metrics, holder: str) -> None:
    """Set the gauges from SQL. If the store is away they stay as they are; store_up is 0 until the next heartbeat."""
    try:
        async with asyncio.timeout(PROBE_DEADLINE):
            await db.read(lambda tx: _set(tx, metrics, holder))
    except (StoreError, TimeoutError):
        metrics.store_up.set(0)


def _set(tx: Tx, metrics: Metrics, holder: str) -> None:
    metrics.jobs.clear()
    for (kind, state), number in jobs.counts(tx).items():
        metrics.jobs.labels(queue=kind, state=state).set(number)
    metrics.job_oldest_ready_age.set(jobs.oldest_ready_for(tx).total_seconds())
    now = tx.now()
    metrics.budget_remaining.clear()
    for held in budgets.all_budgets(tx):
        metrics.budget_remaining.labels(budget=held.key).set(budget.remaining(held, now, urgent=True))
    for lease in leases.held(tx):
        metrics.lease_held.labels(lease=lease.name).set(lease.holder == holder)
    metrics.replicas.set(len(replicas.everyone(tx)))
    for row in selfchecks.everything(tx):
        metrics.self_check_ok.labels(name=row["name"]).set(bool(row["ok"]))
