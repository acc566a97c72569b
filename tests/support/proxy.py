"""A TCP proxy that misbehaves on request, to stand between a client and PostgreSQL (or any other server).

    with FaultProxy("127.0.0.1", postgres.port) as proxy:
        url = postgres.url(database, through=proxy.port)
        proxy.drop_replies_after(b"COMMIT")

It runs in a thread of its own, so that plain and async tests alike can use it. Each method returns once its
effect is in force.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, Self

from tests.support.reaper import PATIENCE

HOST: Final = "127.0.0.1"
CHUNK: Final = 1 << 16
# What may come before a PostgreSQL client's startup message: requests to cancel, for TLS, for GSS encryption.
PREAMBLES: Final = {80877102, 80877103, 80877104}

Mode = Literal["pass", "refuse", "hang"]


@dataclass(slots=True, kw_only=True)
class Trap:
    """What to do about a message that contains the marker."""

    marker: bytes
    forward: bool  # let the server have the message, or not
    times: int | None  # how often it still springs; None is always

    def springs(self, before: bytes, message: bytes) -> bool:
        """Tell whether this message completes the marker, which may have begun in what came just before."""
        start = max(0, len(before) - len(self.marker) + 1)
        if self.times == 0 or self.marker not in before[start:] + message:
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass(slots=True, kw_only=True, eq=False)
class Link:
    """One client's connection, and ours to the server on its behalf."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server_reader: asyncio.StreamReader = field(init=False)
    server_writer: asyncio.StreamWriter | None = None
    task: asyncio.Task[None] = field(init=False)
    swallow: bool = False  # the server's replies go nowhere
    trapped: bool = False

    def abort(self, *, reset: bool = False) -> None:
        """Drop both connections, unsent data too; with an RST each if so wished."""
        for writer in filter(None, (self.writer, self.server_writer)):
            if reset and not writer.transport.is_closing():
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()


