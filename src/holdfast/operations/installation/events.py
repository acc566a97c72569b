"""Events: what happened, as pages or as a stream that resumes after any event, on any replica."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, Field

from holdfast.core.journal import Event as Happened
from holdfast.errors import UserError
from holdfast.operations.access import Action, Owned, Principal
from holdfast.operations.certificates import refs
from holdfast.operations.certificates.refs import meant_by
from holdfast.operations.context import Context, TextStream
from holdfast.operations.inputs import Input, PageLimit
from holdfast.operations.installation.tokens import Unauthenticated
from holdfast.operations.issuance.issuances import watching
from holdfast.operations.operation import Face, operation
from holdfast.operations.people import sessions
from holdfast.operations.scopes import VISIBLE
from holdfast.store import inventory, journal, subjects
from holdfast.store.tx import Tx

STREAMS: Final = 20  # of one token at once: each reads the store several times a second
SIGN_OF_LIFE: Final = 15.0  # seconds; proxies cut lines that are silent
_AT_ONCE: Final = 200  # events read for a stream in one transaction


class TooManyStreams(UserError):
    status, code = 429, "too-many-streams"
    hint = "Close one, or let several listeners share it; pages of /events are always answered."
    after = 5.0  # seconds

    def __init__(self) -> None:
        super().__init__(f"This token follows {STREAMS} streams of events already.")


class BadEventId(UserError):
    code, hint = "bad-header", "Send the id of the last event that came, or leave the header out."

    def __init__(self) -> None:
        super().__init__("Last-Event-ID is the number of an event.")


class _About(Input):
    subject: str | None = Field(
        default=None, max_length=300, description="Only about this certificate, issuer, job or token."
    )


class EventQuery(_About):
    after: int = Field(default=0, ge=0, lt=2**63, description="The id of the last event that is known.")
    newest: bool = Field(default=False, description="The newest ones instead of those after an id.")
    limit: PageLimit = 100


class EventStream(_About):
    after: int | None = Field(
        default=None, ge=0, lt=2**63, description="The id of the last event that is known; left out: begin now."
    )
    last_event_id: str | None = Field(
        default=None,
        max_length=100,
        description="Instead of `after`, as clients of server-sent events give it when they come back.",
        json_schema_extra={"header": "last-event-id"},
    )


class EventView(BaseModel):
    id: int
    at: datetime
    name: str
    subject: str
    about: str = Field(default="", description="The name of the certificate, or else the subject.")
    job: str
    details: dict[str, Any]


class EventPage(BaseModel):
    items: list[EventView]
    next: int = Field(description="Go on with after=this.")


def shown(row: Happened, names: Mapping[str, str]) -> EventView:
    """`names`: of certificates, by id."""
    about = names.get(row.subject, row.subject)
    return EventView(
        id=row.id, at=row.at, name=row.name, subject=row.subject, about=about, job=row.job, details=dict(row.details)
    )


@operation(
    "events.list",
    "GET /events",
    command="events",
    action=Action.SEE,
    scope=VISIBLE,
    example="holdfast events www.example.com",
)
def list_events(tx: Tx, ctx: Context, asked: EventQuery) -> EventPage:
    """List events after an id, or the newest; the oldest of them first."""
    found, end = _page(tx, ctx, after=None if asked.newest else asked.after, subject=asked.subject, limit=asked.limit)
    return EventPage(items=found, next=end)


def _page(tx: Tx, ctx: Context, *, after: int | None, subject: str | None, limit: int) -> tuple[list[EventView], int]:
    """The next events that the asker may see, and the id to go on from, which may be later than the last one shown.

    A stream asks again and again, with a token or a session that may have been ended meanwhile.
    """
    principal = ctx.principal
    sessions.check_still_good(tx, principal, ctx.services.people)
    about = None if subject is None else _subject(tx, principal, subject)
    if about == _HIDDEN:
        return [], after or 0
    if after is None:
        found = journal.newest_events(tx, subject=about, limit=limit)
    else:
        found = journal.events_after(tx, after, subject=about, limit=limit)
    seen = refs.visible(tx, principal, found, [each.subject for each in found])
    names = subjects.names_of(tx, [each.subject for each in seen])
    return [shown(each, names) for each in seen], found[-1].id if found else after or 0


_HIDDEN: Final = ""  # no event is about it


def _subject(tx: Tx, principal: Principal, ref: str) -> str:
    """Certificates may be named as people name them; other subjects by their ids. A hidden one has no events."""
    found = meant_by(tx, ref)  # a stream asks this again and again: nothing more is looked up
    if len(found) != 1:
        return ref
    return found[0].id if refs.sees(principal, Owned.of(found[0])) else _HIDDEN


@operation(
    "events.follow",
    "GET /events/stream",
    command="events",
    action=Action.SEE,
    scope=VISIBLE,
    media="text/event-stream",
    example="holdfast events --follow",
    not_on={Face.MCP: "A tool answers once: an assistant reads pages of events instead."},
)
async def follow(ctx: Context, asked: EventStream) -> TextStream:
    """Follow events as they happen, as server-sent events.

    The stream begins after Last-Event-ID or `after`, or now. It ends with the token that it was opened with, and when
    its replica stops: the client then goes on at another one.
    """
    after = await _start(ctx, asked)
    streams, who = ctx.services.streams, ctx.principal.id
    if streams[who] >= STREAMS:
        raise TooManyStreams
    streams[who] += 1

    def ended() -> None:
        streams[who] -= 1
        if not streams[who]:
            del streams[who]

    return _Counted(_lines(ctx, after, asked.subject), ended)


async def _start(ctx: Context, asked: EventStream) -> int:
    last = asked.last_event_id
    if last is None:
        return await ctx.read(inventory.newest_event) if asked.after is None else asked.after
    if not last.isascii() or not last.isdigit() or len(last) > 18:
        raise BadEventId
    return int(last)


class _Counted(AsyncIterator[str]):
    """A stream that counts for its token until it is closed, whether or not its first line was ever read."""

    def __init__(self, lines: AsyncGenerator[str], ended: Callable[[], None]) -> None:
        self._lines, self._ended = lines, ended

    async def __anext__(self) -> str:
        return await anext(self._lines)

    async def aclose(self) -> None:
        ended, self._ended = self._ended, lambda: None
        ended()
        await self._lines.aclose()


async def _lines(ctx: Context, after: int, subject: str | None) -> AsyncGenerator[str]:
    yield "retry: 2000\n\n"  # and the headers leave at once
    loop, services = asyncio.get_running_loop(), ctx.services
    db, spoken = services.certificate_context.db, loop.time()
    with watching(db) as worth_a_look:
        while not services.leaving():
            start = after
            try:
                page, after = await db.read(
                    lambda tx, start=start: _page(tx, ctx, after=start, subject=subject, limit=_AT_ONCE)  # type: ignore[misc]
                )
            except Unauthenticated:
                return
            for event in page:
                yield f"id: {event.id}\nevent: {event.name}\ndata: {_json(event)}\n\n"
            if page:
                spoken = loop.time()
                continue
            if loop.time() - spoken > SIGN_OF_LIFE:
                spoken = loop.time()
                yield ": still here\n\n"
            await worth_a_look()


def _json(event: EventView) -> str:
    return json.dumps(event.model_dump(mode="json"))
