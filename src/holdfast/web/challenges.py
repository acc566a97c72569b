"""Proofs for CAs elsewhere: /.well-known/acme-challenge/{token}, answered by any replica from the store."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from holdfast.errors import StoreError

Find = Callable[[str], Awaitable[str | None]]  # by the token; StoreError if it cannot look
TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,512}")


def routes(find: Find) -> list[Route]:
    async def proof(request: Request) -> Response:
        token = request.path_params["token"]
        try:
            found = await find(token) if TOKEN.fullmatch(token) else None
        except StoreError:
            return PlainTextResponse("The store cannot be asked now.\n", 503, headers={"Retry-After": "1"})
        if found is None:
            return PlainTextResponse("There is no such proof.\n", 404)
        return Response(found, media_type="application/octet-stream", headers={"Cache-Control": "no-store"})

    return [Route("/.well-known/acme-challenge/{token}", proof)]
