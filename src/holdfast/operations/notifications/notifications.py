"""Notifications: list them, send dead letters again, or resolve them with a note; one, by a filter, or all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Final, Protocol, TypeVar

from pydantic import BaseModel, Field, StrictBool

from holdfast.core.backoff import NOTIFICATION_MAX_ATTEMPTS
from holdfast.core.journal import Event as Happened
from holdfast.core.notifications.channel import ChannelRow
from holdfast.core.notifications.notification import MOVES, NotificationState, Severity
from holdfast.core.notifications.notification import Event as Move
from holdfast.core.notifications.notification import Notification as CoreNotification
from holdfast.errors import UserError
from holdfast.operations.access import Action
from holdfast.operations.context import Context
from holdfast.operations.inputs import (
    Changed,
    Input,
    NoteText,
    Nothing,
    OneOf,
    Option,
    Page,
    Paged,
    Short,
    from_row,
    page_of,
    place,
)
from holdfast.operations.installation.events import EventView
from holdfast.operations.notifications import access, routing
from holdfast.operations.notifications.access import NoSuchNotification
from holdfast.operations.operation import operation
from holdfast.operations.scopes import INSTALLATION, NOTIFICATION, VISIBLE
from holdfast.store import journal
from holdfast.store.notifications import channels, notifications
from holdfast.store.notifications.notifications import Filter
from holdfast.store.tx import Tx

R = TypeVar("R")
PAGE: Final = 200
DEAD: Final = Filter(state=NotificationState.DEAD)
_LONGEST_NOTE: Final = 500
StateName = Annotated[str, OneOf(NotificationState)]
SeverityName = Annotated[str, OneOf(Severity)]


class NotificationNotIn(UserError):
    status, code = 409, "notification-state"

    def __init__(self, notification: CoreNotification, wish: str) -> None:
        super().__init__(f"Notification {notification.id} is {notification.state}: it cannot be {wish}.")
        self.hint = (
            "One that is pending is on its way already." if notification.state is NotificationState.PENDING else ""
        )


class NoChannelWantsIt(UserError):
    status, code = 409, "no-channel"

    def __init__(self, notification: CoreNotification) -> None:
        super().__init__(f"Notification {notification.id} has nowhere to go: {_missing(notification)}.")
        self.hint = "Add one: holdfast notify channel add --help"


def _missing(notification: CoreNotification) -> str:
    return f"there is no channel {notification.channel!r}" if notification.channel else "no channel wants it"


class BadFilter(UserError):
    code, hint = "bad-filter", "A label filter is name=value, for example: label=team=web"


# ── Inputs and views ──


class Notification(BaseModel):
    """One message owed to one channel, with the state of its delivery."""

    id: str
    state: StateName
    channel: str = Field(description="Empty: no channel wanted it.")
    event: str
    severity: SeverityName
    title: str
    text: str
    subject: str = Field(description="The id of the subject.")
    name: str = Field(description="The name of the subject.")
    owner: str
    facts: dict[str, str]
    next: str = Field(description="The command to run next.")
    outage: str = Field(
        description="The key of the outage: the same in its first alert, its later ones and its all-clear."
    )
    all_clear: bool
    reason_code: str = Field(description="Why it happened; a code of the list of reasons.")
    attempt: int = Field(description="Attempts to deliver it that have failed so far.")
    max_attempts: int
    last_error: str | None
    last_attempt_at: datetime | None
    next_attempt_at: datetime | None
    dead_because: str | None = Field(description="Why it is a dead letter.")
    delivered_on_attempt: int | None
    sent_at: datetime | None
    digest: str | None = Field(description="The id of the digest that it is sent in.")
    note: str | None
    settled_by: str | None
    created_at: datetime


class NotificationInFull(Notification):
    history: list[EventView] = Field(description="Every attempt, death, requeue and note, the oldest first.")


class NotificationRef(Input):
    notification: Annotated[str, Option(metavar="NOTIFICATION")] = Field(
        max_length=100, description="Its id, as `notify ls` shows it."
    )


class _Which(Input):
    state: StateName | None = Field(default=None, description="Only notifications in this state.")
    channel: Short | None = Field(default=None, description="Only those owed to this channel.")
    severity: SeverityName | None = Field(default=None, description="Only those of this severity.")
    event: Short | None = Field(default=None, description="Only those of this event, such as issuance.failed.")
    subject: Annotated[Short | None, Option(flag="--about", metavar="NAME")] = Field(
        default=None, description="Only those about this certificate, issuer or channel."
    )


class NotificationList(_Which, Paged):
    pass


class DeadLetters(_Which):
    """Which notifications; without a state, the dead letters."""

    all: StrictBool = Field(default=False, description="All dead letters: needed where nothing else is given.")


class Resolution(NotificationRef):
    note: NoteText = Field(min_length=1, description="What was done about it.")


class DeadLettersResolution(DeadLetters):
    note: NoteText = Field(min_length=1, description="What was done about them.")


class NotificationSummary(BaseModel):
    """Counted over all rows."""

    by_state: dict[str, int]
    by_channel: dict[str, dict[str, int]]
    dead: int
    oldest_waiting: dict[str, datetime] = Field(description="By channel: since when its oldest one waits.")


def notification(row: CoreNotification) -> Notification:
    return from_row(Notification, row, **_renamed(row))


def in_full(row: CoreNotification, history: list[EventView]) -> NotificationInFull:
    return from_row(NotificationInFull, row, **_renamed(row), history=history)


def _renamed(row: CoreNotification) -> dict[str, object]:
    """A pending notification is sent as soon as its channel can, and has no time of its next attempt."""
    return {
        "outage": row.key,
        "all_clear": row.clears,
        "reason_code": row.reason,
        "attempt": row.retry_count,
        "max_attempts": NOTIFICATION_MAX_ATTEMPTS,
        "last_attempt_at": row.tried_at,
        "next_attempt_at": row.next_retry_at or row.digest_at,
        "dead_because": row.why,
        "delivered_on_attempt": row.retry_count + 1 if row.state is NotificationState.SENT else None,
    }


# ── Looking ──


@operation(
    "notifications.list",
    "GET /notifications",
    command="notify ls",
    action=Action.SEE_NOTIFICATIONS,
    scope=VISIBLE,
    example="holdfast notify ls --state dead",
)
def list_notifications(tx: Tx, ctx: Context, asked: NotificationList) -> Page[Notification]:
    """List the notifications that you may see, the newest first."""
    before = place(asked.cursor, str)
    rows = notifications.page(tx, _which(tx, asked), before="" if before is None else before[0], limit=asked.limit)
    shown = [notification(each) for each in access.visible(ctx.principal, rows)]
    return page_of(shown, asked.limit, lambda row: (row.id,), rows)


def _which(tx: Tx, asked: _Which) -> Filter:
    return Filter(
        state=None if asked.state is None else NotificationState(asked.state),
        channel=asked.channel,
        severity=None if asked.severity is None else Severity(asked.severity),
        event=asked.event,
        subject=None if asked.subject is None else access.subject_of(tx, asked.subject),
    )


@operation(
    "notifications.summary",
    "GET /notifications/summary",
    command="notify summary",
    action=Action.SEE_NOTIFICATIONS,
    scope=INSTALLATION,
)
def summary(tx: Tx, ctx: Context, asked: Nothing) -> NotificationSummary:
    """Count the notifications in each state, over all channels."""
    return summarize(tx)


def summarize(tx: Tx) -> NotificationSummary:
    by_channel: dict[str, dict[str, int]] = {}
    by_state: Counter[str] = Counter()
    for (channel, state), number in notifications.counts(tx).items():
        by_channel.setdefault(channel, {})[state] = number
        by_state[state] += number
    return NotificationSummary(
        by_state=dict(by_state),
        by_channel=by_channel,
        dead=by_state[NotificationState.DEAD.value],
        oldest_waiting=dict(notifications.oldest_waiting(tx)),
    )


class DeadLetterCause(BaseModel):
    """Dead letters of one channel that have one cause."""

    channel: str = Field(description="Empty: no channel wanted them.")
    dead_because: str
    number: int
    first_at: datetime
    last_at: datetime
    severities: dict[str, int]
    last_error: str = Field(description="What the channel said last, in its own words.")


@operation(
    "notifications.causes",
    "GET /dead-letters",
    command="notify causes",
    action=Action.SEE_NOTIFICATIONS,
    scope=INSTALLATION,
    example="holdfast notify causes",
)
def causes(tx: Tx, ctx: Context, asked: Nothing) -> list[DeadLetterCause]:
    """Show the dead letters by channel and cause, the most numerous first."""
    return [DeadLetterCause(dead_because=each.why, **_of_group(each)) for each in notifications.dead_groups(tx)]


def _of_group(found: notifications.DeadGroup) -> dict[str, Any]:
    names = ("channel", "number", "first_at", "last_at", "severities", "last_error")
    return {name: getattr(found, name) for name in names}


@operation(
    "notifications.get",
    "GET /notifications/{notification}",
    command="notify show",
    action=Action.SEE_NOTIFICATIONS,
    scope=NOTIFICATION,
)
def get(tx: Tx, ctx: Context, asked: NotificationRef) -> NotificationInFull:
    """Show one notification with its history: each attempt, death, requeue and note, the oldest first."""
    row = found(tx, asked.notification)
    happened = [EventView.model_validate(each, from_attributes=True) for each in history(tx, row.id)]
    return in_full(row, happened)


def history(tx: Tx, notification: str) -> list[Happened]:
    """The events of a notification, oldest first; they also keep the attempts that a requeue cleared."""
    return journal.events_after(tx, 0, subject=found(tx, notification).id)


# ── Acting ──


@operation(
    "notifications.requeue",
    "POST /notifications/{notification}/requeue",
    command="notify requeue",
    action=Action.CHANGE_NOTIFICATIONS,
    scope=NOTIFICATION,
)
def requeue_notification(tx: Tx, ctx: Context, asked: NotificationRef) -> Notification:
    """Send a notification again, with all its attempts. Its history stays."""
    return notification(requeue(tx, asked.notification, actor=ctx.actor))


def requeue(tx: Tx, notification: str, *, actor: str) -> CoreNotification:
    """Send a notification again. One that no channel wanted is offered to the present channels."""
    row = _allowed(tx, notification, "requeued")
    if not _requeue(tx, [row], actor):
        raise NoChannelWantsIt(row)
    journal.audit(tx, "notification_requeued", notification, actor=actor, channel=row.channel, was=row.state.value)
    return notifications.get(tx, notification) or row


@operation(
    "notifications.resolve",
    "POST /notifications/{notification}/resolve",
    command="notify resolve",
    action=Action.CHANGE_NOTIFICATIONS,
    scope=NOTIFICATION,
)
def resolve_notification(tx: Tx, ctx: Context, asked: Resolution) -> Notification:
    """Resolve a notification with a note that says what was done. It is not sent any more."""
    return notification(resolve(tx, asked.notification, note=asked.note, actor=ctx.actor))


def resolve(tx: Tx, notification: str, *, note: str, actor: str) -> CoreNotification:
    _check(note)
    row = _allowed(tx, notification, "resolved")
    _resolve(tx, [row], note, actor)
    journal.audit(tx, "notification_resolved", notification, actor=actor, channel=row.channel, note=note)
    return notifications.get(tx, notification) or row


@operation(
    "notifications.requeue-many",
    "POST /dead-letters/requeue",
    command="notify requeue",
    action=Action.CHANGE_NOTIFICATIONS,
    scope=INSTALLATION,
    destructive=True,
    example="holdfast notify requeue --channel ops",
)
async def requeue_dead_letters(ctx: Context, asked: DeadLetters) -> Changed:
    """Send dead letters again: all of them, or those of a filter.

    Repeating it is harmless, so an Idempotency-Key is not kept here.
    """
    which = await ctx.read(lambda tx: _many(tx, asked))
    return Changed(number=await requeue_all(ctx.write, which, actor=ctx.actor))


@operation(
    "notifications.resolve-many",
    "POST /dead-letters/resolve",
    command="notify resolve",
    action=Action.CHANGE_NOTIFICATIONS,
    scope=INSTALLATION,
    destructive=True,
)
async def resolve_dead_letters(ctx: Context, asked: DeadLettersResolution) -> Changed:
    """Resolve dead letters with a note: all of them, or those of a filter.

    Repeating it is harmless, so an Idempotency-Key is not kept here.
    """
    which = await ctx.read(lambda tx: _many(tx, asked))
    return Changed(number=await resolve_all(ctx.write, which, note=asked.note, actor=ctx.actor))


def _many(tx: Tx, asked: DeadLetters) -> Filter:
    """The filter of a bulk operation: dead letters, unless another state is given."""
    which = _which(tx, asked)
    if which == Filter() and not asked.all:
        raise BadFilter("Say which: state, channel, severity, event or subject; or all that are dead.")
    return replace(which, state=which.state or NotificationState.DEAD)


class Write(Protocol):
    """Runs a function as one transaction."""

    def __call__(self, fn: Callable[[Tx], R], /) -> Awaitable[R]: ...


Act = Callable[[Tx, Sequence[CoreNotification]], int]


async def requeue_all(write: Write, which: Filter = DEAD, *, actor: str) -> int:
    """Requeue the notifications of a filter, one transaction a page. Those without a channel are skipped."""
    return await _all(write, which, "requeued", lambda tx, rows: _requeue(tx, rows, actor), actor=actor)


async def resolve_all(write: Write, which: Filter = DEAD, *, note: str, actor: str) -> int:
    _check(note)
    act: Act = lambda tx, rows: _resolve(tx, rows, note, actor)  # noqa: E731
    return await _all(write, which, "resolved", act, actor=actor, note=note)


async def _all(write: Write, which: Filter, event: Move, act: Act, *, actor: str, **facts: object) -> int:
    """Go from the newest to the oldest, so that skipped notifications are not read again."""
    total, before = 0, ""
    which = which if which.state is not None else replace(which, state=NotificationState.DEAD)

    def page(tx: Tx) -> tuple[int, str]:
        rows = notifications.page(tx, which, before=before, limit=PAGE, lock=True)
        changed = act(tx, [each for each in rows if (each.state, event) in MOVES])
        if changed:
            filtered = {name: str(value) for name, value in which.sql()[1].items()}
            journal.audit(
                tx, f"notifications_{event}", "notifications", actor=actor, number=changed, which=filtered, **facts
            )
        return changed, rows[-1].id if len(rows) == PAGE else ""

    while True:
        changed, before = await write(page)
        total += changed
        if not before:
            return total


def _requeue(tx: Tx, found: Sequence[CoreNotification], actor: str) -> int:
    if not found:
        return 0
    rows = channels.all_channels(tx)
    known = {each.name for each in rows}
    again = [each for each in found if each.channel in known]
    if again:
        notifications.requeue(tx, again, tx.now())
        ends = routing.owe_ends(tx, again, tx.now())
        routing.wake(tx, {each.channel for each in again})
        _tell(tx, [*again, *ends], "notification.requeued", actor)
    return len(again) + sum(_offer(tx, each, rows, actor) for each in found if not each.channel)


def _offer(tx: Tx, unwanted: CoreNotification, rows: Sequence[ChannelRow], actor: str) -> bool:
    """Owe the message to the channels that want it now, and resolve this notification."""
    wanted = [each for each in routing.addressed(unwanted, rows) if each.channel]
    if not wanted:
        return False
    names = ", ".join(each.channel for each in wanted)
    notifications.insert(tx, [routing.afresh(each, tx.now()) for each in wanted])
    routing.owe_ends(tx, wanted, tx.now())
    routing.wake(tx, {each.channel for each in wanted})
    _resolve(tx, [unwanted], f"sent on to {names}", actor)
    return True


def _resolve(tx: Tx, found: Sequence[CoreNotification], note: str, actor: str) -> int:
    if found:
        notifications.resolve(tx, found, note, actor)
        _tell(tx, found, "notification.resolved", actor, note=note)
    return len(found)


def _tell(tx: Tx, which: Sequence[CoreNotification], name: str, actor: str, **facts: str) -> None:
    """Record in the history what the row forgets."""
    for each in which:
        journal.event(
            tx, name, each.id, channel=each.channel, about=each.subject, by=actor, was=each.state.value,
            attempts=each.retry_count, error=each.last_error or "", reason=each.why or "", **facts,
        )  # fmt: skip


def found(tx: Tx, notification: str, *, lock: bool = False) -> CoreNotification:
    row = notifications.get(tx, notification, lock=lock)
    if row is None:
        raise NoSuchNotification(notification)
    return row


def _allowed(tx: Tx, notification: str, event: Move) -> CoreNotification:
    row = found(tx, notification, lock=True)
    if (row.state, event) not in MOVES:
        raise NotificationNotIn(row, event)
    return row


def _check(note: str) -> None:
    if not note.strip() or len(note) > _LONGEST_NOTE:
        raise NoteRefused


class NoteRefused(UserError):
    status, code = 400, "note-refused"

    def __init__(self) -> None:
        super().__init__(f"A note of 1 to {_LONGEST_NOTE} characters is needed.")
        self.hint = "Say what was done about it; the note is shown with the notification."