class FaultProxy:
    """Forwards to one server; a good proxy until told otherwise."""

    port: int  # where clients come in

    def __init__(self, target_host: str, target_port: int) -> None:
        self.host = HOST
        self.accepted = 0  # connections so far, refused ones too
        self.cuts = 0  # connections cut because of a marker
        self._target = (target_host, target_port)
        self._mode: Mode = "pass"
        self._delay = 0.0
        self._trap: Trap | None = None
        self._links: set[Link] = set()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._started = threading.Event()
        self._error: BaseException | None = None

    def pass_through(self) -> None:
        """Be a good proxy again: forward what was held back, and forget any delay and marker."""
        self._do(self._set(mode="pass", delay=0.0, trap=None))

    def refuse(self) -> None:
        """Close each new connection at once; those there are go on."""
        self._do(self._set(mode="refuse"))

    def hang(self) -> None:
        """Accept and forward nothing, in neither direction, on the connections there are as well."""
        self._do(self._set(mode="hang"))

    def delay(self, seconds: float) -> None:
        """Forward everything this much later in each direction: a round trip costs twice that. 0 ends it."""
        self._do(self._set(delay=seconds))

    def drop_replies_after(self, marker: bytes, *, times: int | None = 1) -> None:
        """Let the server have a request that contains the marker, lose its replies and cut the connection.

        The client sees the cut once the server has carried the request out. `times` None means always.
        """
        self._do(self._set(trap=Trap(marker=marker, times=times, forward=True)))

    def cut_before(self, marker: bytes, *, times: int | None = 1) -> None:
        """Withhold a request that contains the marker from the server, and cut the connection.

        The client sees the cut once the server has hung up, having rolled back. `times` None means always.
        """
        self._do(self._set(trap=Trap(marker=marker, times=times, forward=False)))

    def reset_all(self) -> None:
        """Reset (RST) every connection there is, on both sides; new ones fare as the mode says."""
        self._do(self._drop_all())

    @property
    def connections(self) -> int:
        """How many clients are connected now."""
        return len(self._links)

    def start(self) -> Self:
        """Listen, on `port`."""
        self._thread.start()
        self._started.wait(PATIENCE)
        if self._error:
            raise self._error
        return self

    def close(self) -> None:
        """Drop every connection and stop listening; harmless when that is done already."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(PATIENCE)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _do(self, change: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(change, self._loop).result(PATIENCE)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._started.set()

    # The rest runs in the proxy's own loop.

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._open = asyncio.Event()  # closed while nothing may be forwarded
        self._open.set()
        server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        await self._drop_all()
        await server.wait_closed()

    async def _set(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self, f"_{name}", value)
        if self._mode == "hang":
            self._open.clear()
        else:
            self._open.set()

    async def _drop_all(self) -> None:
        links = list(self._links)
        for link in links:
            link.abort(reset=True)
            link.task.cancel()
        await asyncio.gather(*(link.task for link in links), return_exceptions=True)
        self._links.difference_update(links)  # some may not even have begun

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._mode == "refuse":
            writer.close()
            return
        link = Link(reader=reader, writer=writer)
        link.task = asyncio.create_task(self._carry(link))
        self._links.add(link)

    async def _carry(self, link: Link) -> None:
        """Serve one client until the server is done with it."""
        try:
            await self._open.wait()
            link.server_reader, link.server_writer = await asyncio.open_connection(*self._target)
            requests = asyncio.create_task(self._requests(link, link.server_writer))
            try:
                await self._replies(link)
            finally:
                requests.cancel()
                await asyncio.gather(requests, return_exceptions=True)
                self.cuts += link.trapped  # before the client can know
            link.writer.close()
            await link.writer.wait_closed()
        except OSError:
            pass  # either side went away: so does the other
        finally:
            link.abort()
            self._links.discard(link)

    async def _requests(self, link: Link, server: asyncio.StreamWriter) -> None:
        messages = Messages()
        before = b""  # the end of what we forwarded: there a marker may begin, unless we see whole messages
        try:
            while chunk := await link.reader.read(CHUNK):
                await self._hold_back()
                for message in messages.feed(chunk):
                    if self._trap and not link.trapped and self._trap.springs(before, message):
                        link.trapped, link.swallow = True, self._trap.forward
                    if link.swallow or not link.trapped:
                        server.write(message)
                    if link.trapped and (messages.ends_request(message) or not link.swallow):
                        # The server carries out what it has, then finds its client gone, and hangs up.
                        return server.write_eof()
                    before = b"" if messages.whole else (before + message)[-CHUNK:]
                await server.drain()
            await self._hold_back()
            server.write(messages.rest())
            server.write_eof()
        except OSError:
            link.abort()

    async def _replies(self, link: Link) -> None:
        while chunk := await link.server_reader.read(CHUNK):
            await self._hold_back()
            if not link.swallow:
                link.writer.write(chunk)
                await link.writer.drain()
        if not link.trapped:
            await self._hold_back()  # the server's goodbye hangs like the rest

    async def _hold_back(self) -> None:
        if self._delay:
            await asyncio.sleep(self._delay)
        await self._open.wait()


class Messages:
    """Cuts a PostgreSQL client's stream into messages; any other stream, and TLS, comes out as it went in."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._tagged = False  # after the startup message each begins with a letter
        self.whole = True  # we still understand it

    def feed(self, data: bytes) -> list[bytes]:
        """Take what has arrived; return what is complete."""
        self._held += data
        found = []
        while size := self._next():
            found.append(bytes(self._held[:size]))
            del self._held[:size]
        return found

    def ends_request(self, message: bytes) -> bool:
        """Tell whether the server can act now: a query does it, or the Sync after Parse, Bind and Execute."""
        return not self._tagged or message[:1] in (b"Q", b"S")

    def rest(self) -> bytes:
        """Return what never became complete."""
        return bytes(self._held)

    def _next(self) -> int:
        """Return the size of the message we hold; 0 if more must come first."""
        if self._tagged:
            size = 1 + int.from_bytes(self._held[1:5], "big") if len(self._held) >= 5 else 0
            return size if size <= len(self._held) else 0
        if not self._held or (self.whole and self._held[0] == 0 and len(self._held) < 8):
            return 0
        size, code = int.from_bytes(self._held[:4], "big"), int.from_bytes(self._held[4:8], "big")
        startup = code >> 16 == 3
        if not self.whole or not (startup or code in PREAMBLES):
            self.whole = False
            return len(self._held)
        if size > len(self._held):
            return 0
        self._tagged = startup
        return size
