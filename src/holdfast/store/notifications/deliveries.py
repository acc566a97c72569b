"""Deliveries: which notifications go to a channel in one send, alone or as a digest.

The id of a digest is made of the notifications in it: a repetition has the same id, and no other digest has it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from holdfast.core.notifications import notification
from holdfast.core.notifications.notification import CRASHES_TO_SUSPECT, DIGEST_TRIES, Delivery, Notification, Severity
from holdfast.store.notifications.notifications import NOT_TOO_SOON, PAGE, TABLE, each_of
from holdfast.store.tx import Tx, to_micros

_TO_PROBE: Final = "COALESCE(tried_at, 0), CASE WHEN severity = 'critical' THEN 0 ELSE 1 END, id"


# ── choosing ──


def pick(
    tx: Tx, channel: str, now: datetime, limit: int, *, probe: bool = False, size: int | None = None
) -> list[Delivery]:
    """The deliveries that are due, oldest first, marked as begun. Digests have `size` characters at the most.

    As a probe: one notification alone if there is any, the one that was tried longest ago, critical ones first. A
    probe must not fail because the channel cannot take a digest.
    """
    if probe:
        chosen = _alone(tx, channel, now, 1, probe=True) or _digest(tx, channel, now, size)
    else:
        chosen = _digest(tx, channel, now, size) or _alone(tx, channel, now, limit, probe=False)
    each_of(tx, "begun = begun + 1", [each.id for delivery in chosen for each in delivery.notifications])
    return chosen


def _alone(tx: Tx, channel: str, now: datetime, limit: int, *, probe: bool) -> list[Delivery]:
    """Notifications that go alone. An all-clear waits for the alerts that it clears.

    A notification whose sender died twice in a row is sent before all others: then it alone can be the cause.
    """
    rows = [
        *tx.rows(
            f"""SELECT {TABLE.columns} FROM notifications AS n WHERE channel = :channel AND state = 'pending'
                  AND digest_at IS NULL AND {NOT_TOO_SOON} ORDER BY {_TO_PROBE if probe else "id"} LIMIT :limit""",
            channel=channel,
            limit=limit,
        ),
        *tx.rows(
            f"""SELECT {TABLE.columns} FROM notifications AS n WHERE channel = :channel AND state = 'failed'
                  AND next_retry_at IS NOT NULL AND next_retry_at <= :now AND digest_at IS NULL
                  AND {NOT_TOO_SOON} ORDER BY {_TO_PROBE if probe else "next_retry_at"} LIMIT :limit""",
            channel=channel,
            limit=limit,
            now=now,
        ),
    ]
    found = sorted(map(TABLE.read, rows), key=_to_probe if probe else lambda each: (0, False, each.id))
    suspects = [each for each in found if each.begun >= CRASHES_TO_SUSPECT]
    return [Delivery(notifications=(each,)) for each in (suspects[:1] or found[:limit])]


def _to_probe(each: Notification) -> tuple[int, bool, str]:
    tried = 0 if each.tried_at is None else to_micros(each.tried_at)
    return tried, each.severity is not Severity.CRITICAL, each.id


def _digest(tx: Tx, channel: str, now: datetime, size: int | None) -> list[Delivery]:
    """The digest that was begun, unchanged; otherwise a new one of the due notifications."""
    found = _in_digests(tx, channel, "digest_at <= :now", now=now)
    if any(each.begun >= CRASHES_TO_SUSPECT for each in found):
        take_apart(tx, found, now)  # one of them makes the sender die: each goes alone
        return []
    begun = next((each.digest for each in found if each.digest is not None), None)
    if begun is not None:
        found = _in_digests(tx, channel, "digest = :digest", digest=begun)
    members = tuple(notification.in_one_digest(found, size) if begun is None else found)
    if not members:
        return []
    digest = _id(members)
    if digest != begun:  # the digest is new, or one of its notifications was resolved meanwhile
        each_of(tx, "digest = :digest", [each.id for each in members], digest=digest)
    return [Delivery(notifications=members, digest=digest)]


def _in_digests(tx: Tx, channel: str, which: str, **params: datetime | str) -> list[Notification]:
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM notifications
             WHERE channel = :channel AND state IN ('pending', 'failed') AND digest_at IS NOT NULL AND {which}
             ORDER BY digest_at, id LIMIT :limit""",
        channel=channel,
        limit=PAGE,
        **params,
    )
    return [TABLE.read(row) for row in rows]


def _id(members: Sequence[Notification]) -> str:
    return "digest_" + hashlib.sha256("/".join(sorted(each.id for each in members)).encode()).hexdigest()[:16]


def put_back(tx: Tx, deliveries: Sequence[Delivery]) -> None:
    """Undo the pick of deliveries that were not sent. Harmless if repeated."""
    found = [each for delivery in deliveries for each in delivery.notifications]
    for begun in {each.begun for each in found}:
        each_of(tx, "begun = :begun", [each.id for each in found if each.begun == begun], begun=begun)


# ── digests ──


def digest_failed(tx: Tx, members: Sequence[Notification], error: str, now: datetime, at: datetime) -> None:
    """Record a failure: all notifications of the digest get the same next time. After too many it is taken apart."""
    each_of(
        tx,
        """tries = tries + 1, digest_at = :at, next_retry_at = CASE WHEN state = 'failed' THEN :at END,
           last_error = :error, tried_at = :now, begun = 0""",
        [each.id for each in members],
        at=at,
        error=error,
        now=now,
    )
    if any(each.tries + 1 >= DIGEST_TRIES for each in members):
        take_apart(tx, members, now)


def take_apart(tx: Tx, members: Sequence[Notification], now: datetime) -> None:
    """Send each notification of a digest alone, at once."""
    each_of(
        tx,
        "digest_at = NULL, digest = NULL, tries = 0, next_retry_at = CASE WHEN state = 'failed' THEN :now END",
        [each.id for each in members],
        now=now,
    )


def to_digest(tx: Tx, channel: str, before: datetime, now: datetime) -> int:
    """Move notifications that waited so long into digests, except critical ones; a single one stays alone."""
    which = """channel = :channel AND state IN ('pending', 'failed') AND digest_at IS NULL AND severity <> 'critical'
               AND waiting_since < :before AND event <> 'heartbeat' AND missed = '[]'"""
    stale = tx.rows(f"SELECT COUNT(*) AS n FROM notifications WHERE {which}", channel=channel, before=before)[0]["n"]
    if stale < 2:
        return 0
    return tx.run(
        f"""UPDATE notifications SET digest_at = :now, tries = 0, next_retry_at =
                   CASE WHEN state = 'failed' THEN :now END
             WHERE {which}""",
        channel=channel,
        before=before,
        now=now,
    )
