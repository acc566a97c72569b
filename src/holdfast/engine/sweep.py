"""The periodic duties of the engine itself: retry, reconcile, time out, clean up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from holdfast.core.work.job import Spec
from holdfast.ports import Points
from holdfast.store import journal
from holdfast.store.database import Store, forget_keys
from holdfast.store.tx import Tx
from holdfast.store.work import cluster, jobs, sweeps

KEYS_FOR = timedelta(hours=24)  # how long a repeated write finds its first answer
SILENT_FOR = timedelta(hours=1)  # a replica that said nothing for so long is forgotten

Owed = Callable[[Tx], Sequence[Spec]]  # the jobs of subjects that are under way and have none; at most a page


async def retry_failed(db: Store, points: Points) -> int:
    """failed → ready, page by page until nothing is due: rows that cannot go never hide rows that can."""
    total = 0
    while moved := await db.write(sweeps.retry_failed):
        points("sweep.retried")
        total += moved
    return total


async def time_out(db: Store) -> int:
    return await in_pages(db, sweeps.expire_overdue)


async def clean_up(db: Store, history_for: timedelta) -> int:
    """Forget old history and events, archived audit entries, keys of writes long done, and replicas long gone."""
    await db.write(lambda tx: cluster.forget_silent_replicas(tx, SILENT_FOR))
    await db.write(lambda tx: forget_keys(tx, tx.now() - KEYS_FOR))
    await in_pages(db, journal.forget_archived)
    events = await in_pages(db, lambda tx: journal.forget_events(tx, tx.now() - history_for))
    return events + await in_pages(db, lambda tx: sweeps.forget_history(tx, tx.now() - history_for))


async def reconcile(db: Store, families: Sequence[Owed], points: Points) -> int:
    """Give every subject that is under way its job back, whatever made it disappear."""
    total = 0
    for owed in families:
        while restored := await db.write(lambda tx, owed=owed: _restore(tx, owed)):  # type: ignore[misc]
            points("sweep.reconciled")
            total += restored
    return total


def _restore(tx: Tx, owed: Owed) -> int:
    missing = [spec for spec in owed(tx) if jobs.enqueue(tx, spec) == spec.id]  # not if another brought it meanwhile
    for spec in missing:
        journal.audit(tx, "job_restored", spec.subject, job=spec.id, kind=spec.kind)
    return len(missing)


async def in_pages(db: Store, page: Callable[[Tx], int]) -> int:
    """A transaction for each page until one changes nothing; how much was changed in all."""
    total = 0
    while changed := await db.write(page):
        total += changed
    return total
