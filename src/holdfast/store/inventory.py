"""Lists for people and programs: filtered in SQL, a page at a time, each page beginning where the last one ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from holdfast.core.certificate import Certificate
from holdfast.core.chain import Entry
from holdfast.core.inventory import AuditFilter, Filter, Sort
from holdfast.core.issuance import Issuance
from holdfast.store import approvals, certificates, issuances, jobs
from holdfast.store.approvals import Approval
from holdfast.store.jobs import Job
from holdfast.store.tx import Tx, to_micros, value_list

Place = tuple[Any, ...]  # where a page ended: the values of the columns that it is sorted by
_OVER: Final = "('issued', 'failed', 'cancelled')"


# ── Certificates ──


def find(tx: Tx, wanted: Filter, *, sort: Sort = "name", after: Place | None = None, limit: int) -> list[Certificate]:
    """One page."""
    clauses, values = clauses_of(wanted)
    by = "certificates.name, certificates.id" if sort == "name" else "held.not_after, held.certificate"
    if after is not None:
        clauses.append(f"({by}) > (:after_0, :after_1)")
        values |= {"after_0": after[0], "after_1": after[1]}
    columns = ", ".join(f"certificates.{name.strip()}" for name in certificates.COLUMNS.split(","))
    rows = tx.rows(
        f"""SELECT {columns} FROM certificates {_HELD_ON_A_PAGE if _joins(wanted, sort) else ""}
             WHERE {" AND ".join(clauses)} ORDER BY {by} LIMIT :limit""",
        limit=limit,
        **values,
    )
    return [certificates.from_row(row) for row in rows]


def count(tx: Tx, wanted: Filter) -> int:
    clauses, values = clauses_of(wanted)
    rows = tx.rows(
        f"""SELECT COUNT(*) AS n FROM certificates {HELD if _joins(wanted, "name") else ""}
             WHERE {" AND ".join(clauses)}""",
        **values,
    )
    return int(rows[0]["n"])


# What each holds now: by indexes alone, for counting on SQLite.
HELD: Final = """JOIN certificate_versions AS held
                    ON held.certificate = certificates.id AND held.id = certificates.current_version
                   AND held.state <> 'superseded'"""
# The same for a page. The CASE keeps PostgreSQL from multiplying two conditions that always go together: it would
# expect one row where there are all of them, and sort them all for a hundred.
_HELD_ON_A_PAGE: Final = """JOIN certificate_versions AS held
                    ON held.certificate = certificates.id AND held.state <> 'superseded'
                   AND CASE WHEN held.id = certificates.current_version THEN TRUE ELSE FALSE END"""


def _joins(wanted: Filter, sort: Sort) -> bool:
    return sort == "expires" or wanted.expires_before is not None


def clauses_of(wanted: Filter) -> tuple[list[str], dict[str, Any]]:
    clauses, values = list[str](), dict[str, Any]()
    if wanted.whatever_state:
        clauses.append("TRUE")
    elif wanted.state is None:
        clauses.append("certificates.state <> 'archived'")
    else:
        clauses.append("certificates.state = :state")
        values["state"] = wanted.state
    if wanted.text is not None:
        clauses.append("(certificates.name LIKE :text ESCAPE '!' OR certificates.identifiers LIKE :text ESCAPE '!')")
        values["text"] = f"%{_literal(wanted.text.lower())}%"
    if len(wanted.owners) == 1:  # then the index has them in the order of their names
        clauses.append("certificates.owner = :owner")
        values["owner"] = wanted.owners[0]
    elif wanted.owners:
        text, owners = value_list([(each,) for each in wanted.owners])
        clauses.append(f"certificates.owner IN ({text})")
        values |= owners
    for number, (name, value) in enumerate(wanted.labels.items()):
        clauses.append(_holds("certificates.labels", f"label_{number}"))
        values[f"label_{number}"] = f"{json.dumps(name)}: {json.dumps(value)}"
    if wanted.issuer is not None:
        clauses.append(_holds("certificates.issuers", "issuer"))
        values["issuer"] = json.dumps(wanted.issuer)
    if wanted.failing:
        clauses.append("certificates.last_failure_at IS NOT NULL")
    if wanted.expires_before is not None:
        clauses.append("held.not_after < :expires_before")
        values["expires_before"] = wanted.expires_before
    return clauses, values


def _holds(column: str, value: str) -> str:
    """Whether a text of JSON has a part in it, to the letter (LIKE ignores case on SQLite); labels have no quotes."""
    return f"REPLACE({column}, :{value}, '') <> {column}"


def _literal(text: str) -> str:
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def under_way(tx: Tx, ids: Sequence[str]) -> dict[str, Issuance]:
    """The attempts under way, by their certificates."""
    if not ids:
        return {}
    text, values = value_list([(each,) for each in ids])
    rows = tx.rows(
        f"SELECT {issuances.COLUMNS} FROM issuances WHERE certificate IN ({text}) AND state NOT IN {_OVER}", **values
    )
    return {row["certificate"]: issuances.from_row(row) for row in rows}


def live_jobs(tx: Tx, kind: str, subjects: Sequence[str]) -> dict[str, Job]:
    """The jobs that live, by their subjects."""
    if not subjects:
        return {}
    text, values = value_list([(each,) for each in subjects])
    rows = tx.rows(
        f"SELECT {jobs.COLUMNS} FROM jobs WHERE kind = :kind AND subject IN ({text}) AND state <> 'dead'",
        kind=kind,
        **values,
    )
    return {row["subject"]: jobs.from_row(row) for row in rows}


# ── Attempts, jobs, audit ──


def attempts(
    tx: Tx, *, certificate: str | None = None, state: str | None = None, after: Place | None = None, limit: int
) -> list[Issuance]:
    """The newest first."""
    clauses, values = _equal(certificate=certificate, state=state)
    if after is not None:
        clauses.append("(started_at, id) < (:after_0, :after_1)")
        values |= {"after_0": after[0], "after_1": after[1]}
    rows = tx.rows(
        f"""SELECT {issuances.COLUMNS} FROM issuances {_where(clauses)}
             ORDER BY started_at DESC, id DESC LIMIT :limit""",
        limit=limit,
        **values,
    )
    return [issuances.from_row(row) for row in rows]


def place_of_attempt(issuance: Issuance) -> Place:
    return (to_micros(issuance.started_at), issuance.id)


def micros(at: datetime) -> int:
    """As a page that is sorted by it remembers it."""
    return to_micros(at)


def job_page(tx: Tx, *, kind: str | None = None, state: str | None = None, after: str = "", limit: int) -> list[Job]:
    """In the order in which they were made."""
    clauses, values = _equal(kind=kind, state=state)
    rows = tx.rows(
        f"SELECT {jobs.COLUMNS} FROM jobs {_where([*clauses, 'id > :after'])} ORDER BY id LIMIT :limit",
        after=after,
        limit=limit,
        **values,
    )
    return [jobs.from_row(row) for row in rows]


def approval_page(tx: Tx, seen: Filter, state: str, limit: int) -> list[Approval]:
    """Of certificates that somebody may see: pending ones by how pressing they are, decided ones the last first."""
    clauses, values = clauses_of(seen)
    columns = ", ".join(f"approvals.{name.strip()}" for name in approvals.COLUMNS.split(","))
    by = "approvals.expires_at, approvals.id" if state == "pending" else "approvals.decided_at DESC, approvals.id DESC"
    rows = tx.rows(
        f"""SELECT {columns} FROM approvals JOIN certificates ON certificates.id = approvals.certificate
             WHERE approvals.state = :approval_state AND {" AND ".join(clauses)} ORDER BY {by} LIMIT :limit""",
        approval_state=state,
        limit=limit,
        **values,
    )
    return [approvals.from_row(row) for row in rows]


def audit_page(
    tx: Tx, wanted: AuditFilter, *, before: int | None = None, after: int | None = None, limit: int
) -> list[Entry]:
    """The newest first; or, after a number, the oldest first."""
    clauses, values = _equal(actor=wanted.actor, action=wanted.action, subject=wanted.subject)
    bounds = {"at >= :since": wanted.since, "at < :until": wanted.until, "seq < :before": before, "seq > :after": after}
    for clause, bound in bounds.items():
        if bound is not None:
            clauses.append(clause)
            values[clause.rpartition(":")[2]] = bound
    rows = tx.rows(
        f"""SELECT seq, at, actor, action, subject, details, hash FROM audit {_where(clauses)}
             ORDER BY seq {"DESC" if after is None else ""} LIMIT :limit""",
        limit=limit,
        **values,
    )
    return [Entry(**row) for row in rows]


def _equal(**columns: str | None) -> tuple[list[str], dict[str, Any]]:
    given = {name: value for name, value in columns.items() if value is not None}
    return [f"{name} = :{name}" for name in given], dict(given)


def _where(clauses: Sequence[str]) -> str:
    return f"WHERE {' AND '.join(clauses)}" if clauses else ""


def newest_event(tx: Tx) -> int:
    return int(tx.rows("SELECT event_id FROM journal_head WHERE only_one = 1")[0]["event_id"])
