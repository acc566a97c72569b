"""What a channel's failure and recovery mean for its notifications: a fallback, a dead letter, or a digest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from holdfast.core.backoff import CHANNEL_DOWN_AFTER
from holdfast.core.issuers.breaker import Breaker
from holdfast.core.kind import Trait
from holdfast.core.notifications.channel import ChannelRow
from holdfast.core.notifications.notification import FALLBACK_AFTER, STALE_AFTER, Notification, Why
from holdfast.operations import kinds
from holdfast.operations.notifications import routing
from holdfast.store import journal
from holdfast.store.notifications import channels, deliveries, notifications
from holdfast.store.tx import Tx

PAGE: Final = 200


def of_gone(tx: Tx, channel: str, now: datetime) -> bool:
    """Make a page of dead letters for a channel that does not exist. True if there may be more."""
    return _all(tx, channel, None, now)[1]


def before_delete(tx: Tx, row: ChannelRow, now: datetime) -> tuple[int, bool]:
    """The same for a channel that is about to be deleted, with its fallback: the number, and if there may be more."""
    return _all(tx, row.name, row, now)


def _all(tx: Tx, channel: str, row: ChannelRow | None, now: datetime) -> tuple[int, bool]:
    page = notifications.waiting(tx, channel, limit=PAGE)
    if page:
        why = f"channel {channel} was deleted: requeue it once there is one of that name, or resolve it"
        notifications.dead(tx, page, Why.CHANNEL_GONE.value, why)
        record_dead(tx, row, page, Why.CHANNEL_GONE, why, now)
    return len(page), len(page) == PAGE


def while_down(tx: Tx, row: ChannelRow, now: datetime) -> bool:
    """Pass the notifications of a channel that is down to its fallback; after 72 hours they die. True if there may be
    more.
    """
    if row.down_since is None:
        return False
    full = False
    if row.fallback is not None and row.down_since <= now - FALLBACK_AFTER:
        which = "AND passed_on_at IS NULL AND severity <> 'info' AND event <> 'heartbeat'"
        page = notifications.waiting(tx, row.name, limit=PAGE, more=which)
        full = _pass_on(tx, row, page, now) and len(page) == PAGE
    if row.down_since <= now - CHANNEL_DOWN_AFTER:
        page = notifications.waiting(
            tx, row.name, limit=PAGE, more="AND waiting_since <= :before", before=now - CHANNEL_DOWN_AFTER
        )
        give_up(tx, row, page, Why.CHANNEL_DOWN, row.breaker.error, now)
        full = full or len(page) == PAGE
    return full


def give_up(tx: Tx, row: ChannelRow, which: Sequence[Notification], why: Why, error: str | None, now: datetime) -> None:
    """Make dead letters, without another attempt."""
    if which:
        notifications.dead(tx, which, why.value, error)
        record_dead(tx, row, which, why, error or "", now)


def refused(tx: Tx, row: ChannelRow, which: Sequence[Notification], why: str, error: str, now: datetime) -> None:
    """The channel refuses them for good: they are dead after this attempt."""
    for each in which:
        notifications.failed(tx, each, "gave up", error, now, at=None, why=why)
    if which:
        record_dead(tx, row, [tried(each) for each in which], Why(why), error, now)


def tried(which: Notification) -> Notification:
    """As it is after the attempt that failed last."""
    return replace(which, retry_count=which.retry_count + 1)


def record_dead(
    tx: Tx, row: ChannelRow | None, which: Sequence[Notification], why: Why, error: str, now: datetime
) -> None:
    """Record the death, pass the messages to the fallback, and alert on the dead letters, once for a channel."""
    for each in which:
        journal.audit(tx, "notification_dead", each.id, channel=each.channel, reason=why.value)
        journal.event(
            tx, "notification.dead", each.id, channel=each.channel, about=each.subject, reason=why.value, error=error,
            attempts=each.retry_count,
        )  # fmt: skip
    if row is not None and row.fallback is not None:
        _pass_on(tx, row, [each for each in which if each.event != "heartbeat"], now)
    journal.event(tx, "channel.dead_letters", which[0].channel, number=len(which), reason=why.value, error=error)


def _pass_on(tx: Tx, row: ChannelRow, which: Sequence[Notification], now: datetime) -> bool:
    """Owe them to the fallback. False if there is none; a fallback that was deleted is an alert."""
    if not which or row.fallback is None:
        return False
    if channels.get(tx, row.fallback) is None:
        journal.event(tx, "channel.fallback_gone", row.name, to=row.fallback, number=len(which))
        return False
    notifications.pass_on(tx, which, row.fallback, now)
    routing.wake(tx, {row.fallback})
    journal.event(tx, "channel.fell_back", row.name, to=row.fallback, number=len(which))
    return True


# ── Recovery ──


def works(tx: Tx, row: ChannelRow, now: datetime, **facts: str) -> None:
    """A delivery succeeded: end the outage of the channel, and send stale notifications as digests."""
    if not row.proven:
        channels.mark_proven(tx, row)
    if row.breaker == Breaker() and row.down_since is None:
        return
    channels.save_breaker(tx, row.name, Breaker(), None)
    if row.down_since is not None:
        down_s = (now - row.down_since).total_seconds()
        journal.audit(tx, "channel_up", row.name, down_s=down_s)
        journal.event(tx, "channel.up", row.name, down_s=down_s, in_digests=_stale(tx, row, now), **facts)


def _stale(tx: Tx, row: ChannelRow, now: datetime) -> int:
    """Move stale notifications into digests; for a channel with digests, all that wait. Returns the number."""
    if kinds.has(row, Trait.KEEPS_INCIDENTS):
        return 0
    return deliveries.to_digest(tx, row.name, now if row.digest_every else now - STALE_AFTER, now)
