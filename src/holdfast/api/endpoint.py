"""From a declared operation to its route: who asks, for what, in which manner; then the runner; then the answer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from holdfast.api.caller import opened
from holdfast.api.problems import InvalidInput, JsonObject, unknown_parameter
from holdfast.errors import UserError
from holdfast.operations import runner
from holdfast.operations.access import demand
from holdfast.operations.context import Caller
from holdfast.operations.operation import Operation, OperationForm
from holdfast.operations.runner import Options, RunOutcome
from holdfast.operations.scopes import INSTALLATION

LONGEST_WAIT: Final = 60.0  # seconds of Prefer: wait
KEY_PATTERN: Final = r"^[!-~]{1,255}$"  # of an Idempotency-Key
_BOOL: Final = TypeAdapter(bool)
Mistakes = list[JsonObject]


class BadHeader(UserError):
    code, hint = "bad-header", "Send the header as this API gives it, or leave it out."


class PreconditionMissing(UserError):
    status, code = 428, "precondition-required"
    hint = "Send the ETag that you read as If-Match, or If-Match: * to change it in any version."


def route(operation: Operation) -> Route:
    async def endpoint(request: Request) -> Response:
        caller = await opened(request)
        whole = operation.scope is INSTALLATION
        demand(caller.principal, operation.action, None if whole else caller.principal.scope)
        asked = await _input(request, operation)
        options = await _options(request, operation, caller)
        running = runner.run(caller.services, operation, caller.principal, asked, options)
        outcome = await (_while_there(request, running) if _is_long_read(operation) else running)
        if outcome is None:
            return Response(status_code=499)  # which no client reads
        return _answer(operation, options, outcome)

    made = Route(operation.path, endpoint, methods=[operation.method], name=operation.name)
    made.methods = {operation.method}  # HEAD is nothing that was declared
    return made


def _is_long_read(operation: Operation) -> bool:
    return operation.reads and operation.form is OperationForm.STEPS


async def _while_there(request: Request, running: Coroutine[object, object, RunOutcome]) -> RunOutcome | None:
    """A read of several steps ends, with None, when its client is gone. A change never ends so."""
    work, gone = asyncio.ensure_future(running), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        return await work if work.done() else None
    finally:
        gone.cancel()
        work.cancel()
        await asyncio.wait([work, gone])


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        """What is left of the request."""


# ── Input ──


async def _input(request: Request, operation: Operation) -> BaseModel:
    """Path, query, headers and body are fields of one input; each mistake says where it is."""
    sources: dict[str, str] = {}
    given: JsonObject = {}
    mistakes: Mistakes = []
    for name, value in request.path_params.items():
        given[name], sources[name] = value, "path"
    for name, value in _query(request, operation, mistakes).items():
        given[name], sources[name] = value, "query"
    for name, header in header_fields(operation).items():
        if header in request.headers:
            given[name], sources[name] = request.headers[header], "header"
    if has_body(operation):
        body = await _body(request, required=body_required(operation))
        for name, value in body.items():
            if name in sources:
                mistakes.append({"type": "extra_forbidden", "loc": ("body", name)})
            else:
                given[name], sources[name] = value, "body"
    if mistakes:
        raise InvalidInput(mistakes)
    try:
        return operation.input_model.model_validate(given)
    except ValidationError as error:
        elsewhere = "body" if has_body(operation) else "query"
        found = error.errors(include_url=False)
        raise InvalidInput([_placed(each, sources, elsewhere) for each in found]) from None


def _placed(mistake: Any, sources: Mapping[str, str], elsewhere: str) -> JsonObject:
    place = mistake["loc"]
    where = sources.get(str(place[0]), elsewhere) if place else elsewhere
    return {**mistake, "loc": (where, *place)}


def has_body(operation: Operation) -> bool:
    return operation.method not in ("GET", "DELETE") and bool(body_fields(operation))


def body_fields(operation: Operation) -> list[str]:
    elsewhere = {*operation.path_fields, *header_fields(operation)}
    return [name for name in operation.input_model.model_fields if name not in elsewhere]


def body_required(operation: Operation) -> bool:
    return any(operation.input_model.model_fields[name].is_required() for name in body_fields(operation))


def query_fields(operation: Operation) -> list[str]:
    return [] if operation.method not in ("GET", "DELETE") else body_fields(operation)


def header_fields(operation: Operation) -> dict[str, str]:
    """Fields that come in a header of their own, by its name."""
    found = {}
    for name, field in operation.input_model.model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and "header" in extra:
            found[name] = str(extra["header"])
    return found


def _query(request: Request, operation: Operation, mistakes: Mistakes) -> JsonObject:
    known = query_fields(operation)
    allowed = [*known, "dry_run"] if operation.dry_runs else known
    strange = [name for name in request.query_params if name not in allowed]
    mistakes += [unknown_parameter(name, allowed) for name in strange[:5]]
    found: JsonObject = {}
    for name in known:
        values = request.query_params.getlist(name)
        if values:
            found[name] = values if _is_list(operation, name) else values[-1]
    return found


def _is_list(operation: Operation, name: str) -> bool:
    return "list[" in str(operation.input_model.model_fields[name].annotation)


async def _body(request: Request, *, required: bool) -> JsonObject:
    """Read only now that it is known that the asker may do this at all: some may be long."""
    content = await request.body()
    if not content:
        if required:
            raise InvalidInput([{"type": "missing", "loc": ("body",)}])
        return {}
    if not _says_json(request):
        raise InvalidInput([{"type": "not_json", "loc": ("body",)}])
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        said = error.msg if isinstance(error, json.JSONDecodeError) else "it cannot be read"
        raise InvalidInput([{"type": "json_invalid", "loc": ("body",), "ctx": {"error": said}}]) from None
    if not isinstance(found, dict):
        raise InvalidInput([{"type": "model_type", "loc": ("body",)}])
    return found


def _says_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind in ("", "application/json") or kind.endswith("+json")


# ── In which manner ──


async def _options(request: Request, operation: Operation, caller: Caller) -> Options:
    wait = _patience(request.headers.get("prefer", ""))
    dry_run = operation.dry_runs and _dry_run(request)
    expected = expected_version(request.headers.get("if-match")) if needs_if_match(operation) else None
    key = request.headers.get("idempotency-key") if operation.keyed and not dry_run else None
    if key is None:
        return Options(dry_run=dry_run, origin=caller.origin, expected_version=expected, wait=wait)
    if not re.fullmatch(KEY_PATTERN, key):
        mistake = {
            "type": "string_pattern_mismatch",
            "loc": ("header", "idempotency-key"),
            "ctx": {"pattern": KEY_PATTERN},
        }
        raise InvalidInput([mistake])
    what = f"{request.method} {request.url.path}?{request.url.query}".encode()
    digest = hashlib.sha256(what + b"\n" + await request.body()).hexdigest()
    return Options(
        key=f"api/{caller.principal.id}/{key}",
        digest=digest,
        origin=caller.origin,
        expected_version=expected,
        wait=wait,
    )


def needs_if_match(operation: Operation) -> bool:
    return operation.versioned and operation.method in ("PATCH", "PUT")


def _dry_run(request: Request) -> bool:
    try:
        return _BOOL.validate_python(request.query_params.get("dry_run", "false"))
    except ValidationError:
        raise InvalidInput([{"type": "bool_parsing", "loc": ("query", "dry_run")}]) from None


def _patience(prefer: str) -> float:
    """Prefer: wait=30 (RFC 7240 §4.3)."""
    found = re.search(r"(?:^|[,;\s])wait=(\d{1,6})(?:$|[,;\s])", prefer[:200])
    return 0.0 if found is None else min(float(found[1]), LONGEST_WAIT)


def expected_version(given: str | None) -> int | None:
    """The version that If-Match names; None for any."""
    if given is None:
        raise PreconditionMissing("A change says which version it is a change of.")
    if given.strip() == "*":
        return None
    found = re.fullmatch(r'\s*(?:W/)?"(\d{1,9})"\s*', given)
    if found is None:
        raise BadHeader('If-Match is an ETag that was read here, such as "3".')
    return int(found[1])


# ── The answer ──


def _answer(operation: Operation, options: Options, outcome: RunOutcome) -> Response:
    if operation.form is OperationForm.STREAM:
        return _streamed(operation, outcome.result)
    if operation.media != "application/json":
        return Response(outcome.result, media_type=operation.media)
    if operation.result is None:
        return Response(status_code=204)
    headers = {}
    if operation.versioned:
        version = outcome.result["version"] if isinstance(outcome.result, dict) else outcome.result.version
        headers["ETag"] = f'"{version}"'
    status = operation.status
    if operation.waits and (outcome.issuance is None or options.dry_run):
        status = 200
    elif operation.waits:
        status = (201 if operation.creates else 200) if outcome.over else 202
        headers["Location"] = f"/api/v1/issuances/{outcome.issuance}"
        if not options.wait:
            headers["Retry-After"] = "1"
    if operation.follows and outcome.result.ended_at is None:
        headers["Retry-After"] = "1"
    if operation.method == "PATCH":
        status = 200  # it is changed; what that leads to may be waited for
    return Response(to_json(outcome.result), status, headers, "application/json")


def _streamed(operation: Operation, lines: Any) -> Response:
    headers = {}
    if operation.media == "application/jsonl":
        headers["Content-Disposition"] = f'attachment; filename="holdfast-{operation.tag}.jsonl"'
    return _Streamed(lines, media_type=operation.media, headers=headers)


class _Streamed(StreamingResponse):
    """Closes the stream in the end, even one of which no line was read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if (close := getattr(self.body_iterator, "aclose", None)) is not None:
                await close()
