"""/notifications: what people were told or are still owed; send again, or settle with a note."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.convertors import StringConvertor, register_url_convertor

from holdfast.api import notice_shapes as shapes
from holdfast.api import render
from holdfast.api.call import Call, Caller, Changer, Repeater
from holdfast.api.certificates import BadFilter, Cursor, Limit
from holdfast.api.shapes import Page
from holdfast.core.notice import Severity, State
from holdfast.operations import notice_access, notices
from holdfast.operations.access import Action
from holdfast.operations.inventory import anywhere
from holdfast.operations.issuing import Keeper
from holdfast.operations.notice_access import Filter, on_notice

router = APIRouter(prefix="/notifications", tags=["notifications"])


class _One(StringConvertor):
    """Any id; not the words that stand for many, so that each address has its own methods, and names no other's."""

    regex = "(?!(?:requeue|resolve)$)[^/]+"


register_url_convertor("one", _One())
Id = Annotated[str, Path(max_length=100)]
Word = Annotated[str | None, Query(max_length=253)]


# ── Looking ──


@router.get("")
async def listed(
    call: Caller,
    state: shapes.StateName | None = None,
    channel: Word = None,
    severity: shapes.SeverityName | None = None,
    event: Word = None,
    subject: Annotated[str | None, Query(max_length=300, description="A certificate, CA or channel.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Page[shapes.Notification]:
    """All that the asker may see, the newest first."""
    call.demand_somewhere(Action.SEE_NOTICES)
    asked = shapes.NotificationFilter.model_construct(
        state=state, channel=channel, severity=severity, event=event, subject=subject
    )
    place = render.place(cursor, str)
    found = await notices.page(
        call.keeper, await _which(call, asked), before="" if place is None else place[0], limit=limit
    )
    items = [shapes.notification(each) for each in notice_access.visible(call.principal, found)]
    end = (found[-1].id,) if len(found) == limit else None
    return Page[shapes.Notification](items=items, next=render.cursor(end))


async def _which(call: Call, asked: shapes.NotificationFilter) -> Filter:
    return Filter(
        state=None if asked.state is None else State(asked.state),
        channel=asked.channel,
        severity=None if asked.severity is None else Severity(asked.severity),
        event=asked.event,
        subject=None if asked.subject is None else await notice_access.subject_of(call.keeper, asked.subject),
    )


@router.get("/summary")
async def summary(call: Caller) -> shapes.NotificationSummary:
    """How many there are in which state, over all channels."""
    call.demand(Action.SEE_NOTICES)
    found = await notices.summary(call.keeper)
    return shapes.NotificationSummary(
        by_state=dict(found.by_state),
        by_channel={channel: dict(each) for channel, each in found.by_channel.items()},
        dead=found.dead,
        oldest_waiting=dict(found.oldest_waiting),
    )


@router.get("/{notice:one}")
async def get(call: Caller, notice: Id) -> shapes.NotificationInFull:
    """One of them, with its history: what a requeue cleared is still there."""
    keeper = call.looking(on_notice(call.principal, Action.SEE_NOTICES, notice))
    found = await notices.get(keeper, notice)
    return shapes.in_full(found, [render.event(each) for each in await notices.history(keeper, notice)])


# ── Acting ──


@router.post("/{notice:one}/requeue")
async def requeue(call: Changer, notice: Id) -> shapes.Notification:
    """It is pending, with all its attempts; whatever it was before is in its history."""
    return await _changed(call, notice, lambda keeper: notices.requeue(keeper, notice, actor=call.actor))


@router.post("/{notice:one}/resolve")
async def resolve(call: Changer, notice: Id, asked: shapes.Settled) -> shapes.Notification:
    """Somebody has dealt with it, and says how. It is not sent any more."""
    return await _changed(
        call, notice, lambda keeper: notices.resolve(keeper, notice, note=asked.note, actor=call.actor)
    )


async def _changed(call: Call, notice: str, verb: Callable[[Keeper], Awaitable[Any]]) -> shapes.Notification:
    reply = await call.change(
        verb,
        check=on_notice(call.principal, Action.CHANGE_NOTICES, notice),
        render=lambda tx, made: shapes.notification(made).model_dump(mode="json"),
    )
    return shapes.Notification.model_validate(reply)


@router.post("/requeue")
async def requeue_many(call: Repeater, asked: shapes.NotificationFilter) -> shapes.Changed:
    """All dead ones, or those of a filter. Repeating it is harmless, so an Idempotency-Key is not kept here."""
    which = await _many(call, asked)
    keeper = call.doing(anywhere(call.principal, Action.CHANGE_NOTICES))
    return shapes.Changed(number=await notices.requeue_all(keeper, which, actor=call.actor))


@router.post("/resolve")
async def resolve_many(call: Repeater, asked: shapes.ManySettled) -> shapes.Changed:
    """All dead ones, or those of a filter. Repeating it is harmless, so an Idempotency-Key is not kept here."""
    which = await _many(call, asked)
    keeper = call.doing(anywhere(call.principal, Action.CHANGE_NOTICES))
    return shapes.Changed(number=await notices.resolve_all(keeper, which, note=asked.note, actor=call.actor))


async def _many(call: Call, asked: shapes.NotificationFilter) -> Filter:
    """Dead ones, unless another state is named: nobody means to send again all that was ever sent.

    Whoever is confined would have to name each: a filter goes over what belongs to all.
    """
    call.demand(Action.CHANGE_NOTICES)
    which = await _which(call, asked)
    if which == Filter() and not asked.all:
        raise BadFilter("Say which: state, channel, severity, event or subject; or all that are dead.")
    return replace(which, state=which.state or State.DEAD)
