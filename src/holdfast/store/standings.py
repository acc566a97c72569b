"""How each certificate stands, as core.status says it, in SQL: for counts and filters over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from holdfast.core.renewal import ATTEMPT_FOR, EMERGENCY
from holdfast.core.status import HELD
from holdfast.store.tx import Tx

OVER: Final = "('issued', 'failed', 'cancelled')"
IN_PLACE: Final = "('served', 'installed', 'superseded')"  # of deployments, to the letter as the partial index has it
_HELD: Final = ", ".join(f"'{reason.value}'" for reason in sorted(HELD))
# What one may wait for, to the letter as the partial index has it.
WAITING: Final = "('BACKOFF', 'CANCELLED', 'ISSUER_PAUSED', 'REVOKED', 'STAGGERED', 'UNKNOWN_ISSUER', 'WINDOW')"
# Those about which there is more to say than their state and what they wait for. Each part has an index of its own,
# so that this costs what is odd, and not what there is; `id > ''` leads SQLite to the one that it would not choose.
_ODD: Final = f"""
    SELECT id FROM certificates WHERE state <> 'archived' AND ends_at <= :now
     UNION SELECT id FROM certificates WHERE state = 'active' AND next_action_at IS NOT NULL AND next_action_at <= :now
     UNION SELECT id FROM certificates WHERE state = 'active' AND next_action_at IS NULL AND id > ''
     UNION SELECT id FROM certificates WHERE current_version IS NULL
     UNION SELECT id FROM certificates WHERE last_failure_at IS NOT NULL
     UNION SELECT id FROM certificates WHERE state = 'paused'
     UNION SELECT id FROM certificates WHERE next_cause IN {WAITING} AND next_cause = 'REVOKED'
     UNION SELECT certificate FROM certificate_versions WHERE revoke_asked_at IS NOT NULL AND revoked_at IS NULL
     UNION SELECT certificate FROM deployments WHERE state NOT IN {IN_PLACE}
     UNION SELECT certificate FROM issuances WHERE state NOT IN {OVER}"""
_HOUR: Final = f"{ATTEMPT_FOR.total_seconds() * 1e6:.0f}"
_SHARE: Final = f"(held.not_after - held.not_before) * {EMERGENCY}"
_LAST: Final = f"held.not_after - CASE WHEN {_SHARE} < {_HOUR} THEN {_SHARE} ELSE {_HOUR} END"  # renewal.last_moment


def _each(odd: str) -> str:
    """core.status in SQL, in the same order: tests hold the two against each other. That a version was revoked before
    is known from what it caused."""
    return f"""
    SELECT c.id, c.state, c.next_cause, c.next_action_at, CASE
             WHEN c.state = 'archived' THEN 'archived'
             WHEN c.ends_at <= :now THEN 'expired'
             WHEN attempt.state = 'awaiting_approval' THEN 'awaiting_approval'
             WHEN c.last_failure_at IS NOT NULL THEN 'failing'
             WHEN c.state = 'paused' THEN 'paused'
             WHEN revoked.id IS NOT NULL OR attempt.cause = 'REVOKED' OR c.next_cause = 'REVOKED' THEN 'revoked'
             WHEN c.current_version IS NULL THEN 'pending'
             WHEN attempt.to_begin = 1 THEN 'waiting'
             WHEN attempt.state IS NOT NULL THEN 'renewing'
             WHEN deploying.failing = 1 THEN 'failing'
             WHEN deploying.held = 1 THEN 'waiting'
             WHEN deploying.held = 0 THEN 'renewing'
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
             WHEN held.not_after <= :now THEN 'EXPIRED'
             WHEN deploying.certificate IS NOT NULL AND revoked.id IS NULL AND c.next_cause <> 'REVOKED'
               THEN COALESCE(deploying.failed_for, deploying.waits_for, 'DEPLOYING')
             WHEN c.ends_at <= :now THEN 'EXPIRED'
             WHEN c.next_action_at <= :now OR c.next_cause IN ('WINDOW', 'BACKOFF', {_HELD}) THEN c.next_cause
             ELSE 'NOT_DUE'
           END AS reason,
           CASE WHEN c.last_failure_at IS NULL THEN deploying.failing ELSE 0 END AS unserved,
           CASE WHEN attempt.state IS NULL THEN c.next_action_at ELSE attempt.due_at END AS again,
           CASE WHEN revoked.id IS NULL THEN {_LAST} ELSE 0 END AS safe
      FROM ({odd}) AS odd JOIN certificates AS c ON c.id = odd.id
      LEFT JOIN certificate_versions AS held ON held.id = c.current_version
      LEFT JOIN (
        SELECT id FROM certificate_versions WHERE revoke_asked_at IS NOT NULL AND revoked_at IS NULL
      ) AS revoked ON revoked.id = c.current_version
      LEFT JOIN (
        SELECT certificate, MAX(CASE WHEN failures > 0 THEN 1 ELSE 0 END) AS failing,
               MIN(CASE WHEN state = 'held' THEN 1 ELSE 0 END) AS held,
               MAX(CASE WHEN failures > 0 THEN reason END) AS failed_for, MAX(reason) AS waits_for
          FROM deployments WHERE state NOT IN {IN_PLACE} GROUP BY certificate
      ) AS deploying ON deploying.certificate = c.id
      LEFT JOIN (
        SELECT issuances.certificate, issuances.state, issuances.cause, issuances.reason, jobs.reason AS waits,
               jobs.due_at,
               CASE WHEN issuances.state = 'requested' AND issuances.started_at > :now THEN 1 ELSE 0 END AS to_begin,
               CASE WHEN jobs.due_at <= :now THEN 1 ELSE 0 END AS has_begun
          FROM issuances LEFT JOIN jobs
            ON jobs.kind = 'issue' AND jobs.subject = issuances.id AND jobs.state <> 'dead'
         WHERE issuances.state NOT IN {OVER}
      ) AS attempt ON attempt.certificate = c.id"""


EACH: Final = _each(_ODD)
# With those that wait for a time: all that are not in here are well, or archived.
_NOT_PLAIN: Final = f"{_ODD} UNION SELECT id FROM certificates WHERE next_cause IN {WAITING} AND state = 'active'"
_STANDING: Final = f"""
    SELECT id, CASE
             WHEN phase = 'failing' AND unserved = 1 THEN 'not-served'
             WHEN phase = 'failing' AND again IS NOT NULL AND (safe IS NULL OR again < safe) THEN 'retrying'
             WHEN phase = 'renewing' AND reason IN ('BUDGET', 'CA_RATE_LIMITED') THEN 'waiting'
             WHEN phase = 'ok' AND next_action_at <= :now THEN 'due'
             ELSE phase
           END AS standing
      FROM ({_each(_NOT_PLAIN)}) AS each_one"""


def clause(wanted: Sequence[str], now: datetime) -> tuple[str, dict[str, object]]:
    """Certificates that stand in one of these ways."""
    values: dict[str, object] = {f"standing_{number}": each for number, each in enumerate(wanted)}
    text = ", ".join(f":{each}" for each in values)
    known = f"certificates.id IN (SELECT id FROM ({_STANDING}) AS standing WHERE standing IN ({text}))"
    if "ok" in wanted:
        well = f"certificates.id NOT IN (SELECT id FROM ({_NOT_PLAIN}) AS odd) AND certificates.state = 'active'"
        known = f"({known} OR ({well}))"
    return known, {**values, "now": now}


def counts(tx: Tx, clauses: Sequence[str], values: Mapping[str, object], now: datetime) -> dict[str, int]:
    """How many stand how, of those that are not archived; the clauses are about certificates."""
    where = " AND ".join([*clauses, "certificates.state <> 'archived'"])
    rows = tx.rows(
        f"""SELECT standing, COUNT(*) AS n FROM ({_STANDING}) AS standing
              JOIN certificates ON certificates.id = standing.id WHERE {where} GROUP BY standing""",
        now=now,
        **values,
    )
    found = {row["standing"]: int(row["n"]) for row in rows}
    every = int(tx.rows(f"SELECT COUNT(*) AS n FROM certificates WHERE {where}", **values)[0]["n"])
    found["ok"] = every - sum(number for standing, number in found.items() if standing != "ok")
    return {standing: number for standing, number in found.items() if number}
