"""What it means that a channel works, whoever found out: its outage is over, and what is stale comes in digests."""

from __future__ import annotations

from datetime import datetime

from holdfast.core.breaker import Breaker
from holdfast.core.notice import ONE_BY_ONE, STALE_AFTER
from holdfast.store import channels, journal, parcels
from holdfast.store.channels import ChannelRow
from holdfast.store.tx import Tx


def works(tx: Tx, row: ChannelRow, now: datetime, **facts: str) -> None:
    """Something was delivered with the settings that it has."""
    if not row.proven:
        channels.proved(tx, row)
    if row.breaker == Breaker() and row.down_since is None:
        return
    channels.stands(tx, row.name, Breaker(), None)
    if row.down_since is not None:
        down_s = (now - row.down_since).total_seconds()
        journal.audit(tx, "channel_up", row.name, down_s=down_s)
        journal.event(tx, "channel.up", row.name, down_s=down_s, in_digests=_stale(tx, row, now), **facts)


def _stale(tx: Tx, row: ChannelRow, now: datetime) -> int:
    """How much comes in digests now: from a quiet channel whatever waits, since that is how it is told anyway."""
    if row.kind in ONE_BY_ONE:
        return 0
    return parcels.to_digest(tx, row.name, now if row.digest_every else now - STALE_AFTER, now)
