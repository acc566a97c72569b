"""Rows of a made-up past, for the demo: what the journal and the engine would have written at other times."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from holdfast.core import journal as chain
from holdfast.core.access import Approval
from holdfast.core.certificate import Certificate, Version
from holdfast.core.deployment import Deployment
from holdfast.core.endpoint_watch import WatchedEndpoint
from holdfast.core.issuance import Issuance
from holdfast.core.issuers.budget import Budget
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.notifications.channel import ChannelRow
from holdfast.core.notifications.notification import Notification
from holdfast.core.target import TargetRow
from holdfast.core.work.job import Job
from holdfast.store import access, certificates, endpoints, issuances, issuers, versions
from holdfast.store.deployments import deployments, targets
from holdfast.store.notifications import channels, notifications
from holdfast.store.rows import Table
from holdfast.store.tx import Tx, to_micros, value_list
from holdfast.store.work import budgets, jobs

MARK: Final = "demo_made"  # the audit entry by which a demo is known
_TABLES: Final[dict[type, Table[Any]]] = {
    IssuerRow: issuers.TABLE,
    ChannelRow: channels.TABLE,
    Certificate: certificates.TABLE,
    Issuance: issuances.TABLE,
    Version: versions.TABLE,
    Approval: access.APPROVALS,
    Notification: notifications.TABLE,
    Budget: budgets.TABLE,
    TargetRow: targets.TABLE,
    Deployment: deployments.TABLE,
    WatchedEndpoint: endpoints.TABLE,
}
PastEvent = tuple[datetime, str, str, dict[str, Any]]  # when, what, about what, and its details
PastDeed = tuple[datetime, str, str, str, dict[str, Any]]  # when, who, what, about what, and its details


def is_demo(tx: Tx) -> bool:
    return tx.row("SELECT seq FROM audit WHERE action = :mark LIMIT 1", mark=MARK) is not None


def is_unused(tx: Tx) -> bool:
    """Whether no certificate, person or token was ever in this database."""
    tables = ("certificates", "people", "tokens")
    return not any(tx.rows(f"SELECT 1 AS one FROM {table} LIMIT 1") for table in tables)


def insert(tx: Tx, rows: Sequence[Any]) -> None:
    for row in rows:
        tx.run(f"{_TABLES[type(row)].insert} ON CONFLICT DO NOTHING", **_TABLES[type(row)].values(row))


def insert_jobs(tx: Tx, rows: Sequence[Job], now: datetime) -> None:
    for row in rows:
        tx.run(jobs.TABLE.inserting("created_at"), **jobs.TABLE.values(row), created_at=to_micros(now))


def insert_journal(tx: Tx, events: Sequence[PastEvent], deeds: Sequence[PastDeed]) -> None:
    """Numbered and chained as if they had been written at their times."""
    head = tx.rows("SELECT audit_seq, audit_hash, event_id FROM journal_head WHERE only_one = 1")[0]
    number, seq, last = int(head["event_id"]), int(head["audit_seq"]), str(head["audit_hash"])
    told = sorted(events, key=lambda each: each[0])
    _many(tx, "events (id, at, name, subject, job, details)", [
        (number + n, to_micros(at), name, subject, "", chain.canonical(details))
        for n, (at, name, subject, details) in enumerate(told, 1)
    ])  # fmt: skip
    linked = []
    for at, actor, action, subject, details in sorted(deeds, key=lambda each: each[0]):
        seq, text = seq + 1, chain.canonical(details)
        last = chain.link(last, seq, to_micros(at), actor, action, subject, text)
        linked.append((seq, to_micros(at), actor, action, subject, text, last))
    _many(tx, "audit (seq, at, actor, action, subject, details, hash)", linked)
    tx.run(
        "UPDATE journal_head SET audit_seq = :seq, audit_hash = :hash, event_id = :event WHERE only_one = 1",
        seq=seq,
        hash=last,
        event=number + len(told),
    )


def _many(tx: Tx, into: str, rows: Sequence[tuple[object, ...]]) -> None:
    for start in range(0, len(rows), 50):
        text, values = value_list(rows[start : start + 50])
        tx.run(f"INSERT INTO {into} {text}", **values)
