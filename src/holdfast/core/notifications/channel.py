"""Channels: where people are told, each under the name that an operator gave it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from holdfast.core.issuers.breaker import Breaker
from holdfast.core.issuers.budget import Limit
from holdfast.core.notifications.notification import Routing


class ChannelState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"  # nothing is sent through it


class ChannelHealth(StrEnum):
    """Whether people can rely on a channel."""

    OK = "ok"  # a message was delivered with its present settings, and none failed since
    UNTESTED = "untested"  # nothing was delivered yet with its present settings
    FAILING = "failing"  # the last message, or the last test, was not delivered
    DOWN = "down"  # several in a row were not: its notifications wait
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRow:
    name: str
    kind: str  # smtp, webhook, slack, …
    settings: Mapping[str, Any] = field(default_factory=dict)
    credentials: Mapping[str, str] = field(default_factory=dict)  # purpose → id of a secret
    routing: Routing = field(default_factory=Routing)
    fallback: str | None = None  # the channel that gets the notifications which this one cannot deliver
    digest_every: timedelta | None = None  # None: each notification is sent at once
    heartbeat_every: timedelta | None = None  # None: no heartbeats
    heartbeat_at: datetime | None = None
    limit: Limit = field(default_factory=lambda: Limit(burst=60, every=timedelta(milliseconds=100)))
    state: ChannelState = ChannelState.ACTIVE
    version: int = 1
    breaker: Breaker = field(default_factory=Breaker)
    down_since: datetime | None = None  # set while its breaker is open, or it has answered "too many" for long
    proven: bool = False  # a message was delivered with its present settings and credentials
    created_at: datetime

    @property
    def health(self) -> ChannelHealth:
        if self.state is ChannelState.PAUSED:
            return ChannelHealth.PAUSED
        if self.down_since is not None:
            return ChannelHealth.DOWN
        if self.breaker.error is not None:
            return ChannelHealth.FAILING
        return ChannelHealth.OK if self.proven else ChannelHealth.UNTESTED

    @property
    def budget(self) -> str:
        return budget_key(self.name)


def budget_key(name: str) -> str:
    return f"channel/{name}"
