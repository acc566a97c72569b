"""CRLs and certificates of our CAs, at the addresses that certificates name: /pki/{ca}/{file}, over plain HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from holdfast.errors import StoreError
from holdfast.operations.publishing import Published

Fetch = Callable[[str, str], Awaitable[Published | None]]  # CA and name of the file; StoreError if it cannot look


def routes(fetch: Fetch) -> list[Route]:
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
