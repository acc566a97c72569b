"""Notifications: one message owed to one channel. Every state comes from the table in
core/notifications/notification.py."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core.notifications.notification import Event, Notification, NotificationState, Severity, move
from holdfast.store.rows import Table
from holdfast.store.tx import Tx, from_micros, instant, to_micros, value_list

PAGE: Final = 200
MOST_ROWS: Final = 500  # rows a page
LAST: Final = "~"  # after every id
_INSERT_PAGE: Final = 20  # rows a statement: there are many columns
TABLE: Final = Table(Notification, "notifications", columns={"text": "body", "key": "outage"})
# The columns of a new notification: those about attempts have their defaults.
_OWED: Final = Table(
    Notification,
    columns={"text": "body", "key": "outage"},
    without={"retry_count", "next_retry_at", "begun", "digest", "missed", "tries", "tried_at", "sent_at", "settled_by"},
)


def notification_id(at: datetime, message: str, channel: str) -> str:
    """Sorted by time, and the same for the same message in the same channel: a transaction may run more than once."""
    return f"notification_{to_micros(at):014x}{_brief(f'{message}/{channel}')}"


def message_id(at: datetime, *parts: str) -> str:
    return f"msg_{to_micros(at):014x}{_brief(json.dumps(parts))}"


def job_id(at: datetime, channel: str) -> str:
    return f"job_{to_micros(at):014x}{_brief(channel)}"


def _brief(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:10]


# ── inserting ──


def insert(tx: Tx, notifications: Sequence[Notification]) -> int:
    """Insert notifications. A message that a channel is owed already is not inserted twice."""
    return sum(
        tx.run(f"INSERT INTO notifications ({_OWED.columns}) {text} ON CONFLICT DO NOTHING", **values)
        for start in range(0, len(notifications), _INSERT_PAGE)
        for text, values in [value_list([_OWED.row(each) for each in notifications[start : start + _INSERT_PAGE]])]
    )


def pass_on(tx: Tx, notifications: Sequence[Notification], fallback: str, now: datetime) -> int:
    """Owe the same messages to the fallback channel, unless it was owed them before."""
    added = insert(
        tx,
        [
            replace(
                each,
                id=notification_id(
                    now + number * timedelta.resolution, each.message, fallback
                ),  # they stay in their order
                channel=fallback,
                state=NotificationState.PENDING,
                last_error=None,
                why=None,
                digest_at=None,
                digest=None,
                waiting_since=now,
            )
            for number, each in enumerate(notifications)
        ],
    )
    each_of(tx, "passed_on_at = :now", [each.id for each in notifications], now=now)
    return added


# An all-clear waits for the alerts that it clears. No index hint: only all-clears evaluate the second half.
NOT_TOO_SOON: Final = """NOT (clears AND EXISTS (SELECT 1 FROM notifications AS told
                   WHERE told.channel = n.channel AND told.outage = n.outage AND told.state IN ('pending', 'failed')
                     AND told.id < n.id))"""


# ── outcomes ──


def delivered(tx: Tx, notifications: Sequence[Notification], now: datetime) -> None:
    """Record a delivery. The count of failed attempts is kept."""
    for state in {each.state for each in notifications}:
        each_of(
            tx,
            """state = :state, sent_at = :now, tried_at = :now, begun = 0, tries = 0, missed = '[]',
               next_retry_at = NULL, why = NULL""",
            [each.id for each in notifications if each.state is state],
            state=move(state, "delivered"),
            now=now,
        )


def failed(
    tx: Tx, notification: Notification, event: Event, error: str, now: datetime, *, at: datetime | None, why: str
) -> None:
    """Record an attempt that counts. Without a next time the notification is dead."""
    tx.run(
        """UPDATE notifications SET state = :state, retry_count = retry_count + 1, next_retry_at = :at,
                  last_error = :error, why = :why, tried_at = :now, begun = 0 WHERE id = :id""",
        id=notification.id,
        state=move(notification.state, event),
        at=at,
        error=error,
        why=why if at is None else None,
        now=now,
    )


def tried(tx: Tx, notifications: Sequence[Notification], error: str, now: datetime) -> None:
    """Record an attempt that does not count: the channel is down, or asked us to wait."""
    each_of(
        tx, "last_error = :error, tried_at = :now, begun = 0", [each.id for each in notifications], error=error, now=now
    )


def missed(
    tx: Tx, notifications: Sequence[Notification], who: Sequence[str], error: str, now: datetime, at: datetime
) -> None:
    """Record a delivery that missed some recipients: they are tried again at this time."""
    for state in {each.state for each in notifications}:
        each_of(
            tx,
            """state = :state, missed = :who, tries = tries + 1, next_retry_at = :at, last_error = :error,
               digest_at = CASE WHEN digest_at IS NOT NULL THEN :at END, tried_at = :now, begun = 0""",
            [each.id for each in notifications if each.state is state],
            state=move(state, "failed"),
            who=json.dumps(list(who)),
            at=at,
            error=error,
            now=now,
        )


def dead(tx: Tx, notifications: Sequence[Notification], why: str, error: str | None) -> None:
    """Make dead letters, without another attempt."""
    for state in {each.state for each in notifications}:
        each_of(
            tx,
            """state = :state, next_retry_at = NULL, why = :why, begun = 0,
               last_error = COALESCE(CAST(:error AS TEXT), last_error)""",
            [each.id for each in notifications if each.state is state],
            state=move(state, "gave up"),
            why=why,
            error=error,
        )


def requeue(tx: Tx, notifications: Sequence[Notification], now: datetime) -> None:
    for state in {each.state for each in notifications}:
        each_of(
            tx,
            """state = :state, retry_count = 0, next_retry_at = NULL, last_error = NULL, why = NULL, begun = 0,
               digest_at = NULL, digest = NULL, tries = 0, passed_on_at = NULL, waiting_since = :now, sent_at = NULL,
               note = NULL, settled_by = NULL""",
            [each.id for each in notifications if each.state is state],
            state=move(state, "requeued"),
            now=now,
        )


def resolve(tx: Tx, notifications: Sequence[Notification], note: str, by: str) -> None:
    for state in {each.state for each in notifications}:
        each_of(
            tx,
            "state = :state, next_retry_at = NULL, begun = 0, note = :note, settled_by = :by",
            [each.id for each in notifications if each.state is state],
            state=move(state, "resolved"),
            note=note,
            by=by,
        )


# ── what waits ──


def next_due(tx: Tx, channel: str) -> datetime | None:
    """The earliest time that a notification of the channel waits for; None if none does."""
    row = tx.rows(
        """SELECT MIN(at) AS at FROM (
               SELECT MIN(next_retry_at) AS at FROM notifications
                WHERE channel = :channel AND state = 'failed' AND next_retry_at IS NOT NULL
               UNION ALL SELECT MIN(digest_at) FROM notifications
                WHERE channel = :channel AND state IN ('pending', 'failed') AND digest_at IS NOT NULL
                  AND next_retry_at IS NULL) AS times""",
        channel=channel,
    )[0]
    return instant(row["at"])


def came_meanwhile(tx: Tx, channel: str) -> bool:
    """Whether a notification can be sent now: after a pick that found none, it is new."""
    row = tx.row(
        f"""SELECT 1 AS found FROM notifications AS n WHERE channel = :channel AND state = 'pending'
               AND digest_at IS NULL AND {NOT_TOO_SOON} LIMIT 1""",
        channel=channel,
    )
    return row is not None


def waiting_channels(tx: Tx, now: datetime) -> list[str]:
    """Channels with due notifications, also if they were deleted; not paused ones."""
    rows = tx.rows(
        """SELECT channel FROM notifications WHERE state = 'pending' AND (digest_at IS NULL OR digest_at <= :now)
           UNION SELECT channel FROM notifications
            WHERE state = 'failed' AND next_retry_at IS NOT NULL AND next_retry_at <= :now
           EXCEPT SELECT name FROM channels WHERE state = 'paused'""",
        now=now,
    )
    return sorted(row["channel"] for row in rows)


def waiting(tx: Tx, channel: str, *, limit: int, more: str = "", **params: object) -> list[Notification]:
    """A page of the waiting notifications of a channel."""
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM notifications WHERE channel = :channel AND state IN ('pending', 'failed') {more}
             ORDER BY id LIMIT :limit""",
        channel=channel,
        limit=limit,
        **params,
    )
    return [TABLE.read(row) for row in rows]


