"""What every request passes first: an id, a bound on its body, and headers that keep answers out of caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api.problems import problem

MOST: Final = 256 * 1024  # bytes of a body: a wish with a hundred names has a few thousand
# These are read by their handlers, after they know who asks.
LONG: Final = {"/desired/plan": 17 << 20, "/desired/apply": 17 << 20, "/imports/certificates": 4 << 20}


class Gate:
    def __init__(self, app: ASGIApp, new_id: Callable[[], str]) -> None:
        self._app = app
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["request_id"] = self._new_id()
        seen, most = 0, LONG.get(scope["path"].removeprefix("/api/v1"), MOST)
        ours = _no_name if _has_nul(scope) else self._app

        async def bounded() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > most:
                raise HTTPException(413, f"The body has more than {most >> 10} KiB.")  # whoever reads it hands this on
            return message

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = scope["request_id"]
                headers["X-Content-Type-Options"] = "nosniff"
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await ours(scope, bounded, marked)


def _has_nul(scope: Scope) -> bool:
    """No name has a NUL, and a database may not even be asked for it."""
    return "\0" in scope["path"] or b"%00" in scope["query_string"]


async def _no_name(scope: Scope, receive: Receive, send: Send) -> None:
    answer = problem(Request(scope), 400, "bad-request", "No address here has a NUL in it.")
    await answer(scope, receive, send)
