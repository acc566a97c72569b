"""For commands on this machine, over a socket that only our user can open: POST /local with a verb and its arguments.

While a server runs on SQLite it alone holds the database, so a command asks it instead of opening the file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from holdfast.errors import StoreError, TryLater, UserError
from holdfast.telemetry import Log

Do = Callable[[str, Mapping[str, Any], str], Awaitable[Any]]  # verb, arguments, actor


def site(do: Do, log: Log, more: Sequence[BaseRoute] = ()) -> Starlette:
    async def local(request: Request) -> Response:
        try:
            asked = await request.json()
            verb, args, actor = str(asked["verb"]), dict(asked["args"]), f"local:{asked['user']}"
        except (ValueError, KeyError, TypeError):
            return _error(400, "bad-request", "This is not a request of this version's command.", "")
        try:
            return JSONResponse({"result": await do(verb, args, actor)})
        except UserError as error:
            return _error(error.status, error.code, str(error), error.hint)
        except StoreError as error:
            return _error(503, "store-unavailable", f"The store cannot be used now: {error}.", "Try again.")
        except TryLater as error:
            return _error(503, "try-later", f"{str(error).removesuffix('.')}.", "Try again, or look at what is named.")
        except Exception as error:
            log.error("local.failed", exc_info=error)
            return _error(500, "internal", "Something went wrong in the server, which logged it.", "")

    return Starlette(routes=[Route("/local", local, methods=["POST"]), *more])


def _error(status: int, code: str, message: str, hint: str) -> Response:
    return JSONResponse({"error": {"status": status, "code": code, "message": message, "hint": hint}}, status)
