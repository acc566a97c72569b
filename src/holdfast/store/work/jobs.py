"""Jobs: enqueue, claim, settle, take back. Every worker's write is guarded by the fence of its claim."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core.backoff import JOB, Ladder
from holdfast.core.work.job import (  # fmt: skip
    CRASHES_TO_SUSPECT,
    Again,
    Claim,
    Done,
    Job,
    JobFailed,
    JobState,
    Outcome,
    Priority,
    Spec,
    move,
    verdict,
)
from holdfast.errors import LeaseLost, TxConflict
from holdfast.store import journal
from holdfast.store.issuances import storable
from holdfast.store.rows import Table
from holdfast.store.tx import Row, Tx, from_micros, instant, to_micros, value_list
from holdfast.store.work import budgets
from holdfast.store.work.cluster import fence_base

ENQUEUE_TRIES: Final = 3
PAGE: Final = 50  # rows a statement
RETRY: Final = "RETRY"  # why one is ready that had failed
READY, RUNNING, FAILED, DEAD = JobState.READY.value, JobState.RUNNING.value, JobState.FAILED.value, JobState.DEAD.value
TABLE: Final = Table(Job, "jobs", without={"finished_at"})


# ── asking for work ──


def enqueue(tx: Tx, spec: Spec) -> str:
    """Ask for work, in the transaction that causes it. The live job for (kind, subject): this or an older one."""
    row = job_row(traced(tx, spec))
    for _ in range(ENQUEUE_TRIES):
        if insert_jobs(tx, [row]):
            tx.wakes = True
            return spec.id
        # On PostgreSQL the job in the way may have ended since: then this one is needed after all.
        older = tx.row(
            "SELECT id FROM jobs WHERE kind = :kind AND subject = :subject AND state <> 'dead'",
            kind=spec.kind,
            subject=spec.subject,
        )
        if older is not None:
            return str(older["id"])
    raise TxConflict(f"jobs of kind {spec.kind} for {spec.subject} come and go")


def owe(tx: Tx, spec: Spec) -> None:
    """Ask for work without asking which job will do it: written right before COMMIT, together with all others."""
    tx.owed_jobs.append(job_row(traced(tx, spec)))


# ── claiming ──


def claim(tx: Tx, *, holder: str, free: Mapping[str, int], ttl: timedelta) -> list[Claim]:
    """Lease due jobs of each kind up to its free slots, most urgent first; budgets are taken in the same transaction.

    A job whose budget has nothing left is not claimed: it gets a turn, with the reason, and is due again then.
    """
    left = {kind: slots for kind, slots in free.items() if slots > 0}
    rows: list[Row] = []
    for kind, priority in _due(tx, left):
        if left[kind] > 0:
            picked = _pick_safely(tx, kind, priority, left[kind], holder, rows)
            left[kind] -= len(picked)
            rows += picked
    admitted = budgets.admit(tx, rows)
    tx.wakes = tx.wakes or len(admitted) < len(rows)  # behind those turned away others may be due: look again at once
    return _lease(tx, admitted, holder, ttl)


def _due(tx: Tx, kinds: Iterable[str]) -> list[tuple[str, int]]:
    """Which kinds have work due, and how urgent: one look at the top of each index range."""
    wanted = [(kind, int(priority)) for kind in kinds for priority in Priority]
    if not wanted:
        return []
    text, values = value_list(wanted)
    # Not EXISTS (… due_at <= now): PostgreSQL guesses that a third of the jobs is due, and reads the table to find one.
    rows = tx.rows(
        f"""WITH want (kind, priority) AS ({text})
            SELECT kind, priority FROM want
             WHERE (SELECT jobs.due_at FROM jobs
                     WHERE jobs.kind = want.kind AND jobs.priority = want.priority AND jobs.state = 'ready'
                     ORDER BY jobs.due_at LIMIT 1) <= (SELECT now_us())
             ORDER BY priority, kind""",
        **values,
    )
    return [(row["kind"], row["priority"]) for row in rows]


def _pick_safely(tx: Tx, kind: str, priority: int, limit: int, holder: str, taken: Sequence[Row]) -> list[Row]:
    """Pick, but at most one suspect for each holder.

    A poisoned job brings all that run beside it under suspicion; run one by one, only the guilty dies a third time.
    """
    picked = _pick(tx, kind, priority, limit)
    suspects = [row for row in picked if _suspect(row)]
    if not suspects:
        return picked
    free = not any(map(_suspect, taken)) and not _holds_a_suspect(tx, holder)
    one = suspects[:1] if free else []
    return picked if suspects == one else one + _pick(tx, kind, priority, limit - len(one), suspects=False)


def _pick(tx: Tx, kind: str, priority: int, limit: int, *, suspects: bool = True) -> list[Row]:
    return tx.rows(
        """SELECT id, kind, subject, payload, attempts, max_attempts, crashes, priority, budgets, reason, recheck
             FROM jobs
            WHERE state = 'ready' AND kind = :kind AND priority = :priority AND due_at <= (SELECT now_us())
              AND (:suspects OR crashes < :crashes)
            ORDER BY due_at LIMIT :limit /* FOR UPDATE SKIP LOCKED */""",
        kind=kind,
        priority=priority,
        limit=limit,
        suspects=suspects,
        crashes=CRASHES_TO_SUSPECT,
    )


def _suspect(row: Row) -> bool:
    return bool(row["crashes"] >= CRASHES_TO_SUSPECT)


def _holds_a_suspect(tx: Tx, holder: str) -> bool:
    row = tx.row(
        "SELECT id FROM jobs WHERE state = 'running' AND holder = :holder AND crashes >= :crashes LIMIT 1",
        holder=holder,
        crashes=CRASHES_TO_SUSPECT,
    )
    return row is not None


def _lease(tx: Tx, rows: Sequence[Row], holder: str, ttl: timedelta) -> list[Claim]:
    if not rows:
        return []
    text, values = value_list([(row["id"],) for row in rows])
    leased = tx.rows(
        f"""UPDATE jobs SET state = :running, holder = :holder, lease_until = now_us() + :ttl, started_at = now_us(),
                   attempts = attempts + 1, reason = NULL,
                   fence = CASE WHEN fence < :base THEN :base ELSE fence END + 1
             WHERE id IN ({text}) RETURNING id, fence, attempts""",
        running=move(JobState.READY, "claimed"),
        holder=holder,
        ttl=ttl,
        base=fence_base(tx),
        **values,
    )
    numbers = {row["id"]: (row["fence"], row["attempts"]) for row in leased}
    return [_claim(row, *numbers[row["id"]]) for row in rows]


def _claim(row: Row, fence: int, attempt: int) -> Claim:
    return Claim(
        id=row["id"],
        kind=row["kind"],
        subject=row["subject"],
        payload=json.loads(row["payload"]),
        attempt=attempt,
        max_attempts=row["max_attempts"],
        fence=fence,
        priority=Priority(row["priority"]),
        budgets=tuple(row["budgets"].split("\n")) if row["budgets"] else (),
        recheck=bool(row["recheck"]),
        paid=row.get("paid", {}),
        paid_at=row.get("paid_at"),
    )


def beat(tx: Tx, holder: str, claims: Sequence[Claim], ttl: timedelta) -> set[str]:
    """Renew every lease at once; the ids that are still ours come back, the others are lost."""
    if not claims:
        return set()
    text, values = value_list([(claim.id, claim.fence) for claim in claims])
    rows = tx.rows(
        f"""UPDATE jobs SET lease_until = now_us() + :ttl
             WHERE state = 'running' AND holder = :holder AND (id, fence) IN ({text})
               AND lease_until > (SELECT now_us()) RETURNING id""",
        ttl=ttl,
        holder=holder,
        **values,
    )
    return {row["id"] for row in rows}


# ── settling ──


def finish(tx: Tx, claims: Sequence[Claim]) -> set[str]:
    """Move finished jobs to the history. The ids that were still ours come back; the others changed nothing."""
    text, values = value_list([(claim.id, claim.fence) for claim in claims])
    ours = f"state = 'running' AND (id, fence) IN ({text})"
    return _to_history(tx, ours, move(JobState.RUNNING, "finished"), **values)


def _to_history(tx: Tx, which: str, state: JobState, **params: object) -> set[str]:
    gone = tx.move(
        f"DELETE FROM jobs WHERE {which}",
        "job_history",
        columns="id, kind, subject, attempts, fence, holder, created_at, started_at, now_us() AS finished_at",
        also={"state": state.value},
        **params,
    )
    if gone:
        tx.told_now(gone[0]["finished_at"])
    return {row["id"] for row in gone}


def settle(tx: Tx, claim: Claim, outcome: Outcome, ladder: Ladder = JOB) -> None:
    """Write a worker's answer and what it changed, together. LeaseLost undoes all of it."""
    if isinstance(outcome, Done):
        if claim.id not in finish(tx, [claim]):
            raise LeaseLost(claim.id)
    elif isinstance(outcome, Again):
        _again(tx, claim, outcome)
    else:
        _fail(tx, claim, outcome, ladder)
    if outcome.write is not None:
        outcome.write(tx)


