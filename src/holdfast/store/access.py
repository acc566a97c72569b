"""API tokens, and approvals of issuances."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from holdfast.core.access import Approval, DecidedState, TokenRow
from holdfast.core.notifications.alert import approval_key
from holdfast.store import journal
from holdfast.store.notifications import notifications
from holdfast.store.rows import LABELS, Table
from holdfast.store.tx import Tx, from_micros, value_list

PAGE: Final = 200
SHORTEST_PREFIX: Final = 8
TOKENS: Final = Table(TokenRow, "tokens", codecs={"labels": LABELS})


def insert_token(tx: Tx, token: TokenRow) -> bool:
    """False if there is one like it: another replica made the first token."""
    return tx.run(f"{TOKENS.insert} ON CONFLICT DO NOTHING", **TOKENS.values(token)) == 1


def get_token(tx: Tx, token: str) -> TokenRow | None:
    row = tx.row(f"SELECT {TOKENS.columns} FROM tokens WHERE id = :id", id=token)
    return None if row is None else TOKENS.read(row)


def token_by_prefix(tx: Tx, beginning: str) -> TokenRow | None:
    """The only one whose id begins so; too short a beginning is a slip of the hand."""
    if len(beginning) < SHORTEST_PREFIX:
        return None
    rows = tx.rows(
        f"SELECT {TOKENS.columns} FROM tokens WHERE id >= :low AND id < :high ORDER BY id LIMIT 2",
        low=beginning,
        high=beginning + "\uffff",
    )
    return TOKENS.read(rows[0]) if len(rows) == 1 else None


def token_page(tx: Tx, *, after: str = "", limit: int = PAGE) -> list[TokenRow]:
    """In the order in which they were made."""
    rows = tx.rows(
        f"SELECT {TOKENS.columns} FROM tokens WHERE id > :after ORDER BY id LIMIT :limit", after=after, limit=limit
    )
    return [TOKENS.read(row) for row in rows]


def any_token_made(tx: Tx) -> bool:
    """Whether any token other than the first one was made."""
    return tx.row("SELECT id FROM tokens WHERE role <> 'first' LIMIT 1") is not None


def revoke_token(tx: Tx, token: str) -> bool:
    """False if it was revoked before."""
    changed = tx.run("UPDATE tokens SET revoked_at = now_us() WHERE id = :id AND revoked_at IS NULL", id=token)
    return changed == 1


def revoke_first_token(tx: Tx) -> int:
    return tx.run("UPDATE tokens SET revoked_at = now_us() WHERE role = 'first' AND revoked_at IS NULL")


def token_used(tx: Tx, token: str, at: datetime) -> None:
    tx.run("UPDATE tokens SET last_used_at = :at WHERE id = :id", id=token, at=at)


APPROVALS: Final = Table(Approval, "approvals")


def insert_approval(tx: Tx, approval: Approval) -> None:
    tx.run(APPROVALS.insert, **APPROVALS.values(approval))


def decide_approval(tx: Tx, approval: str, verdict: DecidedState, *, by: str, note: str) -> bool:
    """pending → decided; False if it was decided before: the first word counts.

    Notifications about it that were not sent yet are settled.
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
        _settle(tx, approval_key(approval), f"the approval is {verdict.replace('_', ' ')}", by)
    return changed == 1


def _settle(tx: Tx, key: str, note: str, by: str) -> None:
    found = notifications.dead_of(tx, key)
    notifications.resolve(tx, found, note, by)
    for each in found:
        facts = {"channel": each.channel, "about": each.subject, "was": each.state.value, "reason": each.why or ""}
        facts |= {"note": note, "error": each.last_error or ""}
        journal.event(tx, "notification.resolved", each.id, by=by, attempts=each.retry_count, **facts)


def get_approval(tx: Tx, approval: str) -> Approval | None:
    row = tx.row(f"SELECT {APPROVALS.columns} FROM approvals WHERE id = :id", id=approval)
    return None if row is None else APPROVALS.read(row)


def find_approval(tx: Tx, ref: str) -> Approval | None:
    """By its id; else the only pending one whose id begins so, or whose certificate is meant."""
    if (exact := get_approval(tx, ref)) is not None:
        return exact
    rows = tx.rows(
        f"""SELECT {APPROVALS.of("approvals")} FROM approvals
              JOIN certificates ON certificates.id = approvals.certificate
             WHERE approvals.state = 'pending'
               AND (substr(approvals.id, 1, length(:ref)) = :ref OR :ref IN (certificates.id, certificates.name))
             LIMIT 2""",
        ref=ref,
    )
    return APPROVALS.read(rows[0]) if len(rows) == 1 and ref else None


def approval_of(tx: Tx, issuance: str) -> Approval | None:
    row = tx.row(f"SELECT {APPROVALS.columns} FROM approvals WHERE issuance = :issuance", issuance=issuance)
    return None if row is None else APPROVALS.read(row)


def approved_generation(tx: Tx, certificate: str, *, before: int) -> int:
    """The newest generation of a certificate, before this one, that a second person approved; 0: none."""
    row = tx.row(
        """SELECT MAX(issuances.generation) AS newest
             FROM approvals JOIN issuances ON issuances.id = approvals.issuance
            WHERE approvals.certificate = :certificate AND approvals.state = 'approved'
              AND issuances.generation < :before""",
        certificate=certificate,
        before=before,
    )
    return 0 if row is None else row["newest"] or 0


def approval_expiries(tx: Tx, issuances: Sequence[str]) -> dict[str, datetime]:
    """Until when those may be decided that are about these attempts, and are not yet."""
    if not issuances:
        return {}
    text, values = value_list([(each,) for each in issuances])
    rows = tx.rows(
        f"SELECT issuance, expires_at FROM approvals WHERE state = 'pending' AND issuance IN ({text})", **values
    )
    return {row["issuance"]: from_micros(row["expires_at"]) for row in rows}


def overdue_approvals(tx: Tx, now: datetime, limit: int = PAGE) -> list[Approval]:
    rows = tx.rows(
        f"""SELECT {APPROVALS.columns} FROM approvals WHERE state = 'pending' AND expires_at <= :now
             ORDER BY expires_at LIMIT :limit /* FOR UPDATE SKIP LOCKED */""",
        now=now,
        limit=limit,
    )
    return [APPROVALS.read(row) for row in rows]