def heard_of(tx: Tx, outage: str, since: datetime) -> dict[str, bool]:
    """The channels that have alerts of an outage since then, and whether any was sent there, or will be."""
    rows = tx.rows(
        """SELECT channel, MAX(CASE WHEN state IN ('pending', 'failed', 'sent') THEN 1 ELSE 0 END) AS told
             FROM notifications
            WHERE outage = :outage AND NOT clears AND waiting_since >= :since GROUP BY channel ORDER BY channel""",
        outage=outage,
        since=since,
    )
    return {row["channel"]: bool(row["told"]) for row in rows}


def dead_of(tx: Tx, outage: str) -> list[Notification]:
    """The dead letters about an outage, locked."""
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM notifications WHERE outage = :outage AND state = 'dead' AND NOT clears
             ORDER BY id /* FOR UPDATE */""",
        outage=outage,
    )
    return [TABLE.read(row) for row in rows]


def ends_of(tx: Tx, outages: set[str]) -> list[Notification]:
    """The all-clears of outages that are over, oldest first."""
    if not outages:
        return []
    text, values = value_list([(each,) for each in sorted(outages)])
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM notifications
             WHERE outage IN ({text}) AND clears AND outage NOT IN (SELECT key FROM outages) ORDER BY created_at, id""",
        **values,
    )
    return [TABLE.read(row) for row in rows]


