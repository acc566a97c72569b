"""Sites over plain HTTP: http-01 challenge responses, CRLs and certificates of our CAs, probes and metrics."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast import __version__
from holdfast.core.client import ProxyNetwork, is_known_host, networks
from holdfast.errors import StoreError
from holdfast.operations.own_ca.publication import Published
from holdfast.telemetry import Health

# ── http-01 challenge responses ──
# Challenge responses for upstream CAs: /.well-known/acme-challenge/{token}, answered by any replica from the store.


FindResponse = Callable[[str], Awaitable[str | None]]  # by the token; StoreError if it cannot look
TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,512}")


def challenge_routes(find: FindResponse) -> list[Route]:
    async def response(request: Request) -> Response:
        token = request.path_params["token"]
        try:
            found = await find(token) if TOKEN.fullmatch(token) else None
        except StoreError:
            return PlainTextResponse("The store cannot be asked now.\n", 503, headers={"Retry-After": "1"})
        if found is None:
            return PlainTextResponse("There is no such challenge response.\n", 404)
        return Response(found, media_type="application/octet-stream", headers={"Cache-Control": "no-store"})

    return [Route("/.well-known/acme-challenge/{token}", response)]


# ── CRLs and CA certificates ──
# At the addresses that certificates name: /pki/{ca}/{file}, over plain HTTP.


FetchPublished = Callable[
    [str, str], Awaitable[Published | None]
]  # CA and name of the file; StoreError if it cannot look


def published_routes(fetch: FetchPublished) -> list[Route]:
    async def published(request: Request) -> Response:
        try:
            found = await fetch(request.path_params["ca"], request.path_params["name"])
        except StoreError:
            return PlainTextResponse("The store cannot be asked now.\n", 503, headers={"Retry-After": "5"})
        if found is None:
            return PlainTextResponse("There is no such file.\n", 404)
        headers = {"ETag": f'"{found.tag}"', "Cache-Control": f"public, max-age={found.fresh_for}, no-transform"}
        if _has(request, headers["ETag"]):
            return Response(status_code=304, headers=headers)
        return Response(found.content, media_type=found.media_type, headers=headers)

    return [Route("/pki/{ca}/{name}", published)]


def _has(request: Request, tag: str) -> bool:
    """Whether the client holds this version already (RFC 9110 §13.1.2)."""
    asked = request.headers.get("if-none-match", "")
    return asked.strip() == "*" or tag in [each.strip().removeprefix("W/") for each in asked.split(",")]


# ── Probes and metrics ──
# /health/live, /health/ready, /health/startup, /metrics.


Refresh = Callable[[], Awaitable[None]]  # brings health up to date before it is shown


class OnlyKnownHosts:
    """Answers to anybody, for a request that names a host of ours: a page that has its own name lead to this machine
    (DNS rebinding) gets nothing. Only requests of this machine are looked at; a trusted proxy has its own names.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str], proxies: tuple[ProxyNetwork, ...]) -> None:
        self._app, self._hosts, self._proxies = app, hosts, proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        peer = scope["client"][0] if scope.get("client") else ""
        host = Headers(scope=scope).get("host", "")
        refused = scope["path"].startswith(OPEN_TO_ALL) and not is_known_host(peer, host, self._hosts, self._proxies)
        answer = PlainTextResponse("This server has another name.\n", 421) if refused else self._app
        await answer(scope, receive, send)


OPEN_TO_ALL: Final = ("/metrics", "/health/ready", "/health/startup")  # /health/live says only that it answers


def plain_site(
    health: Health,
    *,
    look: Refresh,
    scrape: Callable[[], Awaitable[bytes]],
    more: Sequence[BaseRoute] = (),
    hosts: Iterable[str] = (),
    proxies: Sequence[str] = (),
) -> Starlette:
    """The site without TLS: probes, metrics, and `more`. `hosts`: names of ours, besides those of the machine."""
    known = Middleware(OnlyKnownHosts, hosts=frozenset(each.lower() for each in hosts), proxies=networks(proxies))

    async def live(request: Request) -> Response:
        """The process answers: nothing else is asked, least of all the database."""
        return JSONResponse({"status": "live", "version": __version__})

    async def ready(request: Request) -> Response:
        await look()
        problem = health.readiness()
        if problem:
            return JSONResponse({"status": "not ready", "reason": problem}, 503, headers={"Retry-After": "5"})
        return JSONResponse({"status": "ready"})

    async def startup(request: Request) -> Response:
        return JSONResponse(health.startup(), 200 if health.started else 503)

    async def shown_metrics(request: Request) -> Response:
        return Response(await scrape(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return Starlette(
        routes=[
            Route("/health/live", live),
            Route("/health/ready", ready),
            Route("/health/startup", startup),
            Route("/metrics", shown_metrics),
            *more,
        ],
        middleware=[known],
    )
