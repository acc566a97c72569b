"""The real adapter of Net: bare sockets, because asyncio's streams cost more than the whole rest of a validation."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Final, TypeVar

from holdfast.ports import NetProblem, Stream, Tls

_PIECE: Final = 16 * 1024
_LARGEST_DATAGRAM: Final = 65535
T = TypeVar("T")


class SystemNet:
    """No proxies, no name resolution, no pool: one connection to one address for each call."""

    def __init__(self) -> None:
        self._contexts: dict[tuple[str, ...], ssl.SSLContext] = {}  # by ALPN, of which there are two in all

    async def connect(self, address: str, port: int, *, tls: Tls | None = None, deadline_for: float) -> Stream:
        with _told_apart(_shown(address, port)):
            line = _Line(address, port, socket.SOCK_STREAM)
            try:
                async with asyncio.timeout(deadline_for):
                    await line.reach()
                    return line if tls is None else await self._secured(line, tls)
            except BaseException:
                line.close()
                raise

    async def _secured(self, line: _Line, tls: Tls) -> Stream:
        secured = _Secured(line, self._context(tls.alpn), tls.server_name)
        await secured.shake_hands()
        return secured

    def _context(self, alpn: tuple[str, ...]) -> ssl.SSLContext:
        if alpn not in self._contexts:
            context = self._contexts[alpn] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if alpn:
                context.set_alpn_protocols(alpn)
        return self._contexts[alpn]

    async def ask(
        self, server: str, port: int, query: bytes, *, tcp: bool, deadline_for: float, fits: Callable[[bytes], bool]
    ) -> bytes:
        with _told_apart(_shown(server, port)):
            line = _Line(server, port, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
            try:
                async with asyncio.timeout(deadline_for):
                    await line.reach()
                    return await (_ask_by_tcp if tcp else _ask_by_udp)(line, query, fits)
            finally:
                line.close()


async def _ask_by_udp(line: _Line, query: bytes, fits: Callable[[bytes], bool]) -> bytes:
    await line.write(query)
    while not fits(answer := await line.read(_LARGEST_DATAGRAM)):
        pass
    return answer


async def _ask_by_tcp(line: _Line, query: bytes, fits: Callable[[bytes], bool]) -> bytes:
    """Two octets of length before each message (RFC 1035 §4.2.2)."""
    await line.write(len(query).to_bytes(2, "big") + query)
    size = int.from_bytes(await line.read_exactly(2), "big")
    answer = await line.read_exactly(size)
    if not fits(answer):
        raise ConnectionAbortedError("it answered another question")
    return answer


class _Line:
    """A socket that is connected, of either kind: the kernel drops what others send to it."""

    certificate: bytes | None = None
    alpn: str | None = None

    def __init__(self, address: str, port: int, kind: socket.SocketKind) -> None:
        self.peer: Final = _shown(address, port)
        self._to = (address, port)
        self._socket = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind | socket.SOCK_NONBLOCK)
        self._loop = asyncio.get_running_loop()

    async def reach(self) -> None:
        if self._socket.type == socket.SOCK_DGRAM:
            self._socket.connect(self._to)  # at once: nothing is sent
        else:
            await self._loop.sock_connect(self._socket, self._to)

    async def read(self, limit: int) -> bytes:
        with _told_apart(self.peer):
            return await self._loop.sock_recv(self._socket, limit)

    async def read_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = await self.read(size - len(data))
            if not piece:
                raise ConnectionResetError("it hung up")
            data += piece
        return bytes(data)

    async def write(self, data: bytes) -> None:
        with _told_apart(self.peer):
            await self._loop.sock_sendall(self._socket, data)

    def close(self) -> None:
        self._socket.close()


class _Secured:
    """TLS in memory over a line, so that both kinds of stream are read, written and closed alike."""

    def __init__(self, line: _Line, context: ssl.SSLContext, server_name: str | None) -> None:
        self._line = line
        self._from_peer, self._to_peer = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._from_peer, self._to_peer, server_hostname=server_name)

    @property
    def certificate(self) -> bytes | None:
        return self._tls.getpeercert(binary_form=True)

    @property
    def alpn(self) -> str | None:
        return self._tls.selected_alpn_protocol()

    async def shake_hands(self) -> None:
        await self._step(self._tls.do_handshake)

    async def read(self, limit: int) -> bytes:
        with _told_apart(self._line.peer):
            try:
                return await self._step(lambda: self._tls.read(limit))
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    async def write(self, data: bytes) -> None:
        with _told_apart(self._line.peer):
            await self._step(lambda: self._tls.write(data))

    async def _step(self, step: Callable[[], T]) -> T:
        """Feed it until it can take the step. What it has to say is sent in any case: an alert, too."""
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                pass
            finally:
                if self._to_peer.pending:
                    await self._line.write(self._to_peer.read())
            piece = await self._line.read(_PIECE)
            if piece:
                self._from_peer.write(piece)
            else:
                self._from_peer.write_eof()

    def close(self) -> None:
        self._line.close()


def _shown(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


class _told_apart:  # noqa: N801  # read as a statement; a generator would cost more than what it guards
    """Every way in which the network fails, in the five words of the port."""

    __slots__ = ("_peer",)

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, OSError):
            raise _problem(self._peer, error) from None


def _problem(peer: str, error: OSError) -> NetProblem:
    match error:
        case TimeoutError():  # ours, or the kernel's
            return NetProblem("timeout", f"{peer} did not answer in time")
        case ConnectionRefusedError():
            return NetProblem("refused", f"{peer} refused the connection")
        case ConnectionError() | ssl.SSLEOFError():
            return NetProblem("reset", f"{peer} broke the connection off")
        case ssl.SSLError():
            return NetProblem("tls", f"TLS with {peer} failed: {error.reason or 'handshake failure'}")
        case _:
            return NetProblem("unreachable", f"{peer} cannot be reached: {error.strerror or 'no route'}")
