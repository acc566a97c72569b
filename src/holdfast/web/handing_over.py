"""Bundles for targets that fetch by themselves: /handover/{token}, once; /pull, for Caddy's `get_certificate http`."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from holdfast.core.client import client_address, networks
from holdfast.errors import KeyMissing, KeyUnusable, StoreError
from holdfast.operations.deployment import fetching
from holdfast.operations.deployment.fetching import Fetched
from holdfast.operations.installation.secret_store import SecretStore

TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_NEVER_KEPT: Final = {"Cache-Control": "no-store"}
_LONGEST: Final = 253  # characters of a server name
_Answer = Callable[[Request], Awaitable[Response]]


def routes(store: Callable[[], SecretStore], proxies: Sequence[str] = ()) -> list[Route]:
    """`store` raises StoreUnavailable until the keys are there."""
    known = networks(proxies)

    def asker(request: Request) -> str:
        peer = request.client.host if request.client else ""
        return client_address(peer, request.headers.getlist("x-forwarded-for"), known)

    async def handover(request: Request) -> Response:
        token = str(request.path_params["token"])
        found = await fetching.once(store(), token, by=asker(request)) if TOKEN.fullmatch(token) else None
        if found is None:
            return PlainTextResponse("There is nothing to fetch here, or it was fetched before.\n", 404)
        return JSONResponse(_told(found), headers=_NEVER_KEPT)

    async def pull(request: Request) -> Response:
        name, token = _credentials(request.headers.get("authorization", ""))
        target = await fetching.known_target(store(), name, token) if name and token else None
        if target is None:
            asked = {"WWW-Authenticate": 'Basic realm="targets of Holdfast"'}
            return PlainTextResponse("Show the name of the target and its token.\n", 401, headers=asked)
        server_name = request.query_params.get("server_name", "")[: _LONGEST + 1].lower()
        found = await fetching.offered(store(), target, server_name, by=asker(request))
        if found is None:
            return Response(status_code=204, headers=_NEVER_KEPT)
        content = found.chain.encode() + found.key.reveal()
        return Response(content, media_type="application/x-pem-file", headers=_NEVER_KEPT)

    return [Route("/handover/{token}", _careful(handover)), Route("/pull", _careful(pull))]


def _careful(answer: _Answer) -> _Answer:
    async def careful(request: Request) -> Response:
        if request.method != "GET":  # a HEAD would spend a token for nothing
            return PlainTextResponse("Only GET is answered here.\n", 405, headers={"Allow": "GET"})
        try:
            return await answer(request)
        except (StoreError, KeyMissing, KeyUnusable):
            return PlainTextResponse("The store cannot be asked now.\n", 503, headers={"Retry-After": "5"})

    return careful


def _credentials(header: str) -> tuple[str, str]:
    """Of Basic authentication (RFC 7617); Caddy makes it of the user and password in its URL."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic" or len(encoded) > 2000:
        return "", ""
    try:
        name, _, token = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return name, token


def _told(found: Fetched) -> dict[str, object]:
    return {
        "certificate": found.certificate,
        "number": found.number,
        "serial": found.serial,
        "not_after": found.not_after.isoformat(),
        "fullchain": found.chain,
        "private_key": found.key.reveal().decode(),
    }
