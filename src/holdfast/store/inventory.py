"""Lists for people and programs: filtered in SQL, a page at a time, each page beginning where the last one ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from holdfast.core.access import Approval
from holdfast.core.certificate import Certificate
from holdfast.core.inventory import AuditFilter, InventoryFilter, Sort
from holdfast.core.issuance import Issuance
from holdfast.core.journal import AuditRow
from holdfast.core.reasons import FOR_A_PERSON
from holdfast.core.work.job import Job
from holdfast.store import access, certificates, issuances, standings
from holdfast.store.tx import Tx, to_micros, value_list
from holdfast.store.work import jobs

PagePosition = tuple[Any, ...]  # where a page ended: the values of the columns that it is sorted by
_OVER: Final = "('issued', 'failed', 'cancelled')"


# ── Certificates ──


NEVER: Final = 1 << 62  # the place of those that have no end yet: after all others


def find(
    tx: Tx, wanted: InventoryFilter, *, sort: Sort = "name", after: PagePosition | None = None, limit: int
) -> list[Certificate]:
    """One page."""
    if sort == "expires":
        return _by_end(tx, wanted, after or (0, ""), limit)
    source, by, clauses, values = _by_name(wanted)
    return _page(tx, source, by, clauses, values, after, limit)


def _by_end(tx: Tx, wanted: InventoryFilter, after: PagePosition, limit: int) -> list[Certificate]:
    clauses, values = clauses_of(wanted)
    found = list[Certificate]()
    if after[0] < NEVER:
        ending = [*clauses, "certificates.ends_at > 0"]
        found = _page(tx, "certificates", "certificates.ends_at, certificates.id", ending, values, after, limit)
        after = (NEVER, "")
    if len(found) < limit:
        endless = [*clauses, "certificates.ends_at IS NULL"]
        by = "certificates.id"
        found += _page(tx, "certificates", by, endless, values, after[1:], limit - len(found))
    return found


def end_of(tx: Tx, certificate: str) -> int:
    """Where one stands among those that end, for the page after it."""
    row = tx.row("SELECT ends_at FROM certificates WHERE id = :id", id=certificate)
    return NEVER if row is None or row["ends_at"] is None else int(row["ends_at"])


def _page(
    tx: Tx, source: str, by: str, clauses: list[str], values: dict[str, object], after: PagePosition | None, limit: int
) -> list[Certificate]:  # fmt: skip
    """In the order of an index, so that a page ends when it is full."""
    if after is not None:
        places = {f"after_{number}": value for number, value in enumerate(after)}
        clauses, values = [*clauses, f"({by}) > (:{', :'.join(places)})"], values | places
    columns = certificates.TABLE.of("certificates")
    rows = tx.rows(
        f"SELECT {columns} FROM {source} WHERE {' AND '.join(clauses)} ORDER BY {by} LIMIT :limit",
        limit=limit,
        **values,
    )
    return [certificates.TABLE.read(row) for row in rows]


def _by_name(wanted: InventoryFilter) -> tuple[str, str, list[str], dict[str, object]]:
    """From where, in which order, and which."""
    if wanted.text is None:
        return "certificates", "certificates.name, certificates.id", *clauses_of(wanted)
    clauses, values = clauses_of(replace(wanted, text=None))
    source = "certificate_names AS found CROSS JOIN certificates"  # SQLite joins these in the order of the text
    clauses = [_FOUND, _FOUND_FIRST, "certificates.id = found.certificate", *clauses]
    return source, "found.name, found.certificate", clauses, values | {"text": _pattern(wanted.text)}


_FOUND: Final = "found.text LIKE :text ESCAPE '!'"
# One with two names that were looked for is found once.
_FOUND_FIRST: Final = """found.text = (SELECT MIN(other.text) FROM certificate_names AS other
                                  WHERE other.name = found.name AND other.certificate = found.certificate
                                    AND other.text LIKE :text ESCAPE '!')"""


def count(tx: Tx, wanted: InventoryFilter) -> int:
    clauses, values = clauses_of(wanted)
    rows = tx.rows(f"SELECT COUNT(*) AS n FROM certificates WHERE {' AND '.join(clauses)}", **values)
    return int(rows[0]["n"])


IN_USE: Final = "certificates.state <> 'archived'"  # to the letter as the partial indexes have it


def clauses_of(wanted: InventoryFilter) -> tuple[list[str], dict[str, object]]:
    clauses, values = list[str](), dict[str, object]()
    if wanted.whatever_state:
        clauses.append("TRUE")
    elif wanted.state != "archived":
        clauses.append(IN_USE)
    if wanted.state is not None:
        clauses.append("certificates.state = :state")
        values["state"] = wanted.state
    if wanted.text is not None:
        clauses.append(f"certificates.id IN (SELECT found.certificate FROM certificate_names AS found WHERE {_FOUND})")
        values["text"] = _pattern(wanted.text)
    if len(wanted.owners) == 1:  # then the index has them in the order of their names
        clauses.append("certificates.owner = :owner")
        values["owner"] = wanted.owners[0]
    elif wanted.owners:
        text, owners = value_list([(each,) for each in wanted.owners])
        clauses.append(f"certificates.owner IN ({text})")
        values |= owners
    for number, (name, value) in enumerate(wanted.labels.items()):
        clauses.append(holds("certificates.labels", f"label_{number}"))
        values[f"label_{number}"] = f"{json.dumps(name)}: {json.dumps(value)}"
    if wanted.issuer is not None:
        clauses.append(holds("certificates.issuers", "issuer"))
        values["issuer"] = json.dumps(wanted.issuer)
    if wanted.standings and wanted.at is not None:
        clause, more = standings.clause(wanted.standings, wanted.at)
        clauses.append(clause)
        values |= more
    if wanted.failing:
        clauses.append("certificates.last_failure_at IS NOT NULL")
    if wanted.for_a_person:
        text, codes = value_list([(each.value,) for each in sorted(FOR_A_PERSON)])
        waiting = f"SELECT certificate FROM issuances WHERE state NOT IN {_OVER} AND reason IN ({text})"
        clauses.append(f"(certificates.id IN ({waiting}) OR certificates.next_cause IN ({text}))")
        values |= codes
    if wanted.expires_before is not None:
        clauses.append("certificates.ends_at < :expires_before")
        values["expires_before"] = wanted.expires_before
    return clauses, values


def holds(column: str, value: str) -> str:
    """Whether a text of JSON has a part in it, to the letter (LIKE ignores case on SQLite); labels have no quotes."""
    return f"REPLACE({column}, :{value}, '') <> {column}"


def _pattern(text: str) -> str:
    """For LIKE: anything that has this in it, to the letter."""
    literal = text.lower().replace("!", "!!").replace("%", "!%").replace("_", "!_")
    return f"%{literal}%"


def under_way(tx: Tx, ids: Sequence[str]) -> dict[str, Issuance]:
    """The attempts under way, by their certificates."""
    if not ids:
        return {}
    text, values = value_list([(each,) for each in ids])
    rows = tx.rows(
        f"SELECT {issuances.TABLE.columns} FROM issuances WHERE certificate IN ({text}) AND state NOT IN {_OVER}",
        **values,
    )
    return {row["certificate"]: issuances.TABLE.read(row) for row in rows}


def jobs_of(tx: Tx, kind: str, subjects: Sequence[str]) -> dict[str, Job]:
    """The jobs that live, by their subjects; where there is none, the last one that was given up."""
    found = _jobs(tx, kind, subjects, "state <> 'dead'")
    return {**_jobs(tx, kind, [each for each in subjects if each not in found], "state = 'dead'"), **found}


def _jobs(tx: Tx, kind: str, subjects: Sequence[str], which: str) -> dict[str, Job]:
    if not subjects:
        return {}
    text, values = value_list([(each,) for each in subjects])
    rows = tx.rows(
        f"SELECT {jobs.TABLE.columns} FROM jobs WHERE kind = :kind AND subject IN ({text}) AND {which} ORDER BY due_at",
        kind=kind,
        **values,
    )
    return {row["subject"]: jobs.TABLE.read(row) for row in rows}


# ── Attempts, jobs, audit ──


def attempts(
    tx: Tx,
    seen: InventoryFilter | None,
    *,
    certificate: str | None = None,
    state: str | None = None,
    after: PagePosition | None = None,
    limit: int,
) -> list[Issuance]:
    """The newest first; only of certificates that are `seen` (None: all), so that no page ends at a hidden one."""
    clauses, values = _equal(certificate=certificate, state=state)
    if seen is not None:
        theirs, more = clauses_of(seen)
        clauses.append(f"certificate IN (SELECT certificates.id FROM certificates WHERE {' AND '.join(theirs)})")
        values |= more
    if after is not None:
        clauses.append("(started_at, id) < (:after_0, :after_1)")
        values |= {"after_0": after[0], "after_1": after[1]}
    rows = tx.rows(
        f"""SELECT {issuances.TABLE.columns} FROM issuances {_where(clauses)}
             ORDER BY started_at DESC, id DESC LIMIT :limit""",
        limit=limit,
        **values,
    )
    return [issuances.TABLE.read(row) for row in rows]


def place_of_attempt(issuance: Issuance) -> PagePosition:
    return (to_micros(issuance.started_at), issuance.id)


def micros(at: datetime) -> int:
    """As a page that is sorted by it remembers it."""
    return to_micros(at)


def job_page(tx: Tx, *, kind: str | None = None, state: str | None = None, after: str = "", limit: int) -> list[Job]:
    """In the order in which they were made."""
    clauses, values = _equal(kind=kind, state=state)
    rows = tx.rows(
        f"SELECT {jobs.TABLE.columns} FROM jobs {_where([*clauses, 'id > :after'])} ORDER BY id LIMIT :limit",
        after=after,
        limit=limit,
        **values,
    )
    return [jobs.TABLE.read(row) for row in rows]


def approval_page(
    tx: Tx, seen: InventoryFilter, *, state: str, after: PagePosition | None = None, limit: int
) -> list[Approval]:
    """Approvals of visible certificates: pending ones by urgency, decided ones the last first."""
    clauses, values = clauses_of(seen)
    columns = access.APPROVALS.of("approvals")
    pending = state == "pending"
    by = "approvals.expires_at, approvals.id" if pending else "approvals.decided_at DESC, approvals.id DESC"
    if after is not None:
        clauses.append(f"({by.replace(' DESC', '')}) {'>' if pending else '<'} (:after_0, :after_1)")
        values |= {"after_0": after[0], "after_1": after[1]}
    rows = tx.rows(
        f"""SELECT {columns} FROM approvals JOIN certificates ON certificates.id = approvals.certificate
             WHERE approvals.state = :approval_state AND {" AND ".join(clauses)} ORDER BY {by} LIMIT :limit""",
        approval_state=state,
        limit=limit,
        **values,
    )
    return [access.APPROVALS.read(row) for row in rows]


def place_of_approval(approval: Approval) -> PagePosition:
    return (to_micros(approval.decided_at or approval.expires_at), approval.id)


def audit_page(
    tx: Tx, wanted: AuditFilter, *, before: int | None = None, after: int | None = None, limit: int
) -> list[AuditRow]:
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
    return [AuditRow(**row) for row in rows]


def _equal(**columns: str | None) -> tuple[list[str], dict[str, object]]:
    given = {name: value for name, value in columns.items() if value is not None}
    return [f"{name} = :{name}" for name in given], dict(given)


def _where(clauses: Sequence[str]) -> str:
    return f"WHERE {' AND '.join(clauses)}" if clauses else ""


def newest_event(tx: Tx) -> int:
    return int(tx.rows("SELECT event_id FROM journal_head WHERE only_one = 1")[0]["event_id"])