def get(tx: Tx, notification: str, *, lock: bool = False) -> Notification | None:
    row = tx.row(
        f"SELECT {TABLE.columns} FROM notifications WHERE id = :id {'/* FOR UPDATE */' if lock else ''}",
        id=notification,
    )
    return None if row is None else TABLE.read(row)


def many(tx: Tx, ids: Sequence[str]) -> list[Notification]:
    """Several notifications by their ids, locked."""
    text, values = value_list([(each,) for each in ids])
    rows = tx.rows(
        f"SELECT {TABLE.columns} FROM notifications WHERE id IN ({text}) ORDER BY id /* FOR UPDATE */", **values
    )
    return [TABLE.read(row) for row in rows]


# ── lists and counts ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which notifications; None does not filter."""

    state: NotificationState | None = None
    channel: str | None = None
    severity: Severity | None = None
    subject: str | None = None
    event: str | None = None
    why: str | None = None

    def sql(self) -> tuple[str, dict[str, Any]]:
        given = {
            "state": self.state,
            "channel": self.channel,
            "severity": self.severity,
            "subject": self.subject,
            "event": self.event,
            "why": self.why,
        }
        given = {name: value for name, value in given.items() if value is not None}
        return "".join(f" AND {name} = :{name}" for name in given), given


def page(tx: Tx, which: Filter, *, before: str = "", limit: int = 50, lock: bool = False) -> list[Notification]:
    """The newest first; `before` is the last id of the page above."""
    text, values = which.sql()
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM notifications WHERE id < :before {text}
        ORDER BY id DESC LIMIT :limit
            {"/* FOR UPDATE */" if lock else ""}""",
        before=before or LAST,
        limit=min(max(limit, 1), MOST_ROWS),
        **values,
    )
    return [TABLE.read(row) for row in rows]


def counts(tx: Tx) -> dict[tuple[str, str], int]:
    """Over all rows, by channel and state."""
    rows = tx.rows("SELECT channel, state, COUNT(*) AS n FROM notifications GROUP BY channel, state")
    return {(row["channel"], row["state"]): int(row["n"]) for row in rows}


def count_dead(tx: Tx) -> int:
    return int(tx.rows("SELECT COUNT(*) AS n FROM notifications WHERE state = 'dead'")[0]["n"])


def any_dead(tx: Tx, channel: str) -> bool:
    row = tx.row(
        "SELECT 1 AS found FROM notifications WHERE channel = :channel AND state = 'dead' LIMIT 1", channel=channel
    )
    return row is not None


def oldest_waiting(tx: Tx) -> dict[str, datetime]:
    """Since when the longest-waiting notification of each channel waits."""
    rows = tx.rows(
        """SELECT channel, MIN(waiting_since) AS since FROM notifications WHERE state IN ('pending', 'failed')
            GROUP BY channel"""
    )
    return {row["channel"]: from_micros(row["since"]) for row in rows}


def waits_for(tx: Tx, channel: str, event: str) -> bool:
    """Whether such a notification is still owed to the channel."""
    row = tx.row(
        """SELECT 1 AS found FROM notifications
            WHERE channel = :channel AND state IN ('pending', 'failed') AND event = :event LIMIT 1""",
        channel=channel,
        event=event,
    )
    return row is not None


def forget_old(tx: Tx, before: datetime, limit: int = 1000) -> int:
    """Delete a page of old notifications that were sent or resolved, or that no channel wanted.

    Other dead letters are kept, and so are alerts of open outages: their all-clear goes to the same channels.
    """
    return tx.run(
        """DELETE FROM notifications WHERE id IN (
               SELECT id FROM notifications
                WHERE created_at < :before AND (state IN ('sent', 'resolved') OR (state = 'dead' AND channel = ''))
                  AND outage NOT IN (SELECT key FROM outages)
                ORDER BY id LIMIT :limit)""",
        before=before,
        limit=limit,
    )


# ── many at once ──


def each_of(tx: Tx, changes: str, ids: Sequence[str], **params: object) -> int:
    """Run one UPDATE over these ids, in pages; the number of changed rows."""
    changed = 0
    for start in range(0, len(ids), PAGE):
        text, values = value_list([(each,) for each in ids[start : start + PAGE]])
        changed += tx.run(f"UPDATE notifications SET {changes} WHERE id IN ({text})", **params, **values)
    return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroup:
    """Dead letters of one channel that have one cause."""

    channel: str
    why: str
    number: int
    first_at: datetime
    last_at: datetime
    severities: dict[str, int]
    last_error: str


def dead_groups(tx: Tx) -> list[DeadGroup]:
    """Dead letters by cause, the most numerous first."""
    rows = tx.rows(
        """SELECT channel, why, severity, COUNT(*) AS n, MAX(id) AS id,
                  MIN(created_at) AS first, MAX(created_at) AS last
             FROM notifications WHERE state = 'dead' GROUP BY channel, why, severity"""
    )
    groups: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        groups.setdefault((row["channel"], row["why"] or ""), []).append(row)
    made = [
        DeadGroup(
            channel=channel,
            why=why,
            number=sum(int(row["n"]) for row in found),
            first_at=from_micros(min(row["first"] for row in found)),
            last_at=from_micros(max(row["last"] for row in found)),
            severities={row["severity"]: int(row["n"]) for row in found},
            last_error=_said(tx, max(row["id"] for row in found)),
        )
        for (channel, why), found in groups.items()
    ]
    return sorted(made, key=lambda each: (-each.number, each.channel, each.why))


def _said(tx: Tx, notification: str) -> str:
    found = get(tx, notification)
    return "" if found is None else found.last_error or ""


def first_to_end_unheard(tx: Tx) -> tuple[str, datetime] | None:
    """The certificate that ends first, of those that a dead letter is about."""
    row = tx.row(
        """SELECT name, ends_at FROM certificates WHERE state <> 'archived' AND ends_at IS NOT NULL
              AND id IN (SELECT subject FROM notifications WHERE state = 'dead') ORDER BY ends_at LIMIT 1"""
    )
    return None if row is None else (row["name"], from_micros(row["ends_at"]))
