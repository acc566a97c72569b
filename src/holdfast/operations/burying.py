"""How notices die: visibly, with a reason, their fallback told, and with one word to others for each channel."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from holdfast.core.backoff import CHANNEL_DOWN_AFTER
from holdfast.core.notice import FALLBACK_AFTER, Notice, Why
from holdfast.store import alerts, channels, journal, notices
from holdfast.store.channels import ChannelRow
from holdfast.store.tx import Tx

PAGE: Final = 200


def of_gone(tx: Tx, channel: str, now: datetime) -> bool:
    """A page of what is owed to a channel that is no more. True if there may be more."""
    return _all(tx, channel, None, now)[1]


def before_delete(tx: Tx, row: ChannelRow, now: datetime) -> tuple[int, bool]:
    """The same for one that is about to be deleted, whose fallback is still known: how many, and if there are more."""
    return _all(tx, row.name, row, now)


def _all(tx: Tx, channel: str, row: ChannelRow | None, now: datetime) -> tuple[int, bool]:
    page = notices.waiting(tx, channel, limit=PAGE)
    if page:
        why = f"channel {channel} was deleted: requeue it once there is one of that name, or resolve it"
        notices.dead(tx, page, Why.CHANNEL_GONE.value, why)
        mourn(tx, row, page, Why.CHANNEL_GONE, why, now)
    return len(page), len(page) == PAGE


def while_down(tx: Tx, row: ChannelRow, now: datetime) -> bool:
    """What a channel that is down owes to others: a fallback soon, an end after 72 hours. True if a page was full."""
    if row.down_since is None:
        return False
    full = False
    if row.fallback is not None and row.down_since <= now - FALLBACK_AFTER:
        which = "AND passed_on_at IS NULL AND severity <> 'info' AND event <> 'heartbeat'"
        page = notices.waiting(tx, row.name, limit=PAGE, more=which)
        full = _pass_on(tx, row, page, now) and len(page) == PAGE
    if row.down_since <= now - CHANNEL_DOWN_AFTER:
        page = notices.waiting(
            tx, row.name, limit=PAGE, more="AND waiting_since <= :before", before=now - CHANNEL_DOWN_AFTER
        )
        bury(tx, row, page, Why.CHANNEL_DOWN, row.breaker.error, now)
        full = full or len(page) == PAGE
    return full


def bury(tx: Tx, row: ChannelRow, which: Sequence[Notice], why: Why, error: str | None, now: datetime) -> None:
    """Give up without another attempt."""
    if which:
        notices.dead(tx, which, why.value, error)
        mourn(tx, row, which, why, error or "", now)


def refused(tx: Tx, row: ChannelRow, which: Sequence[Notice], why: str, error: str, now: datetime) -> None:
    """The channel will not take them, today or tomorrow: they are dead after this one attempt."""
    for each in which:
        notices.failed(tx, each, "gave up", error, now, at=None, why=why)
    if which:
        mourn(tx, row, which, Why(why), error, now)


def mourn(tx: Tx, row: ChannelRow | None, which: Sequence[Notice], why: Why, error: str, now: datetime) -> None:
    """Their history, their fallback, and the alert that there are dead letters: once for a channel."""
    for each in which:
        journal.audit(tx, "notice_dead", each.id, channel=each.channel, reason=why.value)
        journal.event(
            tx, "notice.dead", each.id, channel=each.channel, about=each.subject, reason=why.value, error=error,
            attempts=each.retry_count,
        )  # fmt: skip
    if row is not None and row.fallback is not None:
        _pass_on(tx, row, [each for each in which if each.event != "heartbeat"], now)
    journal.event(tx, "channel.dead_letters", which[0].channel, number=len(which), reason=why.value, error=error)


def _pass_on(tx: Tx, row: ChannelRow, which: Sequence[Notice], now: datetime) -> bool:
    """False if there is nobody to pass them on to; a fallback that is no more is told of."""
    if not which or row.fallback is None:
        return False
    if channels.get(tx, row.fallback) is None:
        journal.event(tx, "channel.fallback_gone", row.name, to=row.fallback, number=len(which))
        return False
    notices.pass_on(tx, which, row.fallback, now)
    alerts.wake(tx, {row.fallback})
    journal.event(tx, "channel.fell_back", row.name, to=row.fallback, number=len(which))
    return True
