"""What tells people without being asked, in one place for the app: its jobs, its families, its duties."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Final

from holdfast.engine import expiry, notify, outages
from holdfast.engine.kind import Kind
from holdfast.engine.notify import Tools
from holdfast.engine.replica import Every
from holdfast.engine.sweep import Owed

LOST_AFTER: Final = timedelta(minutes=2)  # a replica that said nothing for so long, and did not say good-bye


def kinds(tools: Tools) -> list[Kind]:
    return [notify.kind(tools)]


def families(tools: Tools) -> list[Owed]:
    """What the reconciler looks after."""
    return [notify.owed(tools.random)]


def duties(
    tools: Tools,
    *,
    retry: timedelta = timedelta(minutes=2),
    process: timedelta = timedelta(minutes=1),
    ends: timedelta = timedelta(hours=1),
    cleanup: timedelta = timedelta(hours=1),
    history_for: timedelta = timedelta(days=90),
    lease_ttl: timedelta = timedelta(seconds=30),
) -> list[Every]:
    lost_after = max(LOST_AFTER, 4 * lease_ttl)
    return [
        Every(name="notification_retry", period=retry, duty=partial(notify.retry, tools.db, tools.random)),
        Every(name="notification_processing", period=process, duty=partial(outages.watch, tools.db, lost_after)),
        Every(name="expiry", period=ends, duty=partial(expiry.sweep, tools.db)),
        Every(name="notification_cleanup", period=cleanup, duty=partial(outages.forget, tools.db, history_for)),
    ]
