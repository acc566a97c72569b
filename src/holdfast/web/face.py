"""The pages for browsers, as one application: who a browser is, errors as pages, and the guard around all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount

from holdfast.core.client import networks
from holdfast.core.public_address import PublicAddress
from holdfast.errors import StoreError, UserError
from holdfast.operations.context import Services
from holdfast.operations.people.provider import OUT
from holdfast.telemetry import Log
from holdfast.web.browser import LoginNeeded, SetupNeeded, WebFace, to_login, to_setup
from holdfast.web.guard import Guard
from holdfast.web.plain_page import page


def mount(
    services: Callable[[], Services | None],
    log: Log,
    *,
    address: PublicAddress,
    new_id: Callable[[], str],
    proxies: Sequence[str] = (),
    pages: Sequence[BaseRoute],
) -> Mount:
    """`proxies` are networks whose word about the client's address is taken."""
    app = Starlette(routes=[*pages])
    app.router.redirect_slashes = False  # it would be to an address made of what the client calls us
    app.state.face = WebFace(services=services, address=address, proxies=networks(proxies))
    _answer_errors(app, log)
    return Mount("/", Guard(app, address, new_id, open_to_others=frozenset({OUT})))


def _answer_errors(app: Starlette, log: Log) -> None:
    async def of_user(request: Request, error: Exception) -> Response:
        status = getattr(error, "status", 500)
        return _error(request, status, str(error), getattr(error, "hint", ""))

    async def of_store(request: Request, error: Exception) -> Response:
        return _error(request, 503, f"The store cannot answer now: {error}.", "Try again.")

    async def of_http(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 500)
        text = "There is no such page." if status == 404 else str(getattr(error, "detail", error))
        return _error(request, status, text, "")

    async def of_bug(request: Request, error: Exception) -> Response:
        log.error("web.failed", request=str(request.scope.get("request_id", "")), exc_info=error)
        return _error(request, 500, "An error of Holdfast prevented this.", "Its log has more, under the request id.")

    async def unknown(request: Request, error: Exception) -> Response:
        return to_login(request)

    async def unfinished(request: Request, error: Exception) -> Response:
        return to_setup(request)

    handlers = {UserError: of_user, StoreError: of_store, HTTPException: of_http, Exception: of_bug}
    for kind, handler in (handlers | {LoginNeeded: unknown, SetupNeeded: unfinished}).items():
        app.add_exception_handler(kind, handler)


def _error(request: Request, status: int, text: str, hint: str) -> Response:
    request_id = str(request.scope.get("request_id", ""))
    return page(f"Error {status}", f"<p>{escape(text)}</p><p>{escape(hint)}</p><p>{escape(request_id)}</p>", status)
