"""What goes over the wire about notifications and channels; credentials come in, and never go out."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, SecretStr, StrictBool, StringConstraints

from holdfast.api import shapes
from holdfast.api.shapes import CLOSED, Given, Labels, Note, OwnerName, Short
from holdfast.core.backoff import NOTICE_MAX_ATTEMPTS
from holdfast.core.notice import RANK, Notice, State

StateName = Literal["pending", "sent", "failed", "dead", "resolved"]
SeverityName = Literal["info", "warning", "critical"]
ChannelName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$")]
Seconds = Annotated[float, Field(ge=60, le=31 * 86400)]
Settings = Annotated[dict[Short, Any], Field(max_length=32, json_schema_extra=CLOSED)]
Credentials = Annotated[dict[Short, SecretStr], Field(max_length=8, json_schema_extra=CLOSED)]


# ── Notifications ──


class Notification(BaseModel):
    """One message owed to one channel, and how that stands."""

    id: str
    state: StateName
    channel: str = Field(description="Empty: no channel wanted to hear of it.")
    event: str
    severity: SeverityName
    title: str
    text: str
    subject: str = Field(description="What it is about, by its id.")
    name: str = Field(description="And by the name that people know.")
    owner: str
    facts: dict[str, str]
    next: str = Field(description="The command to run next.")
    outage: str = Field(description="One outage has one key: its first word, every later one, and its all-clear.")
    all_clear: bool
    reason_code: str = Field(description="Why it happened; a code of the list of reasons.")
    attempt: int = Field(description="Attempts to deliver it that have failed so far.")
    max_attempts: int
    last_error: str | None
    last_attempt_at: datetime | None
    next_attempt_at: datetime | None
    dead_because: str | None = Field(description="Why nobody tries any more.")
    delivered_on_attempt: int | None
    sent_at: datetime | None
    digest: str | None = Field(description="The message in which it goes, or went, together with others.")
    note: str | None
    settled_by: str | None
    created_at: datetime


class NotificationInFull(Notification):
    history: list[shapes.Event] = Field(description="Every attempt, death, requeue and note, the oldest first.")


class NotificationFilter(Given):
    """Which ones; without a state, those that are dead."""

    all: StrictBool = Field(default=False, description="Needed where nothing else is given.")
    state: StateName | None = None
    channel: Short | None = None
    severity: SeverityName | None = None
    event: Short | None = None
    subject: Short | None = Field(default=None, description="A certificate, CA or channel, by id or name.")


class Settled(Given):
    note: Note = Field(min_length=1, description="What was done about it.")


class ManySettled(NotificationFilter):
    note: Note = Field(min_length=1, description="What was done about them.")


class Changed(BaseModel):
    number: int = Field(description="How many were changed.")


class NotificationSummary(BaseModel):
    """Counted over all rows."""

    by_state: dict[str, int]
    by_channel: dict[str, dict[str, int]]
    dead: int
    oldest_waiting: dict[str, datetime] = Field(description="By channel: since when its oldest one waits.")


def notification(row: Notice) -> Notification:
    return Notification(**_fields(row))


def in_full(row: Notice, history: list[shapes.Event]) -> NotificationInFull:
    return NotificationInFull(**_fields(row), history=history)


def _fields(row: Notice) -> dict[str, Any]:
    """What is pending is tried as soon as its channel can: there is no time to show."""
    return {
        "id": row.id,
        "state": row.state.value,
        "channel": row.channel,
        "event": row.event,
        "severity": row.severity.value,
        "title": row.title,
        "text": row.text,
        "subject": row.subject,
        "name": row.name,
        "owner": row.owner,
        "facts": dict(row.facts),
        "next": row.next,
        "outage": row.key,
        "all_clear": row.clears,
        "reason_code": row.reason,
        "attempt": row.retry_count,
        "max_attempts": NOTICE_MAX_ATTEMPTS,
        "last_error": row.last_error,
        "last_attempt_at": row.tried_at,
        "next_attempt_at": row.next_retry_at or row.digest_at,
        "dead_because": row.why,
        "delivered_on_attempt": row.retry_count + 1 if row.state is State.SENT else None,
        "sent_at": row.sent_at,
        "digest": row.digest,
        "note": row.note,
        "settled_by": row.settled_by,
        "created_at": row.created_at,
    }


# ── Channels ──


class Rate(Given):
    """At most `burst` at once, and one more every so many seconds."""

    burst: int = Field(ge=1, le=10_000)
    every_s: float = Field(ge=0.001, le=86400)


class Channel(BaseModel):
    name: str
    kind: str
    state: Literal["active", "paused"]
    settings: dict[str, Any]
    credentials: list[str] = Field(description="The purposes of those that are kept; never their values.")
    severities: list[SeverityName]
    owners: list[str]
    labels: dict[str, str]
    fallback: str | None
    digest_every_s: float | None
    heartbeat_every_s: float | None
    rate: Rate
    breaker_open: bool
    breaker_error: str | None
    down_since: datetime | None
    version: int
    created_at: datetime


class _Routed(Given):
    """What a channel wants to hear of, and how."""

    fallback: ChannelName | None = Field(default=None, description="Who is told while this one is down.")
    digest_every_s: Seconds | None = Field(default=None, description="All at once, so often; critical ones never wait.")
    heartbeat_every_s: Seconds | None = Field(default=None, description="A sign of life, so often.")
    rate: Rate | None = None


class NewChannel(_Routed):
    name: ChannelName
    kind: Short
    settings: Settings = Field(default={})
    credentials: Credentials = Field(default={})
    severities: list[SeverityName] = Field(default=["warning", "critical"], min_length=1, max_length=3)
    owners: list[OwnerName] = Field(default=[], max_length=64, description="Only what belongs to these; empty: all.")
    labels: Labels = Field(default={})


class ChannelChange(_Routed):
    """What is given is changed. A setting or credential that is null is taken away."""

    settings: Settings | None = None
    credentials: Annotated[dict[Short, SecretStr | None], Field(max_length=8, json_schema_extra=CLOSED)] | None = None
    severities: list[SeverityName] | None = Field(default=None, min_length=1, max_length=3)
    owners: list[OwnerName] | None = Field(default=None, max_length=64)
    labels: Labels | None = None


def channel(row: Any, now: datetime) -> Channel:
    """`row` comes through operations: its fields are read, its class is not named here."""
    return Channel(
        name=row.name,
        kind=row.kind,
        state=row.state,
        settings=dict(row.settings),
        credentials=sorted(row.credentials),
        severities=[each.value for each in sorted(row.routing.severities, key=RANK.__getitem__)],
        owners=list(row.routing.owners),
        labels=dict(row.routing.labels),
        fallback=row.fallback,
        digest_every_s=None if row.digest_every is None else row.digest_every.total_seconds(),
        heartbeat_every_s=None if row.heartbeat_every is None else row.heartbeat_every.total_seconds(),
        rate=Rate(burst=row.limit.burst, every_s=row.limit.every.total_seconds()),
        breaker_open=row.breaker.open_at(now),
        breaker_error=row.breaker.error,
        down_since=row.down_since,
        version=row.version,
        created_at=row.created_at,
    )
