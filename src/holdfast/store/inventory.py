"""Lists for people and programs: filtered in SQL, a page at a time, each page beginning where the last one ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core.certificate import Certificate
from holdfast.core.chain import Entry
from holdfast.core.inventory import EXPIRING_WITHIN, Filter, Sort, Summary
from holdfast.core.issuance import Issuance
from holdfast.store import certificates, issuances, jobs
from holdfast.store.jobs import Job
from holdfast.store.tx import Tx, to_micros, value_list

Place = tuple[Any, ...]  # where a page ended: the values of the columns that it is sorted by
_OVER: Final = "('issued', 'failed', 'cancelled')"


# ── Certificates ──


def find(tx: Tx, wanted: Filter, *, sort: Sort = "name", after: Place | None = None, limit: int) -> list[Certificate]:
    """One page. Labels are matched roughly (SQLite ignores case): whoever decides by them looks again."""
    clauses, values = _clauses(wanted)
    by = "certificates.name, certificates.id" if sort == "name" else "held.not_after, held.certificate"
    if after is not None:
        clauses.append(f"({by}) > (:after_0, :after_1)")
        values |= {"after_0": after[0], "after_1": after[1]}
    columns = ", ".join(f"certificates.{name.strip()}" for name in certificates.COLUMNS.split(","))
    rows = tx.rows(
        f"""SELECT {columns} FROM certificates {_JOIN if _joins(wanted, sort) else ""}
             WHERE {" AND ".join(clauses)} ORDER BY {by} LIMIT :limit""",
        limit=limit,
        **values,
    )
    return [certificates.from_row(row) for row in rows]


def count(tx: Tx, wanted: Filter) -> int:
    clauses, values = _clauses(wanted)
    rows = tx.rows(
        f"""SELECT COUNT(*) AS n FROM certificates {_JOIN if _joins(wanted, "name") else ""}
             WHERE {" AND ".join(clauses)}""",
        **values,
    )
    return int(rows[0]["n"])


_JOIN: Final = """JOIN certificate_versions AS held
                    ON held.certificate = certificates.id AND held.id = certificates.current_version
                   AND held.state <> 'superseded'"""


def _joins(wanted: Filter, sort: Sort) -> bool:
    return sort == "expires" or wanted.expires_before is not None


def _clauses(wanted: Filter) -> tuple[list[str], dict[str, Any]]:
    clauses, values = list[str](), dict[str, Any]()
    if wanted.state is None:
        clauses.append("certificates.state <> 'archived'")
    else:
        clauses.append("certificates.state = :state")
        values["state"] = wanted.state
    if wanted.text is not None:
        clauses.append("(certificates.name LIKE :text ESCAPE '!' OR certificates.identifiers LIKE :text ESCAPE '!')")
        values["text"] = f"%{_literal(wanted.text.lower())}%"
    if wanted.owners:
        text, owners = value_list([(each,) for each in wanted.owners])
        clauses.append(f"certificates.owner IN ({text})")
        values |= owners
    for number, (name, value) in enumerate(wanted.labels.items()):
        clauses.append(f"certificates.labels LIKE :label_{number} ESCAPE '!'")
        values[f"label_{number}"] = f"%{_literal(f'{json.dumps(name)}: {json.dumps(value)}')}%"
    if wanted.issuer is not None:
        clauses.append("certificates.issuers LIKE :issuer ESCAPE '!'")
        values["issuer"] = f"%{_literal(json.dumps(wanted.issuer))}%"
    if wanted.failing:
        clauses.append("certificates.last_failure_at IS NOT NULL")
    if wanted.expires_before is not None:
        clauses.append("held.not_after < :expires_before")
        values["expires_before"] = wanted.expires_before
    return clauses, values


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


def audit_page(
    tx: Tx,
    *,
    actor: str | None = None,
    action: str | None = None,
    subject: str | None = None,
    before: int | None = None,
    limit: int,
) -> list[Entry]:
    """The newest first."""
    clauses, values = _equal(actor=actor, action=action, subject=subject)
    if before is not None:
        clauses.append("seq < :before")
        values["before"] = before
    rows = tx.rows(
        f"""SELECT seq, at, actor, action, subject, details, hash FROM audit {_where(clauses)}
             ORDER BY seq DESC LIMIT :limit""",
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


# ── The whole ──


def summary(tx: Tx) -> Summary:
    now = tx.now()
    open_ones = tx.rows(f"SELECT state, COUNT(*) AS n FROM issuances WHERE state NOT IN {_OVER} GROUP BY state")
    waiting = {row["state"]: row["n"] for row in open_ones}
    all_jobs = tx.rows("SELECT state, COUNT(*) AS n FROM jobs GROUP BY state")
    ends = _ends(tx, now)
    return Summary(
        at=now,
        states={
            row["state"]: row["n"] for row in tx.rows("SELECT state, COUNT(*) AS n FROM certificates GROUP BY state")
        },
        failing=_number(tx, "last_failure_at IS NOT NULL"),
        due=_number(tx, "next_action_at IS NOT NULL AND next_action_at <= :now", now=now),
        under_way=sum(waiting.values()) - waiting.get("awaiting_approval", 0),
        awaiting_approval=waiting.get("awaiting_approval", 0),
        never_issued=_number(tx, "current_version IS NULL"),
        expired=ends.pop(0),
        expiring={str(days): number for days, number in ends.items()},
        jobs={row["state"]: row["n"] for row in all_jobs},
    )


def _number(tx: Tx, condition: str, **values: Any) -> int:
    rows = tx.rows(f"SELECT COUNT(*) AS n FROM certificates WHERE state = 'active' AND {condition}", **values)
    return int(rows[0]["n"])


def _ends(tx: Tx, now: datetime) -> dict[int, int]:
    """How many of those in use end within so many days, by one walk over their ends; 0: have ended."""
    until = {days: now + timedelta(days=days) for days in (0, *EXPIRING_WITHIN)}
    counts = ", ".join(f"COUNT(CASE WHEN held.not_after < :d{days} THEN 1 END) AS d{days}" for days in until)
    rows = tx.rows(
        f"""SELECT {counts} FROM certificates {_JOIN}
             WHERE certificates.state <> 'archived' AND held.not_after < :d{max(until)}""",
        **{f"d{days}": at for days, at in until.items()},
    )
    ended = int(rows[0]["d0"])
    return {days: int(rows[0][f"d{days}"]) - (ended if days else 0) for days in until}
