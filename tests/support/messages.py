"""Messages and senders in tests: what is told, and the real senders on the real network."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from holdfast.core.notifications.notification import Message, Notification, NotificationState, Severity
from holdfast.engine.notifications.senders import Senders
from holdfast.notifiers.base import Sender
from holdfast.ports import Transport
from holdfast.secret import Secret
from holdfast.store.database import Database
from holdfast.store.notifications import notifications
from holdfast.world import SystemClock

AT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def a_message(**changes: Any) -> Message:
    return Message(
        **{
            "id": "notification_01",
            "event": "issuance.failed",
            "severity": Severity.CRITICAL,
            "title": "www.example.com could not be renewed",
            "text": "The CA refused the order.\nIt is tried again in an hour.",
            "facts": {"CA": "letsencrypt", "attempt": "3"},
            "subject": "www.example.com",
            "reason": "CA_REFUSED",
            "next": "holdfast explain www.example.com",
            "url": "https://holdfast.example.com/certificates/www.example.com",
            "at": AT,
            "key": "issuance.www.example.com",
            **changes,
        }
    )


def a_sender(
    kind: str,
    transport: Transport,
    *,
    settings: Mapping[str, Any] | None = None,
    secrets: Mapping[str, str] | None = None,
    channel: str = "ops",
) -> Sender:
    """As the product makes it of a row."""
    hidden = {name: Secret(text.encode()) for name, text in (secrets or {}).items()}
    return senders(transport).make(channel, kind, settings or {}, hidden)


def senders(transport: Transport) -> Senders:
    """Without a vault: of channels that are not kept."""
    vault: Any = None
    return Senders(secret_store=vault, transport=transport, clock=SystemClock())


def a_notification(**changes: Any) -> Notification:
    """One that nobody delivers, unless there is a channel of that name."""
    return Notification(
        **{
            "id": "notification_01",
            "message": "msg_01",
            "channel": "ops",
            "event": "issuance.failed",
            "severity": Severity.CRITICAL,
            "subject": "certificate_01",
            "name": "www.example.com",
            "title": "www.example.com could not be renewed",
            "text": "The CA refused the order.",
            "key": "certificate/certificate_01",
            "state": NotificationState.DEAD,
            "why": "ATTEMPTS_USED_UP",
            "last_error": "Channel ops: hooks.example.com answered 503.",
            "waiting_since": AT,
            "created_at": AT,
            **changes,
        }
    )


async def owe(db: Database, *owed: Notification) -> None:
    await db.write(lambda tx: notifications.insert(tx, owed))
