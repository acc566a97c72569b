"""The API under /api/v1: a route for each declared operation, the OpenAPI document, and the limits of requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api import endpoint, openapi, problems
from holdfast.api.caller import Throttle
from holdfast.api.problems import problem
from holdfast.core.client import networks
from holdfast.operations import catalog
from holdfast.operations.context import Services
from holdfast.operations.operation import by_path
from holdfast.telemetry import Log

Opened = Callable[[], Services | None]  # None until the store, the schema and the keys are there


def site(
    services: Opened,
    log: Log,
    *,
    new_id: Callable[[], str],
    now: Callable[[], datetime],
    local: bool = False,
    proxies: Sequence[str] = (),
) -> Starlette:
    """`local`: on a socket that only our user can open, the user that a command names is believed.

    `proxies` are networks whose word about the client's address is taken.
    """
    routes = [endpoint.route(each) for each in sorted(catalog.declared(), key=by_path)]
    app = Starlette(routes=[*routes, Route("/openapi.json", _document, methods=["GET"])])
    app.router.redirect_slashes = False  # it would be to an address made of what the client calls us
    app.state.services, app.state.local, app.state.throttle = services, local, Throttle()
    app.state.proxies, app.state.now = networks(proxies), now
    problems.install(app, log)
    app.add_middleware(Gate, new_id=new_id)
    return app


async def _document(request: Request) -> Response:
    return JSONResponse(openapi.whole())


def mount(services: Opened, log: Log, **manner: Any) -> Mount:
    """The same under its address; `manner` as for `site`."""
    mounted = Mount("/api/v1", site(services, log, **manner))
    mounted.path_regex = re.compile(r"^/api/v1/(?P<path>.*)$", re.DOTALL)  # a path with a line break is ours to refuse
    return mounted


MOST: Final = 256 * 1024  # bytes of a body: a certificate with a hundred names has a few thousand
# These are read by their handlers, after they know who asks.
LONG: Final = {"/documents/plan": 17 << 20, "/documents/apply": 17 << 20, "/imports/certificates": 4 << 20}


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
                raise HTTPException(413, f"The body has more than {most >> 10} KiB.")
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
