"""The HTTP server in this process: uvicorn on a socket of ours, stopped by us and not by signals of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.types import ASGIApp

from holdfast.errors import UserError


class AddressTaken(UserError):
    code = "address-taken"


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the signals are the app's: it drains first, then stops us


def bind(host: str, port: int) -> socket.socket:
    """Take the address before anything else starts, so that a taken one is said at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    line = socket.socket(family, socket.SOCK_STREAM)
    try:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        line.bind((host, port))
    except OSError as error:
        line.close()
        refused = AddressTaken(f"server.listen: cannot listen on {host}:{port}: {error.strerror}.")
        refused.hint = "Stop what listens there, or choose another address (HOLDFAST_SERVER_LISTEN)."
        raise refused from error
    line.setblocking(False)
    return line


@contextlib.asynccontextmanager
async def serving(site: ASGIApp, line: socket.socket) -> AsyncIterator[None]:
    """Answer on the socket for as long as the block runs."""
    config = uvicorn.Config(
        site, log_config=None, access_log=False, lifespan="off", http="httptools", ws="none", server_header=False,
        timeout_graceful_shutdown=2,
    )  # fmt: skip
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[line]), name="http")
    try:
        yield
    finally:
        server.should_exit = True
        await task
