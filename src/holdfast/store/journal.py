"""The journal: audit rows (hash-chained) and events (numbered), appended as the last act of a transaction.

Both are numbered under one locked row, taken after every other lock of the transaction. So numbers become visible
in order, a reader that resumes after an id misses nothing, and the lock can never be part of a deadlock.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Final

from holdfast.core import journal
from holdfast.core.journal import Event
from holdfast.core.notifications.alert_texts import TOLD
from holdfast.store.rows import Table
from holdfast.store.tx import PAGE, Change, Sealed, Tx, change, value_list

SYSTEM: Final = "system"
PAGES_TOGETHER: Final = 20
EVENTS: Final = Table(Event, "events")


def audit(
    tx: Tx,
    action: str,
    subject: str,
    *,
    actor: str = SYSTEM,
    before: object = None,
    after: object = None,
    **details: object,
) -> None:
    """Owe the audit log one row; it is written, or the whole transaction is not.

    Of what was changed, `before` and `after` leave digests only: whether two rows speak of the same state can be seen,
    and what it was cannot.
    """
    if tx.origin:
        details["origin"] = dict(tx.origin)
    if before is not None:
        details["before"] = journal.digest(before)
    if after is not None:
        details["after"] = journal.digest(after)
    tx.audits.append((actor, action, subject, journal.canonical(details)))


@contextmanager
def coming_from(tx: Tx, origin: Mapping[str, str]) -> Iterator[None]:
    """Rows that are owed meanwhile say where the wish came from; others may share the transaction."""
    held, tx.origin = tx.origin, origin
    try:
        yield
    finally:
        tx.origin = held


def event(tx: Tx, name: str, subject: str, *, job: str = "", **details: object) -> None:
    """Add to the timeline of a subject; if it is one that people are told of, the notification is owed with it."""
    tx.events.append((name, subject, job, journal.canonical(details)))
    if name in TOLD or details.get("alert"):
        tx.alerts.append((name, subject, details))


def seal(tx: Tx) -> None:
    """Number, chain and insert what the transaction owes the journal. Called by the store, right before COMMIT."""
    if not tx.audits and not tx.events:
        return
    head = tx.rows(
        """UPDATE journal_head SET audit_seq = audit_seq + :audits, event_id = event_id + :events
            WHERE only_one = 1 RETURNING audit_seq, audit_hash, event_id, now_us() AS at""",
        audits=len(tx.audits),
        events=len(tx.events),
    )[0]
    owed = list[Change]()
    if tx.audits:
        changes, newest = _audits(tx, head["audit_seq"] - len(tx.audits), head["audit_hash"], head["at"])
        owed += changes
        tx.sealed = Sealed(head["audit_seq"] - len(tx.audits), head["audit_seq"], newest)
    if tx.events:
        first = head["event_id"] - len(tx.events) + 1
        rows = [(first + n, head["at"], *entry) for n, entry in enumerate(tx.events)]
        owed += _insert("events (id, at, name, subject, job, details)", rows)
    for start in range(0, len(owed), PAGES_TOGETHER):
        tx.together(*owed[start : start + PAGES_TOGETHER])


def _audits(tx: Tx, seq: int, previous: str, at: int) -> tuple[list[Change], str]:
    rows = []
    for actor, action, subject, details in tx.audits:
        seq += 1
        previous = journal.link(previous, seq, at, actor, action, subject, details)
        rows.append((seq, at, actor, action, subject, details, previous))
    newest = change("UPDATE journal_head SET audit_hash = :hash WHERE only_one = 1", hash=previous)
    return [*_insert("audit (seq, at, actor, action, subject, details, hash)", rows), newest], previous


def _insert(into: str, rows: Sequence[tuple[object, ...]]) -> list[Change]:
    """In pages: PostgreSQL takes 65,535 parameters, and SQLite finds each by walking over those before it."""
    pages = [value_list(rows[start : start + PAGE]) for start in range(0, len(rows), PAGE)]
    return [change(f"INSERT INTO {into} {text}", **values) for text, values in pages]


def audit_page(tx: Tx, after: int, limit: int = 1000) -> list[journal.AuditRow]:
    rows = tx.rows(
        """SELECT seq, at, actor, action, subject, details, hash FROM audit
            WHERE seq > :after ORDER BY seq LIMIT :limit""",
        after=after,
        limit=limit,
    )
    return [journal.AuditRow(**row) for row in rows]


def audit_rows(tx: Tx, first: int, last: int) -> list[journal.AuditRow]:
    return [entry for after in range(first - 1, last, 1000) for entry in audit_page(tx, after, min(1000, last - after))]


def audit_head(tx: Tx) -> tuple[int, str]:
    """The newest number and hash: what the last row must carry, so that a cut-off tail is noticed too."""
    head = tx.rows("SELECT audit_seq, audit_hash FROM journal_head WHERE only_one = 1")[0]
    return head["audit_seq"], head["audit_hash"]


def verify(tx: Tx) -> journal.ChainVerdict:
    """Walk the whole chain and name the first bad row."""
    begin = chain_start(tx)
    if not begin.ok:
        return begin
    seq, newest = audit_head(tx)
    entries = _all_entries(tx, begin.verified)
    found = journal.chain_verdict(
        entries, newest_seq=seq, newest_hash=newest, after_seq=begin.verified, after_hash=begin.last_hash
    )
    return replace(found, archived=begin.archived)


def _all_entries(tx: Tx, after: int) -> Iterator[journal.AuditRow]:
    while page := audit_page(tx, after):
        yield from page
        after = page[-1].seq


# ── The archive: rows up to an anchor may be deleted; the triggers of the schema refuse all others ──


def anchor(tx: Tx) -> journal.Anchor:
    """The newest one; before the first archive, the start of the chain."""
    row = tx.row("SELECT seq, hash FROM audit_anchors ORDER BY seq DESC LIMIT 1")
    return journal.START if row is None else journal.Anchor(**row)


def chain_start(tx: Tx) -> journal.ChainVerdict:
    """Where a walk begins: after the newest anchor. An anchor of which no audit entry tells was made by hand."""
    begin = anchor(tx)
    found = journal.ChainVerdict(verified=begin.seq, last_hash=begin.hash, archived=begin.seq)
    if begin == journal.START or _is_told(tx, begin):
        return found
    return replace(found, bad_seq=begin.seq, problem=f"row {begin.seq} was archived, and no audit entry says so")


def _is_told(tx: Tx, begin: journal.Anchor) -> bool:
    rows = tx.rows(
        "SELECT details FROM audit WHERE subject = :subject AND action = :action AND seq > :seq",
        subject=str(begin.seq),
        action=journal.ARCHIVED,
        seq=begin.seq,
    )
    return any(json.loads(row["details"]).get("hash") == begin.hash for row in rows)


def archive(tx: Tx, upto: journal.Anchor, *, actor: str) -> int:
    """Write the anchor and its audit entry; how many rows may be deleted since. clean_up deletes them."""
    entries = upto.seq - anchor(tx).seq
    tx.run(
        "INSERT INTO audit_anchors (seq, hash, at, actor, entries) VALUES (:seq, :hash, now_us(), :actor, :entries)",
        seq=upto.seq,
        hash=upto.hash,
        actor=actor,
        entries=entries,
    )
    audit(tx, journal.ARCHIVED, str(upto.seq), actor=actor, seq=upto.seq, hash=upto.hash, entries=entries)
    return entries


def is_younger(tx: Tx, seq: int, limit: datetime) -> bool:
    """Whether a row up to this number was written after `limit`; clocks are set back, so the last one does not say."""
    return tx.row("SELECT seq FROM audit WHERE at > :at AND seq <= :seq LIMIT 1", at=limit, seq=seq) is not None


def forget_archived(tx: Tx, limit: int = 1000) -> int:
    """Delete the oldest rows of those that were archived, a page at a time."""
    return tx.run(
        "DELETE FROM audit WHERE seq IN (SELECT seq FROM audit WHERE seq <= :seq ORDER BY seq LIMIT :limit)",
        seq=anchor(tx).seq,
        limit=limit,
    )


def known_hashes(tx: Tx, first: int, last: int) -> tuple[dict[int, str], int]:
    """Of the rows that are here and of the anchors, by their numbers; and the number of the newest anchor."""
    anchors = tx.rows("SELECT seq, hash FROM audit_anchors")
    rows = {row.seq: row.hash for row in audit_rows(tx, first, last)}
    return rows | {row["seq"]: row["hash"] for row in anchors}, anchor(tx).seq


def events_after(tx: Tx, last: int, *, subject: str | None = None, limit: int = 500) -> list[Event]:
    """The next events after an id: ids are committed in order, so a reader that resumes here misses nothing."""
    rows = tx.rows(
        f"""SELECT {EVENTS.columns} FROM events
             WHERE id > :last {"AND subject = :subject" if subject is not None else ""} ORDER BY id LIMIT :limit""",
        last=last,
        limit=limit,
        **({} if subject is None else {"subject": subject}),
    )
    return [EVENTS.read(row) for row in rows]


def newest_events(tx: Tx, *, subject: str | None = None, limit: int) -> list[Event]:
    """The last events, the oldest of them first."""
    rows = tx.rows(
        f"""SELECT {EVENTS.columns} FROM events {"WHERE subject = :subject" if subject is not None else ""}
             ORDER BY id DESC LIMIT :limit""",
        limit=limit,
        **({} if subject is None else {"subject": subject}),
    )
    return [EVENTS.read(row) for row in reversed(rows)]


def forget_events(tx: Tx, before: datetime, limit: int = 5000) -> int:
    """Delete the oldest events, a page at a time.

    Ids are given in order: what stays begins with the first that is young enough, and nothing behind it is read.
    """
    first = tx.row("SELECT id FROM events WHERE at >= :before ORDER BY id LIMIT 1", before=before)
    young = "" if first is None else "WHERE id < :first"
    return tx.run(  # its age once more: an event may have been committed since the look, into an empty table
        f"DELETE FROM events WHERE at < :before AND id IN (SELECT id FROM events {young} ORDER BY id LIMIT :limit)",
        before=before,
        limit=limit,
        **({} if first is None else {"first": first["id"]}),
    )


AUDIT_SINKS: Final = "audit "  # how the names of consumers of audit rows begin


def sink_behind(tx: Tx, seq: int, *, but: Collection[str] = ()) -> tuple[str, int] | None:
    """A sink that has not got all rows up to this number, with the number of the last that it has; None: all have."""
    rows = tx.rows(
        """SELECT consumer, event_id FROM event_cursors WHERE consumer LIKE :sinks AND event_id < :seq
            ORDER BY event_id, consumer""",
        sinks=f"{AUDIT_SINKS}%",
        seq=seq,
    )
    found = ((row["consumer"].removeprefix(AUDIT_SINKS), row["event_id"]) for row in rows)
    return next((each for each in found if each[0] not in but), None)


def is_known(tx: Tx, consumer: str) -> bool:
    return tx.row("SELECT event_id FROM event_cursors WHERE consumer = :consumer", consumer=consumer) is not None


def forget_sink(tx: Tx, name: str) -> None:
    tx.run("DELETE FROM event_cursors WHERE consumer = :consumer", consumer=f"{AUDIT_SINKS}{name}")


def audit_outbox(tx: Tx, consumer: str, limit: int = 500) -> list[journal.AuditRow]:
    """The rows that a named consumer has not yet taken. It acts, then moves its cursor: at least once, in order."""
    # In event_cursors.event_id it keeps the number of an audit row, not that of an event.
    row = tx.row("SELECT event_id FROM event_cursors WHERE consumer = :consumer", consumer=consumer)
    return audit_page(tx, row["event_id"] if row else 0, limit=limit)


def advance(tx: Tx, consumer: str, to: int) -> None:
    """Remember how far a consumer came; it never goes back."""
    tx.run(
        """INSERT INTO event_cursors (consumer, event_id) VALUES (:consumer, :to)
           ON CONFLICT (consumer) DO UPDATE SET event_id = excluded.event_id
            WHERE event_cursors.event_id < excluded.event_id""",
        consumer=consumer,
        to=to,
    )
