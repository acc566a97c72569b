"""The server of MCP tools: which tools there are, what their hints say, and who asks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp_types import ToolAnnotations
from pydantic import ValidationError
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast import __version__
from holdfast.mcp import changing, looking, operations
from holdfast.mcp.line import McpSession

INSTRUCTIONS: Final = """Holdfast keeps TLS certificates issued and renewed. Begin with needs_attention. Then
certificate_status and explain say why something stands as it does, with stable reason codes. renew is safe at any time.
Tools that can hurt only plan: they answer with a plan id and with what would happen; show that to a person, then call
confirm. For everything else: find_operation, then call_operation. Private keys are never shown."""
LOOK: Final = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
ADD: Final = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=True)
HURT: Final = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=True)
TOOLS: Final[Mapping[Callable[..., Any], ToolAnnotations]] = {
    looking.needs_attention: LOOK,
    looking.list_certificates: LOOK,
    looking.certificate_status: LOOK,
    looking.explain: LOOK,
    looking.events: LOOK,
    looking.wait: LOOK,
    looking.forecast: LOOK,
    looking.list_cas: LOOK,
    looking.dead_letters: LOOK,
    looking.approvals: LOOK,
    looking.search_audit: LOOK,
    looking.doctor: LOOK,
    changing.renew: ADD,
    changing.plan_certificate: LOOK,
    changing.revoke: HURT,
    changing.cancel_attempt: HURT,
    changing.archive: HURT,
    changing.requeue_dead_letters: HURT,
    changing.confirm: HURT,
    operations.find_operation: LOOK,
    operations.call_operation: HURT,
}


def build(session: McpSession) -> MCPServer[McpSession]:
    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[McpSession]:
        yield session

    server: MCPServer[McpSession] = MCPServer(
        "holdfast", title="Holdfast", version=__version__, instructions=INSTRUCTIONS, lifespan=lifespan,
        log_level="WARNING", tools=[exact(tool, hints) for tool, hints in TOOLS.items()],
    )  # fmt: skip
    return server


class WithToken:
    """Over HTTP everybody brings a token of their own; one without is turned away before anything else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers") or [])
        if scope["type"] == "http" and not headers.get(b"authorization", b"").lower().startswith(b"bearer "):
            refused = JSONResponse(
                {"error": "This needs a token: Authorization: Bearer …"}, 401,
                headers={"WWW-Authenticate": 'Bearer realm="holdfast"'},
            )  # fmt: skip
            await refused(scope, receive, send)
            return
        await self._app(scope, receive, send)


def token_of(request: Any) -> str:
    """The token that an HTTP request came with."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def exact(function: Callable[..., object], hints: ToolAnnotations) -> Tool:
    tool = ExactTool.from_function(function, annotations=hints)
    tool.parameters["additionalProperties"] = False
    return tool


class ExactTool(Tool):
    async def run(self, arguments: dict[str, Any], *more: Any, **options: Any) -> Any:
        known = self.parameters["properties"]
        if unknown := arguments.keys() - known.keys():
            raise ToolError(f"{self.name} has no argument {min(unknown)!r:.60}. It has: {', '.join(known) or 'none'}.")
        try:
            return await super().run(arguments, *more, **options)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(f"{self.name}: {_in_words(error.__cause__)}") from None
            raise


def _in_words(error: ValidationError) -> str:
    """Without pydantic's own addresses and repeated input."""
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False))
