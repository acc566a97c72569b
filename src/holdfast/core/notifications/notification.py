"""A notification: one message owed to one channel. Its states, its retries, its routing, and when an expiry is an
alert."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import accumulate
from typing import Final, Literal

from holdfast.core.backoff import notification_wait
from holdfast.core.issuers.budget import Limit
from holdfast.errors import IllegalMove

CRASHES_TO_SUSPECT: Final = (
    2  # sends in a row during which the sender died: the next send carries this notification alone
)
CRASHES_TO_POISON: Final = 3  # after so many it is a dead letter, until a person requeues it
OPENS_AFTER: Final = (
    3  # failures in a row of a channel; fewer than the attempts of a notification, so that none dies of it
)
FALLBACK_AFTER: Final = timedelta(
    minutes=15
)  # a channel that is down for so long passes its notifications to its fallback
STALE_AFTER: Final = timedelta(hours=1)  # notifications that waited longer for a channel are sent as a digest
DIGEST_LINES: Final = 50  # every line of a digest is a notification that counts as delivered: none is left out
DIGEST_TRIES: Final = 2  # a digest that failed so often is taken apart: perhaps only its size is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLimits:
    """The limits of a kind of channel, where the settings of a channel give none."""

    rate: Limit = field(default_factory=lambda: Limit(burst=60, every=timedelta(milliseconds=100)))
    digest_size: int | None = None  # characters of all lines of a digest, where a service takes few


class NotificationState(StrEnum):
    PENDING = "pending"  # to be sent as soon as its channel can
    SENT = "sent"
    FAILED = "failed"  # to be tried again at next_retry_at
    DEAD = "dead"  # a dead letter: sent again only when a person requeues it
    RESOLVED = "resolved"  # a person has dealt with it, and said how


Event = Literal["delivered", "failed", "gave up", "requeued", "resolved"]

MOVES: Final[Mapping[tuple[NotificationState, Event], NotificationState]] = {
    (NotificationState.PENDING, "delivered"): NotificationState.SENT,
    (NotificationState.PENDING, "failed"): NotificationState.FAILED,
    (NotificationState.PENDING, "gave up"): NotificationState.DEAD,
    (NotificationState.PENDING, "resolved"): NotificationState.RESOLVED,
    (NotificationState.FAILED, "delivered"): NotificationState.SENT,
    (NotificationState.FAILED, "failed"): NotificationState.FAILED,
    (NotificationState.FAILED, "gave up"): NotificationState.DEAD,
    (NotificationState.FAILED, "requeued"): NotificationState.PENDING,
    (NotificationState.FAILED, "resolved"): NotificationState.RESOLVED,
    (NotificationState.DEAD, "requeued"): NotificationState.PENDING,
    (NotificationState.DEAD, "resolved"): NotificationState.RESOLVED,
    (NotificationState.RESOLVED, "requeued"): NotificationState.PENDING,
    (NotificationState.SENT, "requeued"): NotificationState.PENDING,
}
WAITING: Final = (NotificationState.PENDING, NotificationState.FAILED)  # owed, and tried without being asked


def move(state: NotificationState, event: Event) -> NotificationState:
    try:
        return MOVES[state, event]
    except KeyError:
        raise IllegalMove(f"a notification that is {state} cannot be {event!r}") from None


class Why(StrEnum):
    """Why a notification is dead."""

    ATTEMPTS_USED_UP = "ATTEMPTS_USED_UP"
    CHANNEL_DOWN = "CHANNEL_DOWN"  # for 72 hours
    CHANNEL_GONE = "CHANNEL_GONE"  # deleted, or none of that name ever was
    CHANNEL_MISCONFIGURED = "CHANNEL_MISCONFIGURED"
    REFUSED = "REFUSED"  # by the channel, and it will refuse it again
    POISON = "POISON"  # its sender died each time
    NO_CHANNEL = "NO_CHANNEL"  # the routing of no channel matches it


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


RANK: Final = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a channel is given to send. Its texts come from certificates and CAs, and must be escaped."""

    id: str  # a repetition carries the same one
    event: str  # what happened, as issuance.failed
    severity: Severity
    title: str  # one line
    text: str  # a sentence or two; a digest has a line for each notification
    facts: Mapping[str, str] = field(default_factory=dict)
    subject: str  # the certificate, CA or channel it is about, by the name people know it by
    reason: str = ""  # a code of core/reasons.py, where there is one
    next: str = ""  # the command to run next
    url: str = ""  # a page about it
    at: datetime  # when it happened
    resolved: bool = False  # the all-clear of what was told before under the same key
    key: str  # of the outage: the same in its first alert, its later ones and its all-clear
    attempt: int = 1  # "delivered on attempt n"
    only: tuple[str, ...] = ()  # the recipients who have not got it yet; empty: all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A message was delivered to some recipients of a channel, and not to these."""

    said: str  # the recipients, and the reason
    again: tuple[str, ...] = ()  # recipients to try again later
    never: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One message owed to one channel, with the state of its delivery."""

    id: str
    message: str  # id of the message: the same in every channel that gets it
    channel: str  # empty: no channel wanted it
    event: str
    severity: Severity
    subject: str  # an id, as on the timeline
    name: str  # of the subject, as people know it
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    title: str
    text: str
    facts: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    next: str = ""
    key: str
    clears: bool = False
    state: NotificationState = NotificationState.PENDING
    retry_count: int = 0  # attempts that failed; kept when one succeeds
    next_retry_at: datetime | None = None
    last_error: str | None = None
    why: str | None = None
    begun: int = 0  # sends in a row that were begun and never answered
    digest_at: datetime | None = None
    digest: str | None = None  # the digest in which it goes, or went
    missed: tuple[str, ...] = ()  # recipients who have not got it yet; empty: all of them, or none
    tries: int = 0  # of its digest, or for missed recipients: they do not count as attempts of the notification
    waiting_since: datetime
    tried_at: datetime | None = None
    sent_at: datetime | None = None
    note: str | None = None
    settled_by: str | None = None
    created_at: datetime


PAGES: Final[Mapping[str, str]] = {  # where a person looks, by the first word of an event; {} is the object's name
    "approval": "/approvals", "ca": "/cas", "channel": "/notifications", "endpoint": "/targets", "issuer": "/issuers",
    "find": "/finds", "finds": "/finds", "discovery": "/finds",
    "certificate.uncollected": "/cas",
    "job": "/jobs", "jobs": "/jobs", "replica": "/cluster", "selfcheck": "/audit", "store": "/cluster",
    **dict.fromkeys(
        ("ari", "certificate", "deployment", "issuance", "order", "revocation", "withdrawal"), "/certificates/{}"
    ),
}  # fmt: skip


def page_of(event: str, name: str) -> str:
    """The page about what happened; empty: there is none."""
    from urllib.parse import quote  # commands load this module, and not that one

    found = PAGES.get(event) or PAGES.get(event.partition(".")[0], "")
    return found.format(quote(name, safe=""))


def message_of(notification: Notification, pages: str = "") -> Message:
    """`pages`: the address of the pages, for links; empty: the message has none."""
    page = page_of(notification.event, notification.name) if pages else ""
    return Message(
        url=f"{pages}{page}" if page else "",
        id=notification.id,
        event=notification.event,
        severity=notification.severity,
        title=notification.title,
        text=notification.text,
        facts=notification.facts,
        subject=notification.name,
        reason=notification.reason,
        next=notification.next,
        at=notification.created_at,
        resolved=notification.clears,
        key=notification.key,
        attempt=notification.retry_count + 1,
        only=notification.missed,
    )


def digest_of(digest: str, notifications: Sequence[Notification]) -> Message:
    """Several in one message, a line each; every one of them is in it."""
    first = notifications[0]
    return Message(
        id=digest,
        event="digest",
        severity=worst([each.severity for each in notifications]),
        title=f"{len(notifications)} notifications, from {first.created_at:%Y-%m-%d %H:%M} UTC on",
        text="\n".join(map(_digest_line, notifications)),
        facts={"notifications": str(len(notifications))},
        subject=first.channel,
        next="holdfast notify ls",
        at=first.created_at,
        key=digest,
        attempt=max(each.retry_count for each in notifications) + 1,
        only=first.missed,
    )


def _digest_line(notification: Notification) -> str:
    return f"{notification.created_at:%m-%d %H:%M} {notification.severity}: {' '.join(notification.title.splitlines())}"


def in_one_digest(notifications: Sequence[Notification], size: int | None) -> Sequence[Notification]:
    """The first of them, as many as fit; at least one."""
    most = notifications[:DIGEST_LINES]
    if size is None:
        return most
    ends = accumulate(len(_digest_line(each)) + 1 for each in most)
    return most[: max(sum(end <= size for end in ends), 1)]


# ── After an attempt ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Tried again after `wait`; None: that was its last attempt."""

    event: Event
    wait: timedelta | None


