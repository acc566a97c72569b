"""/events, as pages or as a stream that resumes anywhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.api import render, shapes
from holdfast.api.call import BadHeader, Call, Caller
from holdfast.api.certificates import Limit
from holdfast.errors import UserError
from holdfast.operations import inventory, watching
from holdfast.operations.access import Action

router = APIRouter()
STREAMS: Final = 20  # of one token at once: each reads the store several times a second
STREAM: Final = "text/event-stream"
EVENTS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "A page, or a stream (server-sent events)",
        "content": {STREAM: {"schema": {"type": "string"}}},
    }
}
Subject = Annotated[str | None, Query(max_length=300, description="Only about this certificate, CA, job or token.")]


@router.get("/events", tags=["events"], responses=EVENTS, response_model=shapes.EventPage)
async def events(
    call: Caller,
    after: Annotated[int | None, Query(ge=0, lt=2**63, description="The id of the last event that is known.")] = None,
    subject: Subject = None,
    limit: Limit = 100,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response | shapes.EventPage:
    """What happened, the oldest first. With Accept: text/event-stream, a stream from Last-Event-ID on, or from now."""
    who = call.principal
    call.demand_somewhere(Action.SEE)
    if STREAM in accept:
        start = await _start(call, last_event_id, after)
        return Counted(_stream(call, start, subject), call.request.app.state.streams, who.id)
    found, end = await inventory.events(call.keeper, who, after=after or 0, subject=subject, limit=limit)
    return shapes.EventPage(items=[render.event(each) for each in found], next=end)


class TooManyStreams(UserError):
    status, code = 429, "too-many-streams"
    hint = "Close one, or let several listeners share it; pages of /events are always answered."
    after = 5.0  # seconds

    def __init__(self) -> None:
        super().__init__(f"This token follows {STREAMS} streams of events already.")


class Counted(StreamingResponse):
    """A stream that counts for its token from the moment it is promised until it has ended, however that is."""

    def __init__(self, content: AsyncIterator[str], streams: Counter[str], who: str) -> None:
        super().__init__(content, media_type=STREAM)
        if streams[who] >= STREAMS:
            raise TooManyStreams
        streams[who] += 1
        self._streams, self._who = streams, who

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams[self._who] -= 1
            if not self._streams[self._who]:
                del self._streams[self._who]


async def _start(call: Call, last: str | None, after: int | None) -> int:
    if last is None:
        return await inventory.newest_event(call.keeper) if after is None else after
    if not last.isascii() or not last.isdigit() or len(last) > 18:
        raise BadHeader("Last-Event-ID is the number of an event.")
    return int(last)


async def _stream(call: Call, after: int, subject: str | None) -> AsyncIterator[str]:
    yield "retry: 2000\n\n"  # and the headers leave at once
    async for event in watching.follow(call.front, call.principal, after=after, subject=subject):
        if event is None:
            yield ": still here\n\n"
        else:
            shown = json.dumps(render.event(event).model_dump(mode="json"))
            yield f"id: {event.id}\nevent: {event.name}\ndata: {shown}\n\n"
