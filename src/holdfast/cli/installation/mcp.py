"""`holdfast mcp`: tools for assistants, on stdio for one that starts it, or over HTTP for those that bring a token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import httpx2
import typer

from holdfast.cli.everywhere import chosen
from holdfast.cli.installation.config import settings
from holdfast.cli.terminal import say
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.mcp.line import ApiAnswer, ApiLine, ApiRequest, Send

app = typer.Typer()
PATIENCE: Final = 90.0  # seconds: `wait` may take a minute
AGENT: Final = {"User-Agent": "holdfast-mcp"}
HOW_TO_LET_IN: Final = (
    "Make one: holdfast token create assistant --kind agent --role operator; "
    "then set HOLDFAST_TOKEN, or name a file with --token-file."
)


class NoTools(UserError):
    code = "mcp-refused"

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


@app.command("mcp")
def mcp(
    http: Annotated[
        str | None, typer.Option("--http", metavar="HOST:PORT", help="Listen there (/mcp), instead of stdio.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option("--token-file", help="On stdio: read the token from it.")] = None,
    local: Annotated[bool, typer.Option("--local", help="On stdio: act as this user, by the local socket.")] = False,
) -> None:
    """Serve tools to an assistant. Each asks the API with its own token, and may do what that token may."""
    import asyncio

    try:
        import mcp as sdk  # noqa: F401  (is it there?)
    except ImportError:
        raise NoTools("This needs an extra that is not installed.", "pip install 'holdfast[mcp]'") from None
    here, server = settings(), chosen().server
    if http is not None:
        asyncio.run(_on_http(here, http, server))
    else:
        asyncio.run(_on_stdio(here, server, token_file, local=local))


# ── Who is asked, and as whom ──


@asynccontextmanager
async def _api(base: str, transport: httpx2.AsyncHTTPTransport | None = None) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(
        base_url=base, transport=transport, timeout=PATIENCE, trust_env=False, headers=AGENT
    ) as client:
        yield client


def _line(client: httpx2.AsyncClient, headers: dict[str, str], secret: bytes) -> ApiLine:
    from holdfast.mcp.line import ApiLine
    from holdfast.world import SystemClock, SystemRandom

    return ApiLine(send=_send(client, headers), secret=secret, now=SystemClock().now, new_id=SystemRandom().new_id)


def _send(client: httpx2.AsyncClient, headers: dict[str, str]) -> Send:
    from mcp.server.mcpserver.exceptions import ToolError

    from holdfast.mcp.line import ApiAnswer

    async def send(ask: ApiRequest) -> ApiAnswer:
        try:
            answer = await client.request(
                ask.method,
                f"/api/v1{ask.path}",
                json=ask.body,
                params=dict(ask.query),
                headers={**ask.headers, **headers},
            )
        except httpx2.HTTPError as error:
            raise ToolError(
                f"The Holdfast server cannot be reached: {type(error).__name__}. Try again later."
            ) from None
        kind = answer.headers.get("content-type", "")
        return ApiAnswer(answer.status_code, answer.json() if "json" in kind else answer.text or None)

    return send


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _base(chosen: Settings, server: str | None) -> str:
    """The server that is named, or logged in to; else the one that these settings are of."""
    from holdfast.cli import client

    named = server or client.remembered().get("server")
    if named:
        return client.address(named)
    host, port = chosen.server.address
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


# ── On stdio ──


async def _on_stdio(chosen: Settings, server: str | None, token_file: Path | None, *, local: bool) -> None:
    from holdfast.cli import client
    from holdfast.mcp.line import McpSession
    from holdfast.mcp.server import build

    if local:
        async with client.local_socket(chosen) as (transport, headers), _api("http://local", transport) as http:
            from holdfast.world import SystemRandom

            line = _line(http, headers, SystemRandom().token(32))
            await build(McpSession(line_for=lambda request: line)).run_stdio_async()
        return
    base = _base(chosen, server)
    token = _token(server or base, token_file)
    async with _api(base) as http:
        mine = _line(http, _bearer(token), token.encode())
        await build(McpSession(line_for=lambda request: mine)).run_stdio_async()


def _token(server: str, token_file: Path | None) -> str:
    from holdfast.cli import client
    from holdfast.cli.input_files import content

    token = client.token_for(server) if token_file is None else content(token_file, 1000).decode().strip()
    if not token:
        raise NoTools("An assistant needs a token of its own.", HOW_TO_LET_IN)
    return token


# ── Over HTTP ──


async def _on_http(chosen: Settings, listen: str, server: str | None) -> None:
    from dataclasses import replace

    from holdfast.from_settings import listener_bounds
    from holdfast.mcp.line import McpSession
    from holdfast.mcp.server import WithToken, build, token_of
    from holdfast.web.serve import bind, serving

    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise NoTools(f"{listen!r:.60} is no address.", "For example: --http 127.0.0.1:8632")
    async with _api(_base(chosen, server)) as http:

        def line_for(request: object) -> ApiLine:
            """With the token of the request: this process has no token that others could use."""
            token = token_of(request)
            return _line(http, _bearer(token), token.encode())

        tools = build(McpSession(line_for=line_for))
        pages = tools.streamable_http_app(stateless_http=True, json_response=True, host=host.strip("[]"))
        line = bind(host.strip("[]"), int(port), setting="--http")
        site = serving(WithToken(pages), line, bounds=replace(listener_bounds(chosen, listeners=1), probes=0))
        async with pages.router.lifespan_context(pages), site:
            say("Tools for assistants: http://{}:{}/mcp".format(*line.getsockname()[:2]))
            await _until_told()


async def _until_told() -> None:
    """Wait for SIGTERM or SIGINT."""
    import asyncio
    import signal

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