def _again(tx: Tx, claim: Claim, outcome: Again) -> None:
    """No failure: what waits for weeks must not use up its attempts by deaths of workers that it outlived."""
    _guarded(
        tx,
        claim,
        """state = :state, due_at = COALESCE(:at, now_us() + :after), crashes = 0,
           attempts = CASE WHEN attempts > crashes THEN attempts - 1 - crashes ELSE 0 END,
           recheck = FALSE, reason = :reason, holder = NULL, lease_until = NULL""",
        state=move(JobState.RUNNING, "not yet"),
        at=None if outcome.at is None else to_micros(outcome.at),
        after=outcome.after or timedelta(0),
        reason=outcome.reason,
    )
    tx.wakes = True


def _fail(tx: Tx, claim: Claim, outcome: JobFailed, ladder: Ladder) -> None:
    retry = verdict(claim, outcome, ladder)
    state = move(JobState.RUNNING, retry.event)
    _guarded(
        tx,
        claim,
        """state = :state, due_at = now_us() + :wait, crashes = 0, recheck = FALSE, reason = :reason,
           last_error = :error, holder = NULL, lease_until = NULL""",
        state=state,
        wait=retry.wait,
        reason=outcome.reason,
        error=storable(outcome.error),
    )
    facts: dict[str, Any] = {
        "kind": claim.kind,
        "attempts": claim.attempt,
        "max_attempts": claim.max_attempts,
        "reason": outcome.reason,
    }
    journal.audit(tx, "job_dead" if state is JobState.DEAD else "job_failed", claim.subject, job=claim.id, **facts)
    journal.event(tx, "job.dead" if state is JobState.DEAD else "job.failed", claim.subject, job=claim.id, **facts)


