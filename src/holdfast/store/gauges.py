"""The whole inventory in numbers, counted by the database: what the gauges of /metrics are set from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from holdfast.core import reasons
from holdfast.core.budget import Budget
from holdfast.core.certificate import Certificate
from holdfast.core.reasons import Reason
from holdfast.core.status import HELD
from holdfast.store import budgets, certificates
from holdfast.store.tx import Tx, value_list

_OVER: Final = "('issued', 'failed', 'cancelled')"
_HELD: Final = ", ".join(f"'{reason.value}'" for reason in sorted(HELD))
# core.status in SQL, in the same order: tests hold the two against each other. Only versions that have ended or are
# being revoked are looked at, by their indexes: one that is well, or was replaced, costs nothing. That one was revoked
# before is known from what it caused.
_COUNTED: Final = f"""
    WITH bad AS (
        SELECT id, MAX(ended) AS ended, MAX(revoked) AS revoked FROM (
            SELECT id, 1 AS ended, 0 AS revoked FROM certificate_versions
             WHERE state <> 'superseded' AND not_after <= :now
            UNION ALL
            SELECT id, 0, 1 FROM certificate_versions WHERE revoke_asked_at IS NOT NULL AND revoked_at IS NULL
        ) AS each_bad GROUP BY id
    ), attempt AS (
        SELECT issuances.certificate, issuances.state, issuances.cause, issuances.reason, jobs.reason AS waits
          FROM issuances LEFT JOIN jobs
            ON jobs.kind = 'issue' AND jobs.subject = issuances.id AND jobs.state <> 'dead'
         WHERE issuances.state NOT IN {_OVER}
    )
    SELECT phase, reason, COUNT(*) AS n FROM (
        SELECT CASE
                 WHEN c.state = 'archived' THEN 'archived'
                 WHEN bad.ended = 1 THEN 'expired'
                 WHEN attempt.state = 'awaiting_approval' THEN 'awaiting_approval'
                 WHEN c.last_failure_at IS NOT NULL THEN 'failing'
                 WHEN c.state = 'paused' THEN 'paused'
                 WHEN bad.revoked = 1 OR attempt.cause = 'REVOKED' OR c.next_cause = 'REVOKED' THEN 'revoked'
                 WHEN c.current_version IS NULL THEN 'pending'
                 WHEN attempt.state IS NOT NULL THEN 'renewing'
                 WHEN c.next_cause IN ('WINDOW', 'BACKOFF', {_HELD}) AND c.next_action_at > :now THEN 'waiting'
                 ELSE 'ok'
               END AS phase,
               CASE
                 WHEN attempt.state = 'awaiting_approval' THEN 'AWAITING_APPROVAL'
                 WHEN attempt.state IS NOT NULL AND attempt.waits = 'BUDGET' THEN 'BUDGET'
                 WHEN attempt.state IS NOT NULL AND attempt.waits = 'NOT_BEFORE' THEN 'CA_RATE_LIMITED'
                 WHEN attempt.state IS NOT NULL THEN COALESCE(attempt.reason, 'UNDER_WAY')
                 WHEN c.state = 'archived' THEN 'ARCHIVED'
                 WHEN c.state = 'paused' THEN 'PAUSED'
                 WHEN c.last_failure_at IS NOT NULL AND c.reason <> '' THEN c.reason
                 WHEN bad.ended = 1 THEN 'EXPIRED'
                 WHEN c.next_action_at <= :now OR c.next_cause IN ('WINDOW', 'BACKOFF', {_HELD}) THEN c.next_cause
                 ELSE 'NOT_DUE'
               END AS reason
          FROM certificates AS c
          LEFT JOIN bad ON bad.id = c.current_version
          LEFT JOIN attempt ON attempt.certificate = c.id
    ) AS each_one GROUP BY phase, reason"""


def phases(tx: Tx) -> dict[tuple[str, str], int]:
    """How many certificates stand how, and why."""
    found: dict[tuple[str, str], int] = {}
    for row in tx.rows(_COUNTED, now=tx.now()):
        place = row["phase"], reasons.of(row["reason"]).value if row["reason"] else Reason.NOT_DUE.value
        found[place] = found.get(place, 0) + int(row["n"])
    return found


def under_way(tx: Tx) -> dict[tuple[str, str], int]:
    """Attempts under way, by CA and state."""
    rows = tx.rows(
        f"SELECT issuer, state, COUNT(*) AS n FROM issuances WHERE state NOT IN {_OVER} GROUP BY issuer, state"
    )
    return {(row["issuer"], row["state"]): int(row["n"]) for row in rows}


def approvals_pending(tx: Tx) -> int:
    return int(tx.rows("SELECT COUNT(*) AS n FROM approvals WHERE state = 'pending'")[0]["n"])


def kept(tx: Tx) -> int:
    """Certificates that are not archived."""
    return int(tx.rows("SELECT COUNT(*) AS n FROM certificates WHERE state <> 'archived'")[0]["n"])


def budgets_named(tx: Tx, keys: Sequence[str]) -> list[Budget]:
    """Without a lock: they are only looked at."""
    if not keys:
        return []
    text, values = value_list([(each,) for each in keys])
    rows = tx.rows(f"SELECT {budgets.COLUMNS} FROM budgets WHERE key IN ({text})", **values)
    return [budgets.from_row(row) for row in rows]


def own_budgets(tx: Tx) -> list[Budget]:
    """Those that are not a CA's: these have a series each, and those of CAs grow with the names."""
    rows = tx.rows(f"SELECT {budgets.COLUMNS} FROM budgets WHERE key < 'ca/' OR key >= 'ca0' ORDER BY key")
    return [budgets.from_row(row) for row in rows]


