"""One stream of events for all pages of a browser: only what changed, never how; the page asks again by itself."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from holdfast.pages.visit import Visit


async def follow(visit: Visit) -> Response:
    """The stream of the API, resumed after any event on any replica; each line names the event and its object."""
    last = visit.request.headers.get("last-event-id") or visit.query.get("after")
    after = int(last) if last and last.isdigit() and len(last) < 19 else None
    lines: Any = await visit.call("events.follow", after=after)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Replica": visit.frame.replica}
    return _Stream(_short(lines, visit.frame.replica), media_type="text/event-stream", headers=headers)


class _Stream(StreamingResponse):
    async def __call__(self, *args: Any) -> None:
        try:
            await super().__call__(*args)
        finally:
            await self.body_iterator.aclose()  # type: ignore[attr-defined]


async def _short(lines: AsyncIterator[str], replica: str) -> AsyncGenerator[str]:
    try:
        yield f"event: hello\ndata: {json.dumps({'replica': replica})}\n\n"
        async for text in lines:
            yield _named(text)
    finally:
        await lines.aclose()  # type: ignore[attr-defined]


def _named(text: str) -> str:
    fields = dict(line.partition(": ")[::2] for line in text.strip().split("\n"))
    if "data" not in fields:
        return text  # a pause between two tries, or a sign of life
    told = json.loads(fields["data"])
    data = json.dumps({"name": told["name"], "subject": told["subject"]})
    return f"id: {fields['id']}\ndata: {data}\n\n"