def _guarded(tx: Tx, claim: Claim, changes: str, **params: object) -> None:
    changed = tx.run(
        f"UPDATE jobs SET {changes} WHERE id = :id AND fence = :fence AND state = 'running'",
        id=claim.id,
        fence=claim.fence,
        **params,
    )
    if not changed:
        raise LeaseLost(claim.id)


def finished(tx: Tx, claims: Sequence[Claim]) -> set[str]:
    """Which of these are in the history under our fence: after an unknown COMMIT, those that did commit."""
    text, values = value_list([(claim.id, claim.fence) for claim in claims])
    return {row["id"] for row in tx.rows(f"SELECT id FROM job_history WHERE (id, fence) IN ({text})", **values)}


def still_ours(tx: Tx, claim: Claim) -> bool:
    """After an unknown COMMIT: is the job still in our hands, so that the answer must be written again?"""
    row = tx.row("SELECT fence, state FROM jobs WHERE id = :id", id=claim.id)
    return row is not None and row["fence"] == claim.fence and row["state"] == RUNNING


# ── taking back ──


def release(tx: Tx, claims: Sequence[Claim]) -> int:
    """Hand unfinished jobs back at once: a replica that stops in good order costs them nothing."""
    if not claims:
        return 0
    text, values = value_list([(claim.id, claim.fence) for claim in claims])
    return _hand_back(tx, f"(id, fence) IN ({text})", **values)


def release_strays(tx: Tx, holder: str, known: Sequence[Claim]) -> int:
    """Jobs claimed in our name whose claim we never heard of (its COMMIT was answered too late).

    By their fence: of a job whose old answer is still being written, a newer claim may be the one that was lost.
    """
    text, values = value_list([(claim.id, claim.fence) for claim in known] or [("", 0)])
    return _hand_back(tx, f"holder = :holder AND (id, fence) NOT IN ({text})", holder=holder, **values)


