"""Approvals: what waits for a second person, and what that person said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from holdfast.core import telling
from holdfast.store import journal, notices
from holdfast.store.tx import Row, Tx, from_micros, instant, value_list

PAGE: Final = 200
Verdict = Literal["approved", "rejected", "timed_out", "withdrawn"]
COLUMNS: Final = "id, issuance, certificate, state, requested_by, asked_at, expires_at, decided_by, decided_at, note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    id: str
    issuance: str
    certificate: str
    state: str = "pending"
    requested_by: str
    asked_at: datetime
    expires_at: datetime
    decided_by: str | None = None
    decided_at: datetime | None = None
    note: str = ""


def insert(tx: Tx, approval: Approval) -> None:
    tx.run(
        f"""INSERT INTO approvals ({COLUMNS})
            VALUES (:id, :issuance, :certificate, 'pending', :requested_by, :asked_at, :expires_at, NULL, NULL, '')""",
        id=approval.id,
        issuance=approval.issuance,
        certificate=approval.certificate,
        requested_by=approval.requested_by,
        asked_at=approval.asked_at,
        expires_at=approval.expires_at,
    )


def decide(tx: Tx, approval: str, verdict: Verdict, *, by: str, note: str) -> bool:
    """pending → decided; False if it was decided before: the first word counts.

    Word of it that never arrived is nobody's to send any more.
    """
    changed = tx.run(
        """UPDATE approvals SET state = :verdict, decided_by = :by, decided_at = now_us(), note = :note
            WHERE id = :id AND state = 'pending'""",
        id=approval,
        verdict=verdict,
        by=by,
        note=note,
    )
    if changed == 1:
        _settle(tx, telling.approval_key(approval), f"the approval is {verdict.replace('_', ' ')}", by)
    return changed == 1


def _settle(tx: Tx, key: str, note: str, by: str) -> None:
    found = notices.dead_of(tx, key)
    notices.resolve(tx, found, note, by)
    for each in found:
        facts = {"channel": each.channel, "about": each.subject, "was": each.state.value, "reason": each.why or ""}
        facts |= {"note": note, "error": each.last_error or ""}
        journal.event(tx, "notice.resolved", each.id, by=by, attempts=each.retry_count, **facts)


def get(tx: Tx, approval: str) -> Approval | None:
    row = tx.row(f"SELECT {COLUMNS} FROM approvals WHERE id = :id", id=approval)
    return None if row is None else from_row(row)


def of_issuance(tx: Tx, issuance: str) -> Approval | None:
    row = tx.row(f"SELECT {COLUMNS} FROM approvals WHERE issuance = :issuance", issuance=issuance)
    return None if row is None else from_row(row)


def ends(tx: Tx, issuances: Sequence[str]) -> dict[str, datetime]:
    """Until when those may be decided that are about these attempts, and are not yet."""
    if not issuances:
        return {}
    text, values = value_list([(each,) for each in issuances])
    rows = tx.rows(
        f"SELECT issuance, expires_at FROM approvals WHERE state = 'pending' AND issuance IN ({text})", **values
    )
    return {row["issuance"]: from_micros(row["expires_at"]) for row in rows}


def pending(tx: Tx, limit: int = PAGE) -> list[Approval]:
    """The most pressing first."""
    rows = tx.rows(
        f"SELECT {COLUMNS} FROM approvals WHERE state = 'pending' ORDER BY expires_at, id LIMIT :limit", limit=limit
    )
    return [from_row(row) for row in rows]


def overdue(tx: Tx, now: datetime, limit: int = PAGE) -> list[Approval]:
    rows = tx.rows(
        f"""SELECT {COLUMNS} FROM approvals WHERE state = 'pending' AND expires_at <= :now
             ORDER BY expires_at LIMIT :limit /* FOR UPDATE SKIP LOCKED */""",
        now=now,
        limit=limit,
    )
    return [from_row(row) for row in rows]


def from_row(row: Row) -> Approval:
    return Approval(
        id=row["id"],
        issuance=row["issuance"],
        certificate=row["certificate"],
        state=row["state"],
        requested_by=row["requested_by"],
        asked_at=from_micros(row["asked_at"]),
        expires_at=from_micros(row["expires_at"]),
        decided_by=row["decided_by"],
        decided_at=instant(row["decided_at"]),
        note=row["note"],
    )
