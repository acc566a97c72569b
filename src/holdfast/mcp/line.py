"""Calls the API as one caller, and turns refusals into sentences that a model can act on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import quote

from mcp.server.mcpserver import Context, Resolve
from mcp.server.mcpserver.exceptions import ToolError

SECRETS: Final = frozenset({"key_pem", "pkcs12", "token", "passphrase", "mac", "credentials"})  # never handed on
LONG: Final = frozenset({"chain_pem"})  # nor what fills a model's window for nothing
JsonObject = dict[str, Any]


class ApiAnswer(NamedTuple):
    status: int
    body: Any


class ApiRequest(NamedTuple):
    method: str
    path: str  # below /api/v1
    body: Any
    headers: Mapping[str, str]
    query: Mapping[str, Any]


Send = Callable[[ApiRequest], Awaitable[ApiAnswer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLine:
    send: Send
    secret: bytes  # known to this caller alone: no other caller can confirm its plans
    now: Callable[[], datetime]
    new_id: Callable[[str], str]

    async def get(self, path: str, *, headers: Mapping[str, str] | None = None, **query: Any) -> Any:
        return _read(await self._ask("GET", path, None, headers or {}, query))

    async def post(
        self, path: str, body: Any = None, *, method: str = "POST", once: str | None = None, **query: Any
    ) -> Any:
        """`once`: repeated with the same word, it happens once."""
        headers = {} if once is None else {"Idempotency-Key": once}
        return _read(await self._ask(method, path, body, headers, query))

    async def maybe(self, path: str, **query: Any) -> Any | None:
        """None where this caller may not look, or the server has no such thing."""
        answer = await self._ask("GET", path, None, {}, query)
        return None if answer.status in (403, 404) else _read(answer)

    async def ask(
        self, method: str, path: str, body: object, headers: Mapping[str, str], query: Mapping[str, object]
    ) -> object:
        return _read(await self._ask(method, path, body, headers, query))

    async def document(self) -> Any:
        """The API's own OpenAPI document: nothing in it is secret."""
        return (await self._ask("GET", "/openapi.json", None, {}, {})).body

    async def _ask(
        self, method: str, path: str, body: Any, headers: Mapping[str, str], query: Mapping[str, Any]
    ) -> ApiAnswer:
        given = {name: each for name, each in query.items() if each not in (None, False, [])}
        return await self.send(ApiRequest(method, path, body, headers, given))


def segment(ref: str) -> str:
    """A name in an address: it must not lead anywhere else."""
    if "/" in ref or ref in ("", ".", ".."):
        raise ToolError(f"{ref!r:.60} is no name and no id.")
    return quote(ref, safe="")


def _read(answer: ApiAnswer) -> Any:
    if answer.status < 400:
        return clean(answer.body)
    told = answer.body if isinstance(answer.body, Mapping) else {}
    what = told.get("detail") or told.get("title") or f"The server answered {answer.status}."
    facts = [f"code {told['code']}"] if told.get("code") else []
    facts += [f"request {told['request_id']}"] if told.get("request_id") else []
    hint = f" Next: {told['hint']}" if told.get("hint") else ""
    raise ToolError(f"{what} ({', '.join(facts) or answer.status}){hint}")


def clean(value: object) -> object:
    """An answer without its secret and its long fields."""
    if isinstance(value, Mapping):
        return {name: clean(each) for name, each in value.items() if name not in SECRETS | LONG}
    return [clean(each) for each in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSession:
    """What the server of tools was started with: how it knows who asks."""

    line_for: Callable[[Any], ApiLine]  # given the HTTP request, or None on stdio


def line_of(ctx: Context[McpSession, object]) -> ApiLine:
    inner = ctx.request_context
    return inner.lifespan_context.line_for(inner.request)


McpCaller = Annotated[ApiLine, Resolve(line_of)]
