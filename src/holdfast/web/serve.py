"""The HTTP server in this process: uvicorn on a socket of ours, stopped by us and not by signals of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from errno import EACCES
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from holdfast.errors import UserError
from holdfast.listening.accepting import Accepting
from holdfast.listening.admission import Admission, Seat, Tally
from holdfast.listening.bounds import Bounds, RefusalReason
from holdfast.secret import Secret
from holdfast.web.bounded import BoundedProtocol, answer

ListeningSocket = socket.socket  # bound, and ours
BACKLOG = 2048


class AddressTaken(UserError):
    code = "address-taken"


class _Server(uvicorn.Server):
    """uvicorn, with our way to accept: it counts connections before it reads from them."""

    def __init__(
        self, config: uvicorn.Config, line: ListeningSocket, admission: Admission, tls: ListenerTls | None
    ) -> None:
        super().__init__(config)
        self._line, self._admission, self._tls = line, admission, tls

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the signals are the app's: it drains first, then stops us

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        context = None if self._tls is None else self._tls.context
        refusal = answer(RefusalReason.LISTENER_FULL)
        accepting = Accepting(self._line, self._protocol, self._admission, tls=context, refusal=refusal)
        self.servers = [accepting]  # type: ignore[list-item]
        self.started = True

    def _protocol(self, seat: Seat) -> BoundedProtocol:
        return BoundedProtocol(
            config=self.config, server_state=self.server_state, app_state={}, admission=self._admission, seat=seat
        )


class ListenerTls:
    """TLS with a certificate that may be replaced while we serve: the next handshake uses the new one."""

    def __init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.options |= ssl.OP_NO_RENEGOTIATION
        self.context.set_alpn_protocols(["http/1.1"])

    def load(self, chain: bytes, key: Secret[bytes]) -> None:
        """Both in PEM. Python reads keys only from files: this one is in memory, and has no name that others know."""
        handle = os.memfd_create("tls", os.MFD_CLOEXEC)
        try:
            os.write(handle, key.reveal() + chain)
            self.context.load_cert_chain(f"/proc/self/fd/{handle}")
        finally:
            os.close(handle)


def bind(host: str, port: int, *, setting: str = "server.listen", join: bool = False) -> ListeningSocket:
    """Take the address before anything else starts, so that a taken one is said at once.

    `join`: share it with processes of ours that have it already; the kernel deals connections out among them.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    line = socket.socket(family, socket.SOCK_STREAM)
    try:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if join:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        line.bind((host, port))
    except OSError as error:
        line.close()
        refused = AddressTaken(f"{setting}: cannot listen on {host}:{port}: {error.strerror}.")
        variable = setting if setting.startswith("--") else f"HOLDFAST_{setting.replace('.', '_').upper()}"
        first = "Allow ports below 1024 (CAP_NET_BIND_SERVICE)" if error.errno == EACCES else "Stop what listens there"
        refused.hint = f"{first}, or choose another address ({variable})."
        raise refused from error
    line.setblocking(False)
    return line


def hold(host: str, port: int, *, setting: str) -> ListeningSocket:
    """Take an address for processes of ours to join. It is allowed to them only now: a server beside us is told."""
    line = bind(host, port, setting=setting)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return line


def bind_local(path: Path) -> ListeningSocket:
    """A socket in the file system that only our user can open. A socket without a server is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)  # an address has 108 bytes at most: go by the handle
    before = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        line.bind(f"/proc/self/fd/{folder}/{path.name}")
    except OSError:
        line.close()
        raise
    finally:
        os.umask(before)
        os.close(folder)
    line.setblocking(False)
    return line


@contextlib.asynccontextmanager
async def serving(
    site: ASGIApp,
    line: ListeningSocket,
    tls: ListenerTls | None = None,
    *,
    bounds: Bounds = Bounds(),  # noqa: B008  (a frozen value)
    tally: Tally = Tally(),  # noqa: B008  (it has no state)
) -> AsyncIterator[None]:
    """Answer on the socket for as long as the block runs."""
    config = uvicorn.Config(
        site, interface="asgi3", log_config=None, access_log=False, lifespan="off", http=BoundedProtocol, ws="none",
        server_header=False, timeout_graceful_shutdown=2, proxy_headers=False,
    )  # fmt: skip
    line.listen(BACKLOG)  # now, and not when the task comes to it: clients that connect from here on are answered
    server = _Server(config, line, Admission(bounds, tally), tls)
    task = asyncio.create_task(server.serve(), name="http")
    try:
        yield
    finally:
        server.should_exit = True
        await task
