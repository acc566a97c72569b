"""Jobs as people name them: by id or by the beginning of one; those that are finished, from the history."""

from __future__ import annotations

from typing import Final

from holdfast.core.job import Priority, State
from holdfast.store import jobs
from holdfast.store.jobs import Job
from holdfast.store.tx import Row, Tx, from_micros, instant

SHORTEST_PREFIX: Final = 8


def found(tx: Tx, ref: str) -> Job | None:
    """One that is not finished: by its id, or by a beginning of it that no other has."""
    exact = jobs.get(tx, ref)
    if exact is not None or len(ref) < SHORTEST_PREFIX:
        return exact
    alike = tx.rows(
        f"SELECT {jobs.COLUMNS} FROM jobs WHERE id >= :low AND id < :high ORDER BY id LIMIT 2",
        low=ref,
        high=ref + "\uffff",
    )
    return jobs.from_row(alike[0]) if len(alike) == 1 else None


def ended(tx: Tx, job: str) -> Job | None:
    """One that is finished; how many attempts it might have had is not kept."""
    row = tx.row(
        """SELECT id, kind, subject, state, attempts, created_at, started_at, finished_at
             FROM job_history WHERE id = :id""",
        id=job,
    )
    return None if row is None else _ended(row)


def _ended(row: Row) -> Job:
    return Job(
        id=row["id"],
        kind=row["kind"],
        subject=row["subject"],
        state=State(row["state"]),
        priority=Priority.NORMAL,
        due_at=from_micros(row["started_at"] or row["created_at"]),
        attempts=row["attempts"],
        max_attempts=max(row["attempts"], 1),
        crashes=0,
        holder=None,
        lease_until=None,
        reason=None,
        last_error=None,
        started_at=instant(row["started_at"]),
        finished_at=from_micros(row["finished_at"]),
    )
