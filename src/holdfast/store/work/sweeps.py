"""Sweeps over jobs: taking back expired leases, retrying, timing out, forgetting."""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.core.work.job import JobState, is_poison, move
from holdfast.store import journal
from holdfast.store.tx import Tx, value_list
from holdfast.store.work.cluster import ABSURD, expire_leases
from holdfast.store.work.jobs import RETRY


def take_back_expired(tx: Tx, ttl: timedelta, limit: int = 100, *, me: str = "") -> tuple[int, int]:
    """Take jobs from holders that went silent. One that dies again and again is quarantined. Counts of both.

    A lease that ends absurdly late was written before the database's clock was set back: it counts as expired. A job
    of the process that asks (`me`) did not kill it: the process stalled, or the clock jumped. It gets its attempt back.
    """
    rows = tx.rows(
        """SELECT id, kind, subject, crashes, attempts, max_attempts, holder,
                  (SELECT COUNT(*) FROM jobs AS other WHERE other.state = 'running' AND other.holder = jobs.holder)
                  - 1 AS beside
             FROM jobs
            WHERE state = 'running'
              AND (lease_until <= (SELECT now_us()) OR lease_until > (SELECT now_us()) + :absurd)
            ORDER BY lease_until LIMIT :limit /* FOR UPDATE SKIP LOCKED */""",
        limit=limit,
        absurd=ABSURD * ttl,
    )
    quarantined = 0
    for row in rows:
        crashes = row["crashes"] + (row["holder"] != me)
        poison = crashes > row["crashes"] and is_poison(crashes, beside=row["beside"])
        quarantined += poison
        tx.run(
            """UPDATE jobs SET state = :state, due_at = now_us(), crashes = :crashes, fence = fence + 1,
                      attempts = attempts - :given_back, holder = NULL, lease_until = NULL, reason = :reason,
                      last_error = :error
                WHERE id = :id""",
            id=row["id"],
            crashes=crashes,
            given_back=int(row["holder"] == me),
            state=move(JobState.RUNNING, "quarantined" if poison else "lease expired"),
            reason="POISON" if poison else "LEASE_EXPIRED",
            error=f"its worker {row['holder']} went silent ({crashes} in a row)",
        )
        facts = {
            "kind": row["kind"],
            "attempts": row["attempts"],
            "crashes": crashes,
            "holder": row["holder"],
        }
        name = "quarantined" if poison else "taken_back"
        journal.audit(tx, f"job_{name}", row["subject"], job=row["id"], **facts)
        journal.event(tx, f"job.{name}", row["subject"], job=row["id"], **facts)
    tx.wakes = tx.wakes or bool(rows)
    return len(rows) - quarantined, quarantined


def take_back_all(tx: Tx) -> int:
    """After a failover: no claim can be trusted, and what was under way must first be compared with the remote.

    The attempt is given back: the job did nothing to deserve it.
    """
    tx.wakes = True
    return tx.run(
        """UPDATE jobs SET state = :ready, due_at = now_us(), attempts = attempts - 1, fence = fence + 1, holder = NULL,
                  lease_until = NULL, recheck = TRUE, reason = 'STORE_FAILOVER' WHERE state = 'running'""",
        ready=move(JobState.RUNNING, "lease expired"),
    )


def expire_all(tx: Tx) -> None:
    """At the start of the only process that may use this store: whoever holds a lease or a job is dead."""
    tx.run("UPDATE jobs SET lease_until = 0 WHERE state = 'running'")
    expire_leases(tx)


def retry_failed(tx: Tx, limit: int = 500) -> int:
    """failed → ready for every job whose wait is over and that has attempts left."""
    rows = tx.rows(
        """SELECT id, kind, subject, attempts, max_attempts FROM jobs
            WHERE state = 'failed' AND due_at <= (SELECT now_us()) ORDER BY due_at LIMIT :limit
            /* FOR UPDATE SKIP LOCKED */""",
        limit=limit,
    )
    if not rows:
        return 0
    ready = move(JobState.FAILED, "retried")
    text, values = value_list([(row["id"],) for row in rows])
    tx.run(f"UPDATE jobs SET state = :ready, reason = :why WHERE id IN ({text})", ready=ready, why=RETRY, **values)
    for row in rows:
        facts = {"attempts": row["attempts"], "max_attempts": row["max_attempts"]}
        journal.audit(
            tx,
            "job_retry",
            row["subject"],
            job=row["id"],
            old_status=JobState.FAILED.value,
            new_status=ready.value,
            **facts,
        )
    tx.wakes = True
    return len(rows)


def expire_overdue(tx: Tx, limit: int = 500) -> int:
    """Jobs that were not begun by the time after which they make no sense: dead, visibly."""
    rows = tx.rows(
        """SELECT id, kind, subject, state FROM jobs
            WHERE expires_at IS NOT NULL AND state IN ('ready', 'failed') AND expires_at <= (SELECT now_us())
            ORDER BY expires_at LIMIT :limit /* FOR UPDATE SKIP LOCKED */""",
        limit=limit,
    )
    for row in rows:
        tx.run(
            "UPDATE jobs SET state = :dead, reason = 'TIMED_OUT', last_error = 'not begun in time' WHERE id = :id",
            id=row["id"],
            dead=move(JobState(row["state"]), "expired"),
        )
        journal.audit(tx, "job_expired", row["subject"], job=row["id"], kind=row["kind"])
        journal.event(tx, "job.dead", row["subject"], job=row["id"], kind=row["kind"], reason="TIMED_OUT")
    return len(rows)


def forget_history(tx: Tx, before: datetime, limit: int = 5000) -> int:
    """Delete old history rows, a page at a time. Ids begin with their time, so the primary key serves as the index."""
    return tx.run(
        """DELETE FROM job_history WHERE id IN
               (SELECT id FROM job_history WHERE finished_at < :before ORDER BY id LIMIT :limit)""",
        before=before,
        limit=limit,
    )


def note_epoch(tx: Tx) -> tuple[int, bool]:
    """Compare the epoch of this connection with the newest one seen; after a failover take everything back.

    Commits may be missing that their writers saw succeed. So no lease counts any more, and every job that was
    under way comes back marked `recheck`: its handler asks the remote before it does anything again.
    """
    known = tx.rows("SELECT epoch FROM store_epoch WHERE only_one = 1")[0]["epoch"]
    if tx.epoch <= known:
        return known, False
    moved = tx.run("UPDATE store_epoch SET epoch = :epoch WHERE only_one = 1 AND epoch < :epoch", epoch=tx.epoch)
    first = known == 0  # a fresh database: nothing can be missing
    if moved and not first:
        taken = take_back_all(tx)
        dropped = expire_leases(tx)
        journal.audit(tx, "store_failover", "store", old_epoch=known, new_epoch=tx.epoch, jobs=taken, leases=dropped)
        journal.event(tx, "store.failover", "store", jobs=taken)
    return tx.epoch, bool(moved) and not first