def _hand_back(tx: Tx, which: str, **params: object) -> int:
    tx.wakes = True
    return tx.run(
        f"""UPDATE jobs SET state = :ready, due_at = now_us(), attempts = attempts - 1, fence = fence + 1,
                   holder = NULL, lease_until = NULL, reason = 'RELEASED'
             WHERE state = 'running' AND {which}""",
        ready=move(JobState.RUNNING, "released"),
        **params,
    )


# ── for people ──


def get(tx: Tx, job_id: str) -> Job | None:
    row = tx.row(f"SELECT {TABLE.columns} FROM jobs WHERE id = :id", id=job_id)
    return None if row is None else TABLE.read(row)


def live(tx: Tx, kind: str, subject: str) -> Job | None:
    row = tx.row(
        f"SELECT {TABLE.columns} FROM jobs WHERE kind = :kind AND subject = :subject AND state <> 'dead'",
        kind=kind,
        subject=subject,
    )
    return None if row is None else TABLE.read(row)


def dead(tx: Tx, kind: str, subject: str) -> Job | None:
    """The one that was given up, the last of them."""
    row = tx.row(
        f"""SELECT {TABLE.columns} FROM jobs WHERE kind = :kind AND subject = :subject AND state = 'dead'
             ORDER BY due_at DESC LIMIT 1""",
        kind=kind,
        subject=subject,
    )
    return None if row is None else TABLE.read(row)


def known(tx: Tx, kind: str, subject: str) -> bool:
    """Whether there is any job for this, a dead one included: a person decides about those, not the reconciler."""
    row = tx.row(
        """SELECT 1 AS found FROM jobs WHERE kind = :kind AND subject = :subject AND state <> 'dead'
           UNION ALL SELECT 1 FROM jobs WHERE kind = :kind AND subject = :subject AND state = 'dead' LIMIT 1""",
        kind=kind,
        subject=subject,
    )
    return row is not None


def any_dead(tx: Tx, kind: str) -> bool:
    return tx.row("SELECT 1 AS found FROM jobs WHERE kind = :kind AND state = 'dead' LIMIT 1", kind=kind) is not None


def counts(tx: Tx) -> dict[tuple[str, str], int]:
    rows = tx.rows("SELECT kind, state, COUNT(*) AS n FROM jobs GROUP BY kind, state")
    return {(row["kind"], row["state"]): row["n"] for row in rows}


def oldest_ready_for(tx: Tx) -> timedelta:
    """How long the longest-waiting due job has waited."""
    row = tx.row(
        """SELECT now_us() - MIN(due_at) AS age FROM jobs
            WHERE state = 'ready' AND due_at <= (SELECT now_us())"""
    )
    return timedelta(microseconds=row["age"]) if row and row["age"] is not None else timedelta(0)


def requeue(tx: Tx, job_id: str) -> bool:
    """dead → ready, with all attempts given back. False if it is not dead."""
    changed = tx.run(
        """UPDATE jobs SET state = :ready, due_at = now_us(), attempts = 0, crashes = 0, fence = fence + 1,
                  reason = 'REQUEUED' WHERE id = :id AND state = 'dead'""",
        id=job_id,
        ready=move(JobState.DEAD, "requeued"),
    )
    tx.wakes = tx.wakes or changed == 1
    return changed == 1


def hasten(tx: Tx, job_id: str) -> bool:
    """Let one that waits for its time, or for the retry sweep, be due now. False if it runs, is dead, or is due."""
    moved = tx.run(
        "UPDATE jobs SET state = :ready, due_at = now_us() WHERE id = :id AND state = 'failed'",
        id=job_id,
        ready=move(JobState.FAILED, "retried"),
    ) or tx.run("UPDATE jobs SET due_at = now_us() WHERE id = :id AND state = 'ready' AND due_at > now_us()", id=job_id)
    tx.wakes = tx.wakes or moved == 1
    return moved == 1


def cancel(tx: Tx, job_id: str) -> bool:
    """Remove a job from the queue. False if it runs or is gone."""
    rows = tx.rows("SELECT id, state FROM jobs WHERE id = :id AND state <> 'running' /* FOR UPDATE */", id=job_id)
    for row in rows:
        _to_history(tx, "id = :id", move(JobState(row["state"]), "cancelled"), id=row["id"])
    return bool(rows)


