"""Errors become answers here: problem+json (RFC 9457) with a code, whether to try again, and mistakes by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from math import ceil
from typing import Any, Final

from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from holdfast.api.codes import doc
from holdfast.errors import OutcomeUnknown, StoreError, StoreUnfit, TryLater, UserError
from holdfast.operations.certificates.lifecycle import Stale
from holdfast.operations.mistakes import place, words
from holdfast.telemetry import Log

JsonObject = dict[str, Any]

MEDIA_TYPE: Final = "application/problem+json"
METHODS: Final = ("DELETE", "GET", "PATCH", "POST", "PUT")
SOON: Final = 5.0  # seconds


class Mistake(BaseModel):
    pointer: str = Field(description="Where in the request, as a JSON pointer.")
    detail: str


class Problem(BaseModel):
    """What went wrong, for programs and for people."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str = Field(description="Stable: programs decide by it.")
    hint: str = ""
    retryable: bool = Field(description="Whether the same request may succeed later.")
    retry_at: datetime | None = Field(default=None, description="From then on it is worth another try.")
    doc: str = Field(description="Where the code is explained.")
    request_id: str
    errors: list[Mistake] = []


TITLES: Final = {
    400: "Bad request", 401: "Not authenticated", 403: "Forbidden", 404: "Not found", 405: "Method not allowed",
    409: "Conflict", 412: "Changed since", 413: "Too large", 415: "Unsupported media type", 422: "Not acceptable",
    428: "Precondition required", 429: "Too many requests", 500: "Internal error", 503: "Unavailable",
}  # fmt: skip
# Where the framework refuses, and says nothing that helps.
_PLAINLY: Final = {
    400: "The body cannot be read as JSON in UTF-8.",
    404: "There is no such address here; none ends with a slash.",
    405: "This address is there, and cannot be asked that way.",
}
# What any route may answer.
STATUSES: Final = (400, 401, 403, 404, 405, 409, 412, 413, 415, 422, 428, 429, 500, 503)


