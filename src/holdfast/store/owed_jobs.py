"""Jobs that a transaction owes: gathered while it runs, inserted together right before COMMIT."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from holdfast.core.job import Claim, Spec
from holdfast.store.leases import fence_base
from holdfast.store.tx import Tx, to_micros, value_list

PAGE: Final = 50  # rows a statement
TRACE: Final = "traceparent"  # in the payload of a job (W3C trace context)
WAITING: Final = 9  # columns of a job that nobody holds


def owe_claimed(tx: Tx, spec: Spec, holder: str, ttl: timedelta, known: Any = None) -> Claim:
    """Ask for work and lease it in one go: this replica has a slot free, and no budget has to be asked."""
    fence, spec = fence_base(tx) + 1, traced(tx, spec)
    tx.owed_jobs.append((*row(spec), holder, fence, ttl // timedelta(microseconds=1)))
    return Claim(
        id=spec.id,
        kind=spec.kind,
        subject=spec.subject,
        payload=spec.payload,
        attempt=1,
        max_attempts=spec.max_attempts,
        fence=fence,
        priority=spec.priority,
        budgets=(),
        recheck=False,
        known=known,
    )


def pay(tx: Tx) -> None:
    """Insert the jobs that the transaction owes. Called by the store, before it seals the journal."""
    if not tx.owed_jobs:
        return
    rows = sorted(tx.owed_jobs)  # by kind and subject: two groups that want the same jobs must not wait for each other
    tx.owed_jobs.clear()
    waiting = [each for each in rows if len(each) == WAITING]
    for start in range(0, len(waiting), PAGE):
        insert(tx, waiting[start : start + PAGE])
    claimed = [each for each in rows if len(each) > WAITING]
    for start in range(0, len(claimed), PAGE):
        _insert_claimed(tx, claimed[start : start + PAGE])
    tx.wakes = tx.wakes or bool(waiting)


def traced(tx: Tx, spec: Spec) -> Spec:
    """With the trace that whoever asked for it is a part of, if they said so: the spans of the job are linked to it."""
    trace = tx.origin.get("trace") if tx.origin else None
    return replace(spec, payload={**spec.payload, TRACE: trace}) if trace else spec


def row(spec: Spec) -> tuple[Any, ...]:
    return (
        spec.kind,
        spec.subject,
        spec.id,
        int(spec.priority),
        -1 if spec.due_at is None else to_micros(spec.due_at),
        spec.max_attempts,
        "\n".join(spec.budgets),
        json.dumps(spec.payload),
        -1 if spec.expires_at is None else to_micros(spec.expires_at),
    )


def insert(tx: Tx, rows: Sequence[tuple[Any, ...]]) -> int:
    """Insert what has no live twin. -1 stands for no instant: a NULL in a list of rows would have no type."""
    text, values = value_list(rows)
    return tx.run(
        f"""INSERT INTO jobs (kind, subject, id, state, priority, due_at, max_attempts, budgets, payload, created_at,
                              expires_at)
            SELECT kind, subject, id, 'ready', priority, CASE WHEN due_at < 0 THEN now_us() ELSE due_at END,
                   max_attempts, budgets, payload, now_us(), CASE WHEN expires_at < 0 THEN NULL ELSE expires_at END
              FROM (WITH wanted (kind, subject, id, priority, due_at, max_attempts, budgets, payload, expires_at)
                      AS ({text}) SELECT * FROM wanted) AS wanted
             WHERE TRUE
            ON CONFLICT DO NOTHING""",
        **values,
    )


def _insert_claimed(tx: Tx, rows: Sequence[tuple[Any, ...]]) -> None:
    """The same for jobs that have their holder already; it runs them at once, so they have no time to wait for."""
    text, values = value_list(rows)
    tx.run(
        f"""INSERT INTO jobs (kind, subject, id, state, priority, due_at, max_attempts, budgets, payload, created_at,
                              attempts, holder, fence, lease_until, started_at)
            SELECT kind, subject, id, 'running', priority, now_us(), max_attempts, budgets, payload, now_us(),
                   1, holder, fence, now_us() + ttl, now_us()
              FROM (WITH wanted (kind, subject, id, priority, due_at, max_attempts, budgets, payload, expires_at,
                                 holder, fence, ttl)
                      AS ({text}) SELECT * FROM wanted) AS wanted
             WHERE TRUE
            ON CONFLICT DO NOTHING""",
        **values,
    )