def bring_forward(tx: Tx, kind: str, subject: str, due_at: datetime) -> bool:
    """Let a job that sleeps wake earlier; False if it runs already, or would wake before that anyway."""
    # The lock waits for an answer that is being written: on PostgreSQL, the job would look as if it still ran.
    tx.rows(
        "SELECT id FROM jobs WHERE kind = :kind AND subject = :subject AND state <> 'dead' /* FOR UPDATE */",
        kind=kind,
        subject=subject,
    )
    changed = tx.run(
        """UPDATE jobs SET due_at = :due_at
            WHERE kind = :kind AND subject = :subject AND state = 'ready' AND due_at > :due_at""",
        kind=kind,
        subject=subject,
        due_at=due_at,
    )
    tx.wakes = tx.wakes or changed == 1
    return changed == 1


def processing_without(tx: Tx, table: str, kind: str, limit: int) -> list[tuple[str, bool]]:
    """Rows of a table that are `processing` without a live job of this kind, and whether a dead one is there."""
    rows = tx.rows(
        f"""SELECT id, EXISTS (SELECT 1 FROM jobs WHERE jobs.kind = :kind AND jobs.subject = {table}.id) AS dead
              FROM {table}
             WHERE state = 'processing'
               AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.kind = :kind AND jobs.subject = {table}.id
                                                    AND jobs.state <> 'dead')
             ORDER BY id LIMIT :limit""",
        kind=kind,
        limit=limit,
    )
    return [(row["id"], bool(row["dead"])) for row in rows]


# ── Jobs that a transaction owes: inserted together when it commits ──

TRACE: Final = "traceparent"  # in the payload of a job (W3C trace context)
WAITING: Final = 9  # columns of a job that nobody holds


def owe_claimed(tx: Tx, spec: Spec, holder: str, ttl: timedelta, known: object = None) -> Claim:
    """Ask for work and lease it in one go: this replica has a slot free, and no budget has to be asked."""
    fence, spec = fence_base(tx) + 1, traced(tx, spec)
    tx.owed_jobs.append((*job_row(spec), holder, fence, ttl // timedelta(microseconds=1)))
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


def insert_owed(tx: Tx) -> None:
    """Insert the jobs that the transaction owes. Called by the store, before it seals the journal."""
    if not tx.owed_jobs:
        return
    rows = sorted(tx.owed_jobs)  # by kind and subject: two groups that want the same jobs must not wait for each other
    tx.owed_jobs.clear()
    waiting = [each for each in rows if len(each) == WAITING]
    for start in range(0, len(waiting), PAGE):
        insert_jobs(tx, waiting[start : start + PAGE])
    claimed = [each for each in rows if len(each) > WAITING]
    for start in range(0, len(claimed), PAGE):
        _insert_claimed(tx, claimed[start : start + PAGE])
    tx.wakes = tx.wakes or bool(waiting)


def traced(tx: Tx, spec: Spec) -> Spec:
    """With the trace context of the request, if there is one: the job's spans are linked to it."""
    trace = tx.origin.get("trace") if tx.origin else None
    return replace(spec, payload={**spec.payload, TRACE: trace}) if trace else spec


def job_row(spec: Spec) -> tuple[object, ...]:
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


def insert_jobs(tx: Tx, rows: Sequence[tuple[object, ...]]) -> int:
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


def _insert_claimed(tx: Tx, rows: Sequence[tuple[object, ...]]) -> None:
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


# ── Lookup by id or prefix ──

SHORTEST_PREFIX: Final = 8


def found(tx: Tx, ref: str) -> Job | None:
    """One that is not finished: by its id, or by a beginning of it that no other has."""
    exact = get(tx, ref)
    if exact is not None or len(ref) < SHORTEST_PREFIX:
        return exact
    alike = tx.rows(
        f"SELECT {TABLE.columns} FROM jobs WHERE id >= :low AND id < :high ORDER BY id LIMIT 2",
        low=ref,
        high=ref + "\uffff",
    )
    return TABLE.read(alike[0]) if len(alike) == 1 else None


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
        state=JobState(row["state"]),
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


def keep(tx: Tx, job: str, said: str) -> None:
    tx.run("UPDATE jobs SET last_error = :said WHERE id = :id", id=job, said=storable(said))