def problem(
    request: Request,
    status: int,
    code: str,
    detail: str,
    *,
    hint: str = "",
    after: float | None = None,
    errors: list[Mistake] | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """`after`: in so many seconds the same request may succeed; None: it never will by itself."""
    body = Problem(
        title=TITLES.get(status, "Error"),
        status=status,
        code=code,
        detail=detail,
        hint=hint,
        retryable=after is not None,
        retry_at=None if after is None else _now(request) + timedelta(seconds=after),
        doc=doc(code),
        request_id=str(request.scope.get("request_id", "")),
        errors=errors or [],
    )
    waiting = {} if after is None else {"Retry-After": str(ceil(after))}
    return JSONResponse(
        body.model_dump(mode="json"), status, headers={**(headers or {}), **waiting}, media_type=MEDIA_TYPE
    )


def _now(request: Request) -> datetime:
    now: datetime = request.app.state.now()
    return now


def install(app: Starlette, log: Log) -> None:
    async def of_user(request: Request, error: Exception) -> Response:
        if not isinstance(error, UserError):
            raise error
        headers = {"WWW-Authenticate": 'Bearer realm="holdfast"'} if error.status == 401 else None
        after = getattr(error, "after", SOON) if error.status in (429, 503) else None
        hint = error.hint or f"What it means, and what to do: {doc(error.code)}"
        return problem(request, error.status, error.code, str(error), hint=hint, after=after, headers=headers)

    async def stale(request: Request, error: Exception) -> Response:
        return problem(request, 412, "stale", str(error), hint=getattr(error, "hint", ""))

    async def of_store(request: Request, error: Exception) -> Response:
        unknown = isinstance(error, OutcomeUnknown)
        code = "outcome-unknown" if unknown else "store-unavailable"
        hint = "It may have happened: look before you repeat it, or repeat it with the same Idempotency-Key."
        detail = f"The store cannot answer now: {error}."
        again = f"{error.hint}." if isinstance(error, StoreUnfit) else "Try again."
        return problem(request, 503, code, detail, hint=hint if unknown else again, after=SOON)

    async def of_remote(request: Request, error: Exception) -> Response:
        detail = f"{str(error).removesuffix('.')}."
        return problem(request, 503, "try-later", detail, hint="Try again, or look at that remote.", after=SOON)

    async def of_shape(request: Request, error: Exception) -> Response:
        found: Sequence[Any] = error.errors if isinstance(error, InvalidInput) else []
        if any(each["loc"] == ("body",) for each in found) and not _says_json(request):
            detail = "The body is to be JSON, and its Content-Type does not say so."
            return problem(request, 415, "unsupported-media-type", detail, hint="Send Content-Type: application/json.")
        errors = [Mistake(pointer=_pointer(_loc(each)), detail=_words(each)) for each in found[:20]]
        told = " ".join(f"{place(each.pointer)}: {each.detail}" for each in errors[:3])
        detail = told or "The request cannot be read."
        return problem(request, 422, "invalid-request", detail, hint=HINT, errors=errors)

    async def of_http(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        if status == 405:
            headers["Allow"] = ", ".join(sorted(_methods(app, request)))
        code = TITLES.get(status, "error").lower().replace(" ", "-")
        detail = error.detail if status == 413 and isinstance(error, HTTPException) else _PLAINLY.get(status, "")
        hint = f"What it means, and what to do: {doc(code)}"
        return problem(request, status, code, detail or f"{TITLES.get(status, 'Error')}.", hint=hint, headers=headers)

    async def of_us(request: Request, error: Exception) -> Response:
        log.error("api.failed", exc_info=error, path=request.url.path, request=request.scope.get("request_id", ""))
        return problem(request, 500, "internal", "Something went wrong here; it was logged under the request's id.")

    app.add_exception_handler(Stale, stale)
    app.add_exception_handler(UserError, of_user)
    app.add_exception_handler(StoreError, of_store)
    app.add_exception_handler(TryLater, of_remote)
    app.add_exception_handler(InvalidInput, of_shape)
    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(Exception, of_us)


def _says_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind in ("", "application/json") or kind.endswith("+json")


def _loc(error: Mapping[str, object]) -> object:
    """Where a body is no JSON, its place is an offset in it, and no field."""
    return ("body",) if error["type"] == "json_invalid" else error["loc"]


def _words(error: Mapping[str, Any]) -> str:
    given = error.get("input")
    if isinstance(given, float) and given != given:  # NaN is within no bounds, and they are not what is wrong
        return words("finite_number", {})
    return words(str(error["type"]), error.get("ctx") or {})


def _methods(app: Starlette, request: Request) -> set[str]:
    """Of all routes with the most exact path that fits, the first one: the router names only those of one route."""
    fit = [each for each in app.routes if isinstance(each, Route) and each.matches(request.scope)[0] is not Match.NONE]
    return {name for each in fit if each.path == fit[0].path for name in each.methods or ()} & {*METHODS}


def _pointer(place: Any) -> str:
    """What the caller calls things is in it, too: on a terminal or in a log it must not be more than text."""
    path = "/" + "/".join(str(each)[:100].replace("~", "~0").replace("/", "~1") for each in place)
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in path)


class InvalidInput(Exception):
    """An input with mistakes, each as pydantic writes them: type, loc, ctx, input."""

    def __init__(self, errors: Sequence[Mapping[str, object]]) -> None:
        super().__init__()
        self.errors = list(errors)


def unknown_parameter(name: str, known: Sequence[str]) -> JsonObject:
    """A filter that is misspelt would select everything: it is refused, and the nearest name is suggested."""
    near = get_close_matches(name[:100], sorted(known), n=1, cutoff=0.0)
    return {"type": "unknown_parameter", "loc": ("query", name[:100]), "ctx": {"near": near[0] if near else ""}}


HINT: Final = "Correct it and send it again; docs/reference/api.md has every field with its bounds."
