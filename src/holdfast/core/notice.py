"""A notice: one message owed to one channel. Its machine, its waits, who is told, and when an end is worth a word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import accumulate
from typing import Final, Literal

from holdfast.core.backoff import notice_wait
from holdfast.errors import IllegalMove

CRASHES_TO_SUSPECT: Final = 2  # sends in a row that nobody heard of again: the next one is made alone
CRASHES_TO_POISON: Final = 3  # after so many it is not sent again until a person says so
OPENS_AFTER: Final = 3  # failures in a row of a channel; fewer than the attempts of a notice, so that none dies of it
FALLBACK_AFTER: Final = timedelta(minutes=15)  # a channel that is down for so long has its fallback told
STALE_AFTER: Final = timedelta(hours=1)  # what waited longer for a channel to return comes in a digest
DIGEST_LINES: Final = 50  # every line of a digest is a notice that counts as delivered: none is left out
DIGEST_SIZES: Final = {"apprise": 1500}  # characters of all lines, where a service behind a kind takes few
DIGEST_TRIES: Final = 2  # a digest that failed so often is taken apart: perhaps only the digest cannot go
ONE_BY_ONE: Final = frozenset({"pagerduty", "opsgenie"})  # they keep incidents: a digest would be one more of them


class State(StrEnum):
    PENDING = "pending"  # to be sent as soon as its channel can
    SENT = "sent"
    FAILED = "failed"  # to be tried again at next_retry_at
    DEAD = "dead"  # a person must look; never deleted while it is new, never sent by itself
    RESOLVED = "resolved"  # a person has dealt with it, and said how


Event = Literal["delivered", "failed", "gave up", "requeued", "resolved"]

MOVES: Final[Mapping[tuple[State, Event], State]] = {
    (State.PENDING, "delivered"): State.SENT,
    (State.PENDING, "failed"): State.FAILED,
    (State.PENDING, "gave up"): State.DEAD,
    (State.PENDING, "resolved"): State.RESOLVED,
    (State.FAILED, "delivered"): State.SENT,
    (State.FAILED, "failed"): State.FAILED,
    (State.FAILED, "gave up"): State.DEAD,
    (State.FAILED, "requeued"): State.PENDING,
    (State.FAILED, "resolved"): State.RESOLVED,
    (State.DEAD, "requeued"): State.PENDING,
    (State.DEAD, "resolved"): State.RESOLVED,
    (State.RESOLVED, "requeued"): State.PENDING,
    (State.SENT, "requeued"): State.PENDING,
}
WAITING: Final = (State.PENDING, State.FAILED)  # owed, and tried without being asked


def move(state: State, event: Event) -> State:
    try:
        return MOVES[state, event]
    except KeyError:
        raise IllegalMove(f"a notice that is {state} cannot be {event!r}") from None


class Why(StrEnum):
    """Why a notice is dead."""

    ATTEMPTS_USED_UP = "ATTEMPTS_USED_UP"
    CHANNEL_DOWN = "CHANNEL_DOWN"  # for 72 hours
    CHANNEL_GONE = "CHANNEL_GONE"  # deleted, or none of that name ever was
    CHANNEL_MISCONFIGURED = "CHANNEL_MISCONFIGURED"
    REFUSED = "REFUSED"  # by the channel, and it will refuse it again
    POISON = "POISON"  # whoever sends it dies
    NO_CHANNEL = "NO_CHANNEL"  # no channel wants to hear of it


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


RANK: Final = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a channel is given to send. Texts may hold anything that a certificate or a CA can say: nothing is safe."""

    id: str  # a repetition carries the same one
    event: str  # what happened, as issuance.failed
    severity: Severity
    title: str  # one line
    text: str  # a sentence or two; a digest has a line for each notice
    facts: Mapping[str, str] = field(default_factory=dict)
    subject: str  # the certificate, CA or channel it is about, by the name people know it by
    reason: str = ""  # a code of core/reasons.py, where there is one
    next: str = ""  # the command to run next
    url: str = ""  # a page about it
    at: datetime  # when it happened
    resolved: bool = False  # the all-clear of what was told before under the same key
    key: str  # one outage is one key: its first word, every later one, and its all-clear
    attempt: int = 1  # "delivered on attempt n"
    only: tuple[str, ...] = ()  # those behind the channel who have not got it yet; empty: nobody has


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """It was delivered, and not to all who are behind the channel."""

    said: str  # who they are, and why
    again: tuple[str, ...] = ()  # those who may get it at another time
    never: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What is owed to one channel, and how that stands."""

    id: str
    message: str  # what is told: the same in every channel that hears of it
    channel: str  # empty: nobody wanted to hear of it
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
    state: State = State.PENDING
    retry_count: int = 0  # attempts that failed; kept when one succeeds
    next_retry_at: datetime | None = None
    last_error: str | None = None
    why: str | None = None
    begun: int = 0  # sends in a row of which nobody knows the end
    digest_at: datetime | None = None
    digest: str | None = None  # the digest in which it goes, or went
    missed: tuple[str, ...] = ()  # those behind the channel who have not got it yet; empty: nobody has, or all
    tries: int = 0  # of its digest, or to reach those it missed: they say nothing against the notice
    waiting_since: datetime
    tried_at: datetime | None = None
    sent_at: datetime | None = None
    note: str | None = None
    settled_by: str | None = None
    created_at: datetime


def message_of(notice: Notice) -> Message:
    return Message(
        id=notice.id,
        event=notice.event,
        severity=notice.severity,
        title=notice.title,
        text=notice.text,
        facts=notice.facts,
        subject=notice.name,
        reason=notice.reason,
        next=notice.next,
        at=notice.created_at,
        resolved=notice.clears,
        key=notice.key,
        attempt=notice.retry_count + 1,
        only=notice.missed,
    )


def digest_of(digest: str, notices: Sequence[Notice]) -> Message:
    """Several in one message, a line each; every one of them is in it."""
    first = notices[0]
    return Message(
        id=digest,
        event="digest",
        severity=worst([each.severity for each in notices]),
        title=f"{len(notices)} notices, from {first.created_at:%Y-%m-%d %H:%M} UTC on",
        text="\n".join(map(_digest_line, notices)),
        facts={"notices": str(len(notices))},
        subject=first.channel,
        next="holdfast notify ls",
        at=first.created_at,
        key=digest,
        attempt=max(each.retry_count for each in notices) + 1,
        only=first.missed,
    )


def _digest_line(notice: Notice) -> str:
    return f"{notice.created_at:%m-%d %H:%M} {notice.severity}: {' '.join(notice.title.splitlines())}"


def in_one_digest(notices: Sequence[Notice], size: int | None) -> Sequence[Notice]:
    """The first of them, as many as fit; at least one."""
    most = notices[:DIGEST_LINES]
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
    """What becomes of a notice whose attempts have failed so often, this one included."""
    wait = notice_wait(failures)
    return Retry(event="gave up" if wait is None else "failed", wait=wait)


# ── Who is told ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """What a channel wants to hear of. Without owners or labels: of everything, also of what belongs to nobody."""

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
    """When a quiet channel hears of it: with all others of its stretch of time. Critical ones never wait for that."""
    if every is None or severity is Severity.CRITICAL:
        return None
    since = datetime(1970, 1, 1, tzinfo=now.tzinfo)
    return since + ((now - since) // every + 1) * every


# ── Whether it is worth a word ──


def doubling(count: int) -> bool:
    """The 1st, 2nd, 4th, 8th, …: ever more seldom, never silent."""
    return count > 0 and count & (count - 1) == 0


DAYS: Final = (30, 14, 7, 3, 1)
PLAIN_LIFE: Final = timedelta(days=90)  # shorter lives have the same shares of them


def thresholds(life: timedelta) -> tuple[timedelta, ...]:
    """The times left at which people hear of an end: 30, 14, 7, 3, 1 days, or those shares of a short life; and 0."""
    share = min(life / PLAIN_LIFE, 1.0)
    return (*(timedelta(days=days) * share for days in DAYS), timedelta(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossings:
    """Which thresholds are passed and not yet told (by their number), and when to look again."""

    owed: tuple[int, ...]
    next_at: datetime | None

    @property
    def told(self) -> int | None:
        """After a time without anybody looking, one word about the last of them is enough."""
        return max(self.owed, default=None)


def crossings(life: timedelta, not_after: datetime, now: datetime, told: Iterable[int]) -> Crossings:
    """Level, not edge: a missed run is harmless, and none is told twice."""
    return crossed(thresholds(life), not_after, now, told)


def crossed(lefts: Sequence[timedelta], not_after: datetime, now: datetime, told: Iterable[int]) -> Crossings:
    """The same for thresholds of one's own, the longest first."""
    known = set(told)
    moments = [not_after - left for left in lefts]
    passed = [number for number, at in enumerate(moments) if at <= now]
    ahead = [at for at in moments if at > now]
    return Crossings(owed=tuple(n for n in passed if n not in known), next_at=min(ahead, default=None))


def severity_of_crossing(number: int, *, late: bool = True) -> Severity:
    """At the first a renewal may be only just due: worth a line, and a warning only if nothing is in hand."""
    if number == 0 and not late:
        return Severity.INFO
    return Severity.WARNING if number < 3 else Severity.CRITICAL


def worst(severities: Sequence[Severity]) -> Severity:
    return max(severities, key=RANK.__getitem__, default=Severity.INFO)
