"""The gauges of notifications and channels, counted by the database over all rows at each scrape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from holdfast.core.notifications.notification import NotificationState
from holdfast.store.notifications import channels, notifications
from holdfast.store.tx import Tx
from holdfast.telemetry import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNotifications:
    counts: Mapping[tuple[str, str], int]  # by channel and state
    oldest: Mapping[str, datetime]
    down: Mapping[str, bool]


def look(tx: Tx) -> SeenNotifications:
    return SeenNotifications(
        counts=notifications.counts(tx),
        oldest=notifications.oldest_waiting(tx),
        down={each.name: each.down_since is not None for each in channels.all_channels(tx)},
    )


def show(seen: SeenNotifications, metrics: Metrics, now: datetime) -> None:
    metrics.notifications.clear()
    for (channel, state), number in seen.counts.items():
        metrics.notifications.labels(channel=channel, state=state).set(number)
    dead = sum(number for (_, state), number in seen.counts.items() if state == NotificationState.DEAD)
    metrics.notifications_dead.set(dead)
    metrics.notification_oldest.clear()
    for channel, since in seen.oldest.items():
        metrics.notification_oldest.labels(channel=channel).set((now - since).total_seconds())
    metrics.channel_down.clear()
    for channel, down in seen.down.items():
        metrics.channel_down.labels(channel=channel).set(down)
