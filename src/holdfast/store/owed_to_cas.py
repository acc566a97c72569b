"""What issuers are still to be told: revocations and withdrawals that they have not confirmed, and their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from holdfast.core.status import OwedToCa
from holdfast.core.work.job import JobState
from holdfast.store import inventory
from holdfast.store.tx import Tx, from_micros, value_list

# kind of the job → its subjects: where they are, whose, and since when the issuer is to hear of them
_SUBJECTS: Final = {
    "revoke": ("certificate_versions", "revoke_asked_at", "revoke_asked_at IS NOT NULL AND revoked_at IS NULL"),
    "withdraw": ("issuances", "ended_at", "withdrawal = 'owed'"),
}


def of(tx: Tx, certificates: Sequence[str]) -> dict[str, list[OwedToCa]]:
    """By certificate; most certificates have none."""
    found: dict[str, list[OwedToCa]] = {}
    for kind in _SUBJECTS if certificates else ():
        for certificate, owed in _of_kind(tx, kind, certificates):
            found.setdefault(certificate, []).append(owed)
    return found


def _of_kind(tx: Tx, kind: str, certificates: Sequence[str]) -> list[tuple[str, OwedToCa]]:
    table, since, owed = _SUBJECTS[kind]
    text, values = value_list([(each,) for each in certificates])
    rows = tx.rows(
        f"SELECT id, certificate, issuer, {since} AS since FROM {table} WHERE {owed} AND certificate IN ({text})",
        **values,
    )
    known = inventory.jobs_of(tx, kind, [row["id"] for row in rows])
    return [
        (
            row["certificate"],
            OwedToCa(
                kind="revocation" if kind == "revoke" else "withdrawal",
                of=row["id"],
                issuer=row["issuer"],
                since=None if row["since"] is None else from_micros(row["since"]),
                job=job.id if (job := known.get(row["id"])) else None,
                given_up=job is not None and job.state is JobState.DEAD,
                reason=None if job is None else job.reason,
                error=None if job is None else job.last_error,
                next_at=None if job is None or job.state is JobState.DEAD else job.due_at,
            ),
        )
        for row in rows
    ]


def jobs_at(tx: Tx, issuer: str, now: datetime) -> list[str]:
    """Jobs that wait to tell this issuer."""
    later = "state = 'ready' AND jobs.due_at > :now"
    return [each for kind in _SUBJECTS for each in _jobs(tx, kind, issuer, later, now=now)]


def given_up_at(tx: Tx, issuer: str) -> list[str]:
    """Dead jobs that were to tell this issuer, unless it is too late or another job does it."""
    dead = """state = 'dead' AND COALESCE(jobs.reason, '') <> 'EXPIRED' AND NOT EXISTS
              (SELECT 1 FROM jobs AS twin WHERE twin.kind = jobs.kind AND twin.subject = jobs.subject
                                            AND twin.state <> 'dead')"""
    return [each for kind in _SUBJECTS for each in _jobs(tx, kind, issuer, dead)]


def _jobs(tx: Tx, kind: str, issuer: str, which: str, **values: datetime) -> list[str]:
    table, _, owed = _SUBJECTS[kind]
    rows = tx.rows(
        f"""SELECT jobs.id FROM {table} JOIN jobs ON jobs.subject = {table}.id
             WHERE {owed} AND {table}.issuer = :issuer AND jobs.kind = :kind AND jobs.{which} ORDER BY jobs.id""",
        kind=kind,
        issuer=issuer,
        **values,
    )
    return [row["id"] for row in rows]
