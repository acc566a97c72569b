"""The whole inventory in numbers, counted by the database: what the gauges of /metrics are set from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final, NamedTuple

from holdfast.core import reasons
from holdfast.core.budget import Budget
from holdfast.core.certificate import Certificate
from holdfast.core.inventory import Filter
from holdfast.core.reasons import Reason
from holdfast.core.status import HELD
from holdfast.store import budgets, certificates, statistics
from holdfast.store.tx import Row, Tx, from_micros, value_list

_OVER: Final = "('issued', 'failed', 'cancelled')"
_EVERYTHING: Final = Filter(whatever_state=True)
_HELD: Final = ", ".join(f"'{reason.value}'" for reason in sorted(HELD))
# What one may wait for, to the letter as the partial index has it.
_WAITING: Final = "('BACKOFF', 'CANCELLED', 'ISSUER_PAUSED', 'REVOKED', 'STAGGERED', 'UNKNOWN_ISSUER', 'WINDOW')"
# Those about which there is more to say than their state and what they wait for. Each part has an index of its own,
# so that this costs what is odd, and not what there is; `id > ''` leads SQLite to the one that it would not choose.
_ODD: Final = f"""
    SELECT id FROM certificates WHERE state <> 'archived' AND ends_at <= :now
     UNION SELECT id FROM certificates WHERE state = 'active' AND next_action_at IS NOT NULL AND next_action_at <= :now
     UNION SELECT id FROM certificates WHERE state = 'active' AND next_action_at IS NULL AND id > ''
     UNION SELECT id FROM certificates WHERE current_version IS NULL
     UNION SELECT id FROM certificates WHERE last_failure_at IS NOT NULL
     UNION SELECT id FROM certificates WHERE state = 'paused'
     UNION SELECT id FROM certificates WHERE next_cause IN {_WAITING} AND next_cause = 'REVOKED'
     UNION SELECT certificate FROM certificate_versions WHERE revoke_asked_at IS NOT NULL AND revoked_at IS NULL
     UNION SELECT certificate FROM issuances WHERE state NOT IN {_OVER}"""
# core.status in SQL, in the same order: tests hold the two against each other. That a version was revoked before is
# known from what it caused.
_COUNTED: Final = f"""
    WITH odd AS ({_ODD}), revoked AS (
        SELECT id FROM certificate_versions WHERE revoke_asked_at IS NOT NULL AND revoked_at IS NULL
    ), attempt AS (
        SELECT issuances.certificate, issuances.state, issuances.cause, issuances.reason, jobs.reason AS waits,
               CASE WHEN issuances.state = 'requested' AND issuances.started_at > :now THEN 1 ELSE 0 END AS to_begin,
               CASE WHEN jobs.due_at <= :now THEN 1 ELSE 0 END AS has_begun
          FROM issuances LEFT JOIN jobs
            ON jobs.kind = 'issue' AND jobs.subject = issuances.id AND jobs.state <> 'dead'
         WHERE issuances.state NOT IN {_OVER}
    )
    SELECT phase, reason, state, next_cause, COUNT(*) AS n FROM (
        SELECT CASE
                 WHEN c.state = 'archived' THEN 'archived'
                 WHEN c.ends_at <= :now THEN 'expired'
                 WHEN attempt.state = 'awaiting_approval' THEN 'awaiting_approval'
                 WHEN c.last_failure_at IS NOT NULL THEN 'failing'
                 WHEN c.state = 'paused' THEN 'paused'
                 WHEN revoked.id IS NOT NULL OR attempt.cause = 'REVOKED' OR c.next_cause = 'REVOKED' THEN 'revoked'
                 WHEN c.current_version IS NULL THEN 'pending'
                 WHEN attempt.to_begin = 1 THEN 'waiting'
                 WHEN attempt.state IS NOT NULL THEN 'renewing'
                 WHEN c.next_cause IN ('WINDOW', 'BACKOFF', {_HELD}) AND c.next_action_at > :now THEN 'waiting'
                 ELSE 'ok'
               END AS phase,
               CASE
                 WHEN attempt.state = 'awaiting_approval' THEN 'AWAITING_APPROVAL'
                 WHEN attempt.state IS NOT NULL AND attempt.waits = 'BUDGET' THEN 'BUDGET'
                 WHEN attempt.state IS NOT NULL AND attempt.waits = 'NOT_BEFORE' THEN 'CA_RATE_LIMITED'
                 WHEN attempt.to_begin = 1 AND attempt.has_begun = 0 THEN 'STAGGERED'
                 WHEN attempt.state IS NOT NULL THEN COALESCE(attempt.reason, 'UNDER_WAY')
                 WHEN c.state = 'archived' THEN 'ARCHIVED'
                 WHEN c.state = 'paused' THEN 'PAUSED'
                 WHEN c.last_failure_at IS NOT NULL AND c.reason <> '' THEN c.reason
                 WHEN c.ends_at <= :now THEN 'EXPIRED'
                 WHEN c.next_action_at <= :now OR c.next_cause IN ('WINDOW', 'BACKOFF', {_HELD}) THEN c.next_cause
                 ELSE 'NOT_DUE'
               END AS reason, c.state, c.next_cause
          FROM odd JOIN certificates AS c ON c.id = odd.id
          LEFT JOIN revoked ON revoked.id = c.current_version
          LEFT JOIN attempt ON attempt.certificate = c.id
    ) AS each_one GROUP BY phase, reason, state, next_cause"""


def phases(tx: Tx, states: Mapping[str, int]) -> dict[tuple[str, str], int]:
    """How many certificates stand how, and why: the odd ones one by one, and all others, which are well, as the rest.

    `states` is how many there are in each state.
    """
    found, others = Counter[tuple[str, str]](), Counter(states)
    waiting = Counter(_waiting(tx))
    for row in tx.rows(_COUNTED, now=tx.now()):
        number = int(row["n"])
        found[row["phase"], reasons.of(row["reason"]).value if row["reason"] else Reason.NOT_DUE.value] += number
        others[row["state"]] -= number
        if row["state"] == "active" and row["next_cause"] in waiting:
            waiting[row["next_cause"]] -= number
    for cause, number in waiting.items():
        found["waiting", reasons.of(cause).value] += number
    found["archived", Reason.ARCHIVED.value] += others["archived"]
    found["ok", Reason.NOT_DUE.value] += others["active"] - waiting.total()
    return {place: number for place, number in found.items() if number}


def _waiting(tx: Tx) -> dict[str, int]:
    """Active ones by what they wait for."""
    rows = tx.rows(
        f"""SELECT next_cause, COUNT(*) AS n FROM certificates WHERE next_cause IN {_WAITING} AND state = 'active'
             GROUP BY next_cause"""
    )
    return {row["next_cause"]: int(row["n"]) for row in rows}


def states(tx: Tx) -> dict[str, int]:
    return statistics.states(tx, _EVERYTHING)


def ends(tx: Tx, now: datetime) -> dict[int, int]:
    """How many of those in use have ended (0), or end within so many days."""
    return statistics.ends(tx, _EVERYTHING, now)


def under_way(tx: Tx) -> dict[tuple[str, str], int]:
    """Attempts under way, by CA and state."""
    rows = tx.rows(
        f"SELECT issuer, state, COUNT(*) AS n FROM issuances WHERE state NOT IN {_OVER} GROUP BY issuer, state"
    )
    return {(row["issuer"], row["state"]): int(row["n"]) for row in rows}


def approvals_pending(tx: Tx) -> int:
    return int(tx.rows("SELECT COUNT(*) AS n FROM approvals WHERE state = 'pending'")[0]["n"])


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


class Planned(NamedTuple):
    """One whose renewal is planned, and waits for nothing but its time."""

    name: str
    issuer: str
    owner: str
    ends_at: datetime
    next_at: datetime


_BY_THE_RULES: Final = frozenset({Reason.DUE_ARI, Reason.DUE_LIFETIME, Reason.WINDOW})


def pressing(tx: Tx, limit: int) -> dict[str, Planned | None]:
    """Those that matter most: the failing ones, then those that end first. None if its row does not tell all."""
    failing = tx.rows(
        """SELECT id FROM certificates WHERE last_failure_at IS NOT NULL AND state <> 'archived'
            ORDER BY last_failure_at LIMIT :limit""",
        limit=limit,
    )
    ending = tx.rows(
        """SELECT c.id, c.name, held.issuer, c.owner, c.ends_at, c.next_action_at, c.next_cause
             FROM (SELECT id, name, owner, ends_at, next_action_at, next_cause, current_version FROM certificates
                    WHERE state <> 'archived' AND ends_at > 0 ORDER BY ends_at, id LIMIT :limit) AS c
             LEFT JOIN certificate_versions AS held ON held.id = c.current_version
            ORDER BY c.ends_at, c.id""",
        limit=limit,
    )
    first: dict[str, Planned | None] = {row["id"]: None for row in failing}
    then = {row["id"]: _planned(row) for row in ending if row["id"] not in first}
    return dict(islice((first | then).items(), limit))


def _planned(row: Row) -> Planned | None:
    if row["issuer"] is None or row["next_action_at"] is None or row["next_cause"] not in _BY_THE_RULES:
        return None
    ends_at, next_at = from_micros(row["ends_at"]), from_micros(row["next_action_at"])
    return Planned(row["name"], row["issuer"], row["owner"], ends_at, next_at)


def some(tx: Tx, ids: Sequence[str]) -> list[Certificate]:
    if not ids:
        return []
    text, values = value_list([(each,) for each in ids])
    rows = tx.rows(f"SELECT {certificates.COLUMNS} FROM certificates WHERE id IN ({text})", **values)
    return [certificates.from_row(row) for row in rows]
