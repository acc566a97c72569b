"""Snoozing: one thing that needs a person is put off until a time, for the asker alone, with the reason."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Final

from pydantic import BaseModel, Field

from holdfast.core.personal import Snooze, key_of
from holdfast.errors import UserError
from holdfast.operations.access import Action
from holdfast.operations.context import Context
from holdfast.operations.inputs import Input, NoteText, Option, from_row
from holdfast.operations.installation import attention
from holdfast.operations.installation.attention import AttentionItem, What
from holdfast.operations.operation import operation
from holdfast.operations.scopes import VISIBLE
from holdfast.store import journal, personal
from holdfast.store.tx import Tx

LONGEST: Final = timedelta(days=30)


class NothingToSnooze(UserError):
    status, code = 404, "nothing-to-snooze"

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"Nothing of this kind needs you now: {what} {name}".rstrip() + ".")
        self.hint = "See what does: holdfast attention"


class NotSnoozed(UserError):
    status, code = 404, "not-snoozed"

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"You did not snooze it, or the snooze is over: {what} {name}".rstrip() + ".")
        self.hint = "See what needs you: holdfast attention"


class SnoozeRef(Input):
    what: Annotated[What, Option(argument=True, metavar="KIND")] = Field(
        description="As the list calls it: certificate, endpoint, issuer, approvals, dead-letters or paused."
    )
    name: Annotated[str, Option(argument=True, metavar="[NAME]")] = Field(
        default="", max_length=300, description="The certificate, endpoint or issuer; empty for the others."
    )


class NewSnooze(SnoozeRef):
    for_s: Annotated[float, Option(flag="--for", read="duration")] = Field(
        default=86_400.0, ge=60, le=LONGEST.total_seconds(), description="How long it is put off, at most 30 days."
    )
    why: NoteText = Field(min_length=1, description="The reason, for the audit log and for yourself.")


class SnoozeView(BaseModel):
    what: str
    name: str
    why: str
    at: datetime
    until: datetime


@operation(
    "attention.snooze",
    "POST /attention/snooze",
    command="snooze",
    action=Action.CHANGE_SELF,
    scope=VISIBLE,
    example="holdfast snooze certificate www.example.com --for 2d --why 'The owner is on it.'",
    done="It is put off until {until}, or until it gets worse. Only your list is changed.",
)
def snooze(tx: Tx, ctx: Context, asked: NewSnooze) -> SnoozeView:
    """Put off one thing that needs you. It comes back at the time, or when it gets worse; others still see it."""
    found = _found(tx, ctx, asked)
    what, name = key_of(asked.what, asked.name)
    now = tx.now()
    made = Snooze(
        actor=ctx.actor,
        what=what,
        name=name,
        standing=found.standing,
        number=found.number,
        why=asked.why,
        at=now,
        until=now + timedelta(seconds=asked.for_s),
    )
    personal.put_snooze(tx, made)
    journal.audit(tx, "attention_snoozed", name or what, actor=ctx.actor, what=what, why=asked.why,
                  until=made.until.isoformat())  # fmt: skip
    return from_row(SnoozeView, made)


def _found(tx: Tx, ctx: Context, asked: SnoozeRef) -> AttentionItem:
    wanted = key_of(asked.what, asked.name)
    for each in attention.everything(tx, ctx.principal).items:
        if key_of(each.what, each.name) == wanted:
            return each
    raise NothingToSnooze(asked.what, asked.name)


@operation(
    "attention.wake",
    "POST /attention/wake",
    command="wake",
    action=Action.CHANGE_SELF,
    scope=VISIBLE,
    example="holdfast wake certificate www.example.com",
    done="It is on your list again.",
)
def wake(tx: Tx, ctx: Context, asked: SnoozeRef) -> SnoozeView:
    """Undo a snooze of yours: what it put off is on your list again."""
    what, name = key_of(asked.what, asked.name)
    held = personal.snoozes_of(tx, ctx.actor).get((what, name))
    if held is None or not personal.drop_snooze(tx, ctx.actor, what, name):
        raise NotSnoozed(asked.what, asked.name)
    journal.audit(tx, "attention_woken", name or what, actor=ctx.actor, what=what)
    return from_row(SnoozeView, held)