def after_failure(failures: int) -> Retry:
    """The next step of a notification that has failed so often, this attempt included."""
    wait = notification_wait(failures)
    return Retry(event="gave up" if wait is None else "failed", wait=wait)


# ── Routing ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Which alerts a channel wants. Without owners or labels: all of them, also those of subjects without an owner."""

    severities: frozenset[Severity] = frozenset({Severity.WARNING, Severity.CRITICAL})
    owners: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


def wants(routing: Routing, severity: Severity, owner: str, labels: Mapping[str, str]) -> bool:
    if severity not in routing.severities:
        return False
    if routing.owners and owner not in routing.owners:
        return False
    return all(labels.get(name) == value for name, value in routing.labels.items())


def digest_at(now: datetime, every: timedelta | None, severity: Severity) -> datetime | None:
    """When a channel with digests gets it: at the end of the current interval. Critical notifications never wait."""
    if every is None or severity is Severity.CRITICAL:
        return None
    since = datetime(1970, 1, 1, tzinfo=now.tzinfo)
    return since + ((now - since) // every + 1) * every


# ── Expiry ──


def doubling(count: int) -> bool:
    """The 1st, 2nd, 4th, 8th, …: ever more seldom, never silent."""
    return count > 0 and count & (count - 1) == 0


DAYS: Final = (30, 14, 7, 3, 1)
PLAIN_LIFE: Final = timedelta(days=90)  # shorter lives have the same shares of them


def thresholds(life: timedelta) -> tuple[timedelta, ...]:
    """The remaining times at which an expiry is told: 30, 14, 7, 3, 1 days, or those shares of a short life; and 0."""
    share = min(life / PLAIN_LIFE, 1.0)
    return (*(timedelta(days=days) * share for days in DAYS), timedelta(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossings:
    """Which thresholds are passed and not yet told (by their number), and when to look again."""

    owed: tuple[int, ...]
    next_at: datetime | None

    @property
    def told(self) -> int | None:
        """The threshold to alert on: after a pause of the sweep only the last one passed."""
        return max(self.owed, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiringVersion:
    """A version whose next expiry threshold is due."""

    version: str
    certificate: str
    not_before: datetime
    not_after: datetime
    watched: bool  # its certificate is not archived, and this is the version that it uses


def crossings(life: timedelta, not_after: datetime, now: datetime, told: Iterable[int]) -> Crossings:
    """Level, not edge: a missed run is harmless, and none is told twice."""
    return crossed(thresholds(life), not_after, now, told)


def crossed(lefts: Sequence[timedelta], not_after: datetime, now: datetime, told: Iterable[int]) -> Crossings:
    """The same for given thresholds, the longest first."""
    known = set(told)
    moments = [not_after - left for left in lefts]
    passed = [number for number, at in enumerate(moments) if at <= now]
    ahead = [at for at in moments if at > now]
    return Crossings(owed=tuple(n for n in passed if n not in known), next_at=min(ahead, default=None))


def severity_of_crossing(number: int, *, late: bool = True) -> Severity:
    """At the first threshold a renewal may only just be due: a warning only if no renewal is under way or planned."""
    if number == 0 and not late:
        return Severity.INFO
    return Severity.WARNING if number < 3 else Severity.CRITICAL


def worst(severities: Sequence[Severity]) -> Severity:
    return max(severities, key=RANK.__getitem__, default=Severity.INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One send to a channel: one notification, or several as a digest."""

    notifications: tuple[Notification, ...]
    digest: str | None = None