# ── What ended since a look before ──


class Ended(NamedTuple):
    """One attempt that is over."""

    issuer: str
    outcome: str
    reason: str
    took_s: float | None


_OUTCOMES: Final[Mapping[str, str]] = {
    "certificate.activated": "issued",
    "issuance.failed": "failed",
    "issuance.cancelled": "cancelled",
}


def newest_event(tx: Tx) -> int:
    return int(tx.rows("SELECT event_id FROM journal_head WHERE only_one = 1")[0]["event_id"])


def ended_after(tx: Tx, last: int, limit: int) -> tuple[list[Ended], int]:
    """The attempts that ended since this event, and the event to go on from: events are committed in their order."""
    rows = tx.rows(
        """SELECT id, name, details FROM events WHERE id > :last
              AND name IN ('certificate.activated', 'issuance.failed', 'issuance.cancelled')
            ORDER BY id LIMIT :limit""",
        last=last,
        limit=limit,
    )
    facts = [(row["name"], json.loads(row["details"])) for row in rows]
    unnamed = [told["issuance"] for _, told in facts if "issuer" not in told and "issuance" in told]
    issuers = _issuers_of(tx, unnamed)
    ended = [_ended(name, told, issuers) for name, told in facts if "issuance" in told]
    return ended, int(rows[-1]["id"]) if len(rows) == limit else max(last, newest_event(tx))


def _ended(name: str, told: Mapping[str, Any], issuers: Mapping[str, str]) -> Ended:
    issuer = told.get("issuer") or issuers.get(told["issuance"], "")
    return Ended(issuer, _OUTCOMES[name], str(told.get("reason") or ""), told.get("took_s"))


def _issuers_of(tx: Tx, issuances: list[str]) -> dict[str, str]:
    if not issuances:
        return {}
    text, values = value_list([(each,) for each in issuances])
    rows = tx.rows(f"SELECT id, issuer FROM issuances WHERE id IN ({text})", **values)
    return {row["id"]: row["issuer"] for row in rows}


# ── The certificates that are watched one by one ──


def pressing(tx: Tx, limit: int) -> list[str]:
    """Ids of those that matter most: first the failing ones, then those that end first."""
    failing = tx.rows(
        """SELECT id FROM certificates WHERE last_failure_at IS NOT NULL AND state <> 'archived'
            ORDER BY last_failure_at LIMIT :limit""",
        limit=limit,
    )
    ending = tx.rows(
        """SELECT certificates.id FROM certificate_versions AS held
             JOIN certificates ON certificates.id = held.certificate AND certificates.current_version = held.id
            WHERE held.state <> 'superseded' AND certificates.state <> 'archived'
            ORDER BY held.not_after, held.certificate LIMIT :limit""",
        limit=limit,
    )
    return list(dict.fromkeys(row["id"] for row in [*failing, *ending]))[:limit]


def some(tx: Tx, ids: Sequence[str]) -> list[Certificate]:
    if not ids:
        return []
    text, values = value_list([(each,) for each in ids])
    rows = tx.rows(f"SELECT {certificates.COLUMNS} FROM certificates WHERE id IN ({text})", **values)
    return [certificates.from_row(row) for row in rows]


def ends(tx: Tx, now: datetime, days: tuple[int, ...]) -> dict[int, int]:
    """How many of those in use have ended (0), or end within so many days: all that count, less the archived ones."""
    there = _ends(tx, now, days, "")
    gone = _ends(tx, now, days, "AND certificate IN (SELECT id FROM certificates WHERE state = 'archived')")
    return {each: there[each] - gone[each] for each in there}


def _ends(tx: Tx, now: datetime, days: tuple[int, ...], more: str) -> dict[int, int]:
    """By the index of their ends alone."""
    counts = ", ".join(
        f"COUNT(CASE WHEN not_after <= :now + {each} * 86400000000 THEN 1 END) AS d{each}" for each in (0, *days)
    )
    row = tx.rows(
        f"""SELECT {counts} FROM certificate_versions
             WHERE state IN ('active', 'imported') AND not_after <= :now + {max(days)} * 86400000000 {more}""",
        now=now,
    )[0]
    return {each: int(row[f"d{each}"]) - (int(row["d0"]) if each else 0) for each in (0, *days)}
