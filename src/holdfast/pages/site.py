"""The pages under /: their routes, and errors as pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router

from holdfast.errors import OutcomeUnknown, StoreError, TryLater, UserError
from holdfast.operations.context import Services
from holdfast.pages import acting, catalog, entry, live
from holdfast.pages.assets import Assets
from holdfast.pages.render import environment
from holdfast.pages.visit import Frame, Mistaken, Visit
from holdfast.telemetry import Log
from holdfast.web.browser import LoginNeeded, SetupNeeded, caller_of

Handler = Callable[[Visit], Awaitable[Response]]


def routes(
    services: Callable[[], Services | None],
    log: Log,
    *,
    now: Callable[[], datetime],
    replica: str,
    installation: Callable[[], str],
    facts: Callable[[], Mapping[str, str]],
    values: Callable[[], Sequence[Any]],
) -> list[BaseRoute]:
    """All pages, for the face that browsers see; the last of them answers whatever is left."""
    assets = Assets()
    frame = Frame(
        templates=environment(assets),
        assets=assets,
        services=services,
        now=now,
        log=log,
        replica=replica,
        installation=installation,
        facts=facts,
        values=values,
        built=frozenset(path for module in catalog.MODULES for path, *_ in module.PAGES),
    )
    known = [
        Route(path, _endpoint(frame, handler), methods=list(methods))
        for module in (*catalog.MODULES, acting)
        for path, handler, *methods in module.PAGES
    ]
    rest = Route("/{path:path}", _endpoint(frame, _missing), methods=["GET", "POST"])
    live_route = Route("/live", _endpoint(frame, live.follow), methods=["GET"])
    inner = Router(routes=[assets.route(), live_route, *known, rest], redirect_slashes=False)
    return [*entry.routes(frame), Mount("", GZipMiddleware(inner, minimum_size=1000))]


async def _missing(visit: Visit) -> Response:
    raise HTTPException(404)


def _endpoint(frame: Frame, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        visit: Visit | None = None
        try:
            caller = await caller_of(request, counts="x-live" not in request.headers and handler is not live.follow)
            visit = Visit(request=request, frame=frame, caller=caller)
            return await handler(visit)
        except Exception as error:  # a log-in that is needed is for the face to answer
            told = _told_of(error)
            if told is None and isinstance(error, LoginNeeded | SetupNeeded):
                raise
            if told is None:
                name = str(request.scope.get("request_id", ""))
                frame.log.error("pages.failed", exc_info=error, path=request.url.path, request=name)
                told = Told(500, "Something went wrong here.", f"It was logged as request {name}.")
            return await _answer(request, frame, visit, told)

    return endpoint


def _wants_data(request: Request) -> bool:
    return "application/json" in request.headers.get("accept", "")


# ── Errors ──


class Told(NamedTuple):
    status: int
    says: str
    hint: str
    fields: Mapping[str, str] = {}


def _told_of(error: Exception) -> Told | None:
    """An error in words; None: nobody foresaw it."""
    match error:
        case Mistaken():
            text = " ".join(f"{name}: {words}" for name, words in error.fields.items())
            return Told(422, text, "Go back and correct it.", error.fields)
        case UserError():
            return Told(error.status, str(error), error.hint)
        case OutcomeUnknown():
            return Told(503, f"The store does not answer: {error}.", "It may have happened: look before you repeat it.")
        case StoreError():
            return Told(503, f"The store does not answer: {error}.", "Try again in a few seconds.")
        case TryLater():
            return Told(503, f"{str(error).removesuffix('.')}.", "Try again, or look at that remote.")
        case HTTPException(status_code=404):
            return Told(404, "There is no such page.", "Search for it with Ctrl K, or begin at the overview.")
        case HTTPException():
            return Told(error.status_code, error.detail, "")
    return None


async def _answer(request: Request, frame: Frame, visit: Visit | None, told: Told) -> Response:
    """An error in the frame of the pages; without it where the frame itself cannot be made."""
    name = str(request.scope.get("request_id", ""))
    if _wants_data(request):
        body = {"says": told.says, "hint": told.hint, "fields": dict(told.fields), "request": name}
        return JSONResponse(body, told.status)
    context = {"status": told.status, "says": told.says, "hint": told.hint, "request_id": name}
    if visit is not None and told.status < 500:
        return await visit.show("error.html", told.status, **context)
    headers = {"Retry-After": "5"} if told.status == 503 else {}
    return HTMLResponse(frame.templates.get_template("bare_error.html").render(**context), told.status, headers)
