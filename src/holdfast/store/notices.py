"""Notices: one message owed to one channel. Every state comes from the table in core/notice.py."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core.notice import Event, Notice, Severity, State, move
from holdfast.store.tx import Row, Tx, from_micros, instant, to_micros, value_list

PAGE: Final = 200
COLUMNS: Final = """id, message, channel, event, severity, subject, name, owner, labels, title, body, facts, reason,
              next, outage, clears, state, retry_count, next_retry_at, last_error, why, begun, digest_at, digest,
              missed, tries, waiting_since, tried_at, sent_at, note, settled_by, created_at"""
_INSERTED: Final = """id, message, channel, event, severity, subject, name, owner, labels, title, body, facts, reason,
              next, outage, clears, state, last_error, why, digest_at, waiting_since, note, created_at"""
_INSERT_PAGE: Final = 20  # rows a statement: there are many columns


def notice_id(at: datetime, message: str, channel: str) -> str:
    """Sorted by time, and the same for the same message in the same channel: a transaction may run more than once."""
    return f"notice_{to_micros(at):014x}{_brief(f'{message}/{channel}')}"


def message_id(at: datetime, *parts: str) -> str:
    return f"msg_{to_micros(at):014x}{_brief(json.dumps(parts))}"


def job_id(at: datetime, channel: str) -> str:
    return f"job_{to_micros(at):014x}{_brief(channel)}"


def _brief(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:10]


# ── owing ──


def insert(tx: Tx, notices: Sequence[Notice]) -> int:
    """Owe these. What a channel is owed already, it is not owed twice."""
    return sum(
        tx.run(f"INSERT INTO notices ({_INSERTED}) {text} ON CONFLICT DO NOTHING", **values)
        for start in range(0, len(notices), _INSERT_PAGE)
        for text, values in [value_list([_values(each) for each in notices[start : start + _INSERT_PAGE]])]
    )


def _values(notice: Notice) -> tuple[Any, ...]:
    return (
        notice.id,
        notice.message,
        notice.channel,
        notice.event,
        notice.severity.value,
        notice.subject,
        notice.name,
        notice.owner,
        json.dumps(dict(notice.labels)),
        notice.title,
        notice.text,
        json.dumps(dict(notice.facts)),
        notice.reason,
        notice.next,
        notice.key,
        notice.clears,
        notice.state.value,
        notice.last_error,
        notice.why,
        None if notice.digest_at is None else to_micros(notice.digest_at),
        to_micros(notice.waiting_since),
        notice.note,
        to_micros(notice.created_at),
    )


def pass_on(tx: Tx, notices: Sequence[Notice], fallback: str, now: datetime) -> int:
    """Owe the same messages to another channel, at once; one that had them before is not told again."""
    added = insert(
        tx,
        [
            replace(
                each,
                id=notice_id(now + number * timedelta.resolution, each.message, fallback),  # they stay in their order
                channel=fallback,
                state=State.PENDING,
                last_error=None,
                why=None,
                digest_at=None,
                digest=None,
                waiting_since=now,
            )
            for number, each in enumerate(notices)
        ],
    )
    each_of(tx, "passed_on_at = :now", [each.id for each in notices], now=now)
    return added


# An all-clear waits for what it clears. Without an index hint: the second half is looked at for all-clears only.
NOT_TOO_SOON: Final = """NOT (clears AND EXISTS (SELECT 1 FROM notices AS told
                   WHERE told.channel = n.channel AND told.outage = n.outage AND told.state IN ('pending', 'failed')
                     AND told.id < n.id))"""


# ── what became of them ──


def delivered(tx: Tx, notices: Sequence[Notice], now: datetime) -> None:
    """The count of failed attempts stays: it tells on which attempt it was delivered."""
    for state in {each.state for each in notices}:
        each_of(
            tx,
            """state = :state, sent_at = :now, tried_at = :now, begun = 0, tries = 0, missed = NULL,
               next_retry_at = NULL, why = NULL""",
            [each.id for each in notices if each.state is state],
            state=move(state, "delivered"),
            now=now,
        )


def failed(tx: Tx, notice: Notice, event: Event, error: str, now: datetime, *, at: datetime | None, why: str) -> None:
    """An attempt that counts. Without a next time it is dead, and leaves the index of the sweep."""
    tx.run(
        """UPDATE notices SET state = :state, retry_count = retry_count + 1, next_retry_at = :at, last_error = :error,
                  why = :why, tried_at = :now, begun = 0 WHERE id = :id""",
        id=notice.id,
        state=move(notice.state, event),
        at=at,
        error=error,
        why=why if at is None else None,
        now=now,
    )


def tried(tx: Tx, notices: Sequence[Notice], error: str, now: datetime) -> None:
    """An attempt that does not count: the channel is down, or asked us to wait."""
    each_of(tx, "last_error = :error, tried_at = :now, begun = 0", [each.id for each in notices], error=error, now=now)


def missed(tx: Tx, notices: Sequence[Notice], who: Sequence[str], error: str, now: datetime, at: datetime) -> None:
    """Some behind the channel have it; it is owed to these at a later time, to all of a digest at the same."""
    for state in {each.state for each in notices}:
        each_of(
            tx,
            """state = :state, missed = :who, tries = tries + 1, next_retry_at = :at, last_error = :error,
               digest_at = CASE WHEN digest_at IS NOT NULL THEN :at END, tried_at = :now, begun = 0""",
            [each.id for each in notices if each.state is state],
            state=move(state, "failed"),
            who=json.dumps(list(who)),
            at=at,
            error=error,
            now=now,
        )


def dead(tx: Tx, notices: Sequence[Notice], why: str, error: str | None) -> None:
    """Given up without another attempt."""
    for state in {each.state for each in notices}:
        each_of(
            tx,
            """state = :state, next_retry_at = NULL, why = :why, begun = 0,
               last_error = COALESCE(CAST(:error AS TEXT), last_error)""",
            [each.id for each in notices if each.state is state],
            state=move(state, "gave up"),
            why=why,
            error=error,
        )


def requeue(tx: Tx, notices: Sequence[Notice], now: datetime) -> None:
    for state in {each.state for each in notices}:
        each_of(
            tx,
            """state = :state, retry_count = 0, next_retry_at = NULL, last_error = NULL, why = NULL, begun = 0,
               digest_at = NULL, digest = NULL, tries = 0, passed_on_at = NULL, waiting_since = :now, sent_at = NULL,
               note = NULL, settled_by = NULL""",
            [each.id for each in notices if each.state is state],
            state=move(state, "requeued"),
            now=now,
        )


def resolve(tx: Tx, notices: Sequence[Notice], note: str, by: str) -> None:
    for state in {each.state for each in notices}:
        each_of(
            tx,
            "state = :state, next_retry_at = NULL, begun = 0, note = :note, settled_by = :by",
            [each.id for each in notices if each.state is state],
            state=move(state, "resolved"),
            note=note,
            by=by,
        )


# ── what is owed ──


def next_due(tx: Tx, channel: str) -> datetime | None:
    """When the first of those that wait for a time has it; None if none does."""
    row = tx.rows(
        """SELECT MIN(at) AS at FROM (
               SELECT MIN(next_retry_at) AS at FROM notices
                WHERE channel = :channel AND state = 'failed' AND next_retry_at IS NOT NULL
               UNION ALL SELECT MIN(digest_at) FROM notices
                WHERE channel = :channel AND state IN ('pending', 'failed') AND digest_at IS NOT NULL
                  AND next_retry_at IS NULL) AS times""",
        channel=channel,
    )[0]
    return instant(row["at"])


def came_meanwhile(tx: Tx, channel: str) -> bool:
    """Whether there is one that waits for no time: after a pick that found none, it is new."""
    row = tx.row(
        f"""SELECT 1 AS found FROM notices AS n WHERE channel = :channel AND state = 'pending' AND digest_at IS NULL
               AND {NOT_TOO_SOON} LIMIT 1""",
        channel=channel,
    )
    return row is not None


def waiting_channels(tx: Tx, now: datetime) -> list[str]:
    """Channels that are owed something now, whether or not they still exist; not those that somebody paused."""
    rows = tx.rows(
        """SELECT channel FROM notices WHERE state = 'pending' AND (digest_at IS NULL OR digest_at <= :now)
           UNION SELECT channel FROM notices
            WHERE state = 'failed' AND next_retry_at IS NOT NULL AND next_retry_at <= :now
           EXCEPT SELECT name FROM channels WHERE state = 'paused'""",
        now=now,
    )
    return sorted(row["channel"] for row in rows)


def waiting(tx: Tx, channel: str, *, limit: int, more: str = "", **params: Any) -> list[Notice]:
    """A page of what a channel is owed."""
    rows = tx.rows(
        f"""SELECT {COLUMNS} FROM notices WHERE channel = :channel AND state IN ('pending', 'failed') {more}
             ORDER BY id LIMIT :limit""",
        channel=channel,
        limit=limit,
        **params,
    )
    return [_notice(row) for row in rows]


def heard_of(tx: Tx, outage: str, since: datetime) -> dict[str, bool]:
    """The channels for which there were words about an outage since then: whether any was sent there, or will be."""
    rows = tx.rows(
        """SELECT channel, MAX(CASE WHEN state IN ('pending', 'failed', 'sent') THEN 1 ELSE 0 END) AS told FROM notices
            WHERE outage = :outage AND NOT clears AND waiting_since >= :since GROUP BY channel ORDER BY channel""",
        outage=outage,
        since=since,
    )
    return {row["channel"]: bool(row["told"]) for row in rows}


def dead_of(tx: Tx, outage: str) -> list[Notice]:
    """What never arrived of the words about an outage, locked."""
    rows = tx.rows(
        f"""SELECT {COLUMNS} FROM notices WHERE outage = :outage AND state = 'dead' AND NOT clears
             ORDER BY id /* FOR UPDATE */""",
        outage=outage,
    )
    return [_notice(row) for row in rows]


def ends_of(tx: Tx, outages: set[str]) -> list[Notice]:
    """The all-clears of those outages that are over, oldest first."""
    if not outages:
        return []
    text, values = value_list([(each,) for each in sorted(outages)])
    rows = tx.rows(
        f"""SELECT {COLUMNS} FROM notices
             WHERE outage IN ({text}) AND clears AND outage NOT IN (SELECT key FROM outages) ORDER BY created_at, id""",
        **values,
    )
    return [_notice(row) for row in rows]


def get(tx: Tx, notice: str, *, lock: bool = False) -> Notice | None:
    row = tx.row(f"SELECT {COLUMNS} FROM notices WHERE id = :id {'/* FOR UPDATE */' if lock else ''}", id=notice)
    return None if row is None else _notice(row)


def many(tx: Tx, ids: Sequence[str]) -> list[Notice]:
    """As they are now, locked."""
    text, values = value_list([(each,) for each in ids])
    rows = tx.rows(f"SELECT {COLUMNS} FROM notices WHERE id IN ({text}) ORDER BY id /* FOR UPDATE */", **values)
    return [_notice(row) for row in rows]


def from_rows(rows: Sequence[Row]) -> list[Notice]:
    return [_notice(row) for row in rows]


def each_of(tx: Tx, changes: str, ids: Sequence[str], **params: Any) -> int:
    """Change these; how many were."""
    changed = 0
    for start in range(0, len(ids), PAGE):
        text, values = value_list([(each,) for each in ids[start : start + PAGE]])
        changed += tx.run(f"UPDATE notices SET {changes} WHERE id IN ({text})", **params, **values)
    return changed


def _notice(row: Row) -> Notice:
    return Notice(
        id=row["id"],
        message=row["message"],
        channel=row["channel"],
        event=row["event"],
        severity=Severity(row["severity"]),
        subject=row["subject"],
        name=row["name"],
        owner=row["owner"],
        labels=json.loads(row["labels"]),
        title=row["title"],
        text=row["body"],
        facts=json.loads(row["facts"]),
        reason=row["reason"],
        next=row["next"],
        key=row["outage"],
        clears=bool(row["clears"]),
        state=State(row["state"]),
        retry_count=row["retry_count"],
        next_retry_at=instant(row["next_retry_at"]),
        last_error=row["last_error"],
        why=row["why"],
        begun=row["begun"],
        digest_at=instant(row["digest_at"]),
        digest=row["digest"],
        missed=tuple(json.loads(row["missed"] or "[]")),
        tries=row["tries"],
        waiting_since=from_micros(row["waiting_since"]),
        tried_at=instant(row["tried_at"]),
        sent_at=instant(row["sent_at"]),
        note=row["note"],
        settled_by=row["settled_by"],
        created_at=from_micros(row["created_at"]),
    )
