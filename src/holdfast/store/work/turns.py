"""The turns that renewals were promised by their budgets: who waits, and who changes places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.core.work.cluster import Turn
from holdfast.core.work.job import Priority
from holdfast.store.tx import Tx, from_micros, instant, to_micros, value_list

PAGE: Final = 200
MOST: Final = 20_000


def waiting(tx: Tx, kind: str, after: datetime) -> list[Turn]:
    """Jobs of attempts that wait for a turn later than this."""
    rows = tx.rows(
        """SELECT jobs.id, jobs.priority, jobs.budgets, jobs.due_at, certificates.owner, certificate_versions.not_after
             FROM jobs
             JOIN issuances ON issuances.id = jobs.subject
             JOIN certificates ON certificates.id = issuances.certificate
             LEFT JOIN certificate_versions ON certificate_versions.id = certificates.current_version
            WHERE jobs.kind = :kind AND jobs.state = 'ready' AND jobs.due_at > :after
              AND jobs.reason IN ('BUDGET', 'NOT_BEFORE')
            ORDER BY jobs.due_at LIMIT :most""",
        kind=kind,
        after=after,
        most=MOST,
    )
    return [
        Turn(
            job=row["id"],
            line=(row["priority"], row["budgets"]),
            at=from_micros(row["due_at"]),
            ends=instant(row["not_after"]),
            owner=row["owner"],
        )
        for row in rows
    ]


def exchange(tx: Tx, turns: Sequence[tuple[Turn, datetime]]) -> int:
    """Give these jobs their new turns, unless a worker has claimed or moved one meanwhile."""
    if not turns:
        return 0
    text, values = value_list([(turn.job, to_micros(at), to_micros(turn.at)) for turn, at in turns])
    return tx.run(
        f"""UPDATE jobs SET due_at = dealt.column2 FROM ({text}) AS dealt
             WHERE jobs.id = dealt.column1 AND jobs.state = 'ready' AND jobs.due_at = dealt.column3""",
        **values,
    )


def hurry(tx: Tx, kind: str, share: int) -> int:
    """Jobs that wait in line for a certificate with less than this part of its life left: urgent from now on."""
    hurried = tx.run(
        """UPDATE jobs SET priority = 0, due_at = now_us()
            WHERE kind = :kind AND state = 'ready' AND priority > 0 AND due_at > now_us() AND reason = 'BUDGET'
              AND EXISTS (SELECT 1 FROM issuances
                            JOIN certificates ON certificates.id = issuances.certificate
                            JOIN certificate_versions AS current ON current.id = certificates.current_version
                           WHERE issuances.id = jobs.subject
                             AND current.not_after - (current.not_after - current.not_before) / :share <= now_us())""",
        kind=kind,
        share=share,
    )
    tx.wakes = tx.wakes or hurried > 0
    return hurried


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """An attempt that waits, has no order, and has other CAs in its list."""

    job: str
    issuance: str
    certificate: str
    reason: str
    due_at: datetime
    started_at: datetime
    begins: datetime | None  # of the certificate in use
    ends: datetime | None


def unplaced(tx: Tx, kind: str, after: datetime, started: datetime) -> list[Unplaced]:
    """Those that wait for a time later than this and began before that one."""
    rows = tx.rows(
        """SELECT jobs.id, jobs.reason, jobs.due_at, issuances.id AS issuance, issuances.certificate,
                  issuances.started_at, current.not_before, current.not_after
             FROM jobs
             JOIN issuances ON issuances.id = jobs.subject
             JOIN certificates ON certificates.id = issuances.certificate
             LEFT JOIN certificate_versions AS current ON current.id = certificates.current_version
            WHERE jobs.kind = :kind AND jobs.state = 'ready' AND jobs.due_at > :after
              AND jobs.reason IN ('BUDGET', 'NOT_BEFORE', 'CA_DOWN', 'CA_TLS_FAILED', 'CA_RATE_LIMITED',
                                  'ACCOUNT_REFUSED')
              AND issuances.state IN ('requested', 'key_stored') AND issuances.ref IS NULL
              AND issuances.asked_at IS NULL AND issuances.started_at <= :started
              AND certificates.issuers LIKE :several
            ORDER BY jobs.due_at DESC LIMIT :most""",
        kind=kind,
        after=after,
        started=started,
        several="%,%",
        most=MOST,
    )
    return [
        Unplaced(
            job=row["id"],
            issuance=row["issuance"],
            certificate=row["certificate"],
            reason=row["reason"],
            due_at=from_micros(row["due_at"]),
            started_at=from_micros(row["started_at"]),
            begins=instant(row["not_before"]),
            ends=instant(row["not_after"]),
        )
        for row in rows
    ]


def make_urgent(tx: Tx, kind: str, subject: str) -> None:
    """A job goes before others from now on; one that waits for a budget may use its reserve."""
    changed = tx.run(
        """UPDATE jobs
              SET priority = :urgent,
                  due_at = CASE WHEN state = 'ready' AND reason = 'BUDGET' THEN now_us() ELSE due_at END
            WHERE kind = :kind AND subject = :subject AND state <> 'dead' AND priority > :urgent""",
        kind=kind,
        subject=subject,
        urgent=int(Priority.URGENT),
    )
    tx.wakes = tx.wakes or changed == 1
