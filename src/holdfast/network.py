"""The real adapter of Net: bare sockets, because asyncio's streams cost more than the whole rest of a validation."""

from __future__ import annotations

import asyncio
import socket
import ssl
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import TracebackType
from typing import Final, TypeVar

from holdfast.ports import NetProblem, Stream, Tls

_PIECE: Final = 16 * 1024
_LARGEST_DATAGRAM: Final = 65535
# Of the kinds of key, TLS 1.3 lets this library choose none: its signature algorithms cannot be set.
_CIPHERS: Final = {"rsa": "ECDHE+aRSA:DHE+aRSA:kRSA", "ecdsa": "ECDHE+aECDSA"}
T = TypeVar("T")


class SystemNet:
    """No proxies, no name resolution, no pool: one connection to one address for each call."""

    async def connect(self, address: str, port: int, *, tls: Tls | None = None, deadline_for: float) -> Stream:
        return await _reached(_shown(address, port), (address, port), tls, deadline_for)

    async def connect_local(self, path: str, *, deadline_for: float) -> Stream:
        return await _reached(path, path, None, deadline_for)

    async def ask(
        self, server: str, port: int, query: bytes, *, tcp: bool, deadline_for: float, fits: Callable[[bytes], bool]
    ) -> bytes:
        with _told_apart(_shown(server, port)):
            line = _Line(_shown(server, port), (server, port), socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
            try:
                async with asyncio.timeout(deadline_for):
                    await line.reach()
                    return await (_ask_by_tcp if tcp else _ask_by_udp)(line, query, fits)
            finally:
                line.close()


async def _reached(peer: str, to: tuple[str, int] | str, tls: Tls | None, deadline_for: float) -> Stream:
    with _told_apart(peer):
        line = _Line(peer, to)
        try:
            async with asyncio.timeout(deadline_for):
                await line.reach()
                return line if tls is None else await _secured(line, tls)
        except BaseException:
            line.close()
            raise


async def _secured(line: _Line, tls: Tls) -> Stream:
    secured = _Secured(line, _context(replace(tls, server_name=None)), tls.server_name)
    await secured.shake_hands()
    return secured


@cache
def _context(tls: Tls) -> ssl.SSLContext:
    """Of each there are few: ALPN is one of two, and names are not among the keys."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    level = ""
    if tls.any_version:
        level = ":@SECLEVEL=0"  # otherwise OpenSSL does not speak TLS 1.0, nor accepts small keys
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            context.minimum_version = ssl.TLSVersion.TLSv1
    if tls.key:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if tls.key or level:
        context.set_ciphers(_CIPHERS.get(tls.key or "", "DEFAULT") + level)
    if tls.alpn:
        context.set_alpn_protocols(tls.alpn)
    return context


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
    chain: tuple[bytes, ...] = ()
    version: str = ""
    alpn: str | None = None

    def __init__(self, peer: str, to: tuple[str, int] | str, kind: socket.SocketKind = socket.SOCK_STREAM) -> None:
        self.peer: Final = peer
        self._to = to  # of a Unix socket, its path
        self._socket = socket.socket(_family(to), kind | socket.SOCK_NONBLOCK)
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

    async def upgrade(self, tls: Tls, *, deadline_for: float) -> Stream:
        with _told_apart(self.peer):
            async with asyncio.timeout(deadline_for):
                return await _secured(self, tls)

    def close(self) -> None:
        self._socket.close()


class _Secured:
    """TLS in memory over a line, so that both kinds of stream are read, written and closed alike."""

    def __init__(self, line: _Line, context: ssl.SSLContext, server_name: str | None) -> None:
        self._line = line
        self._from_peer, self._to_peer = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._flights = 0  # that were sent; each may be many records
        self._tls = context.wrap_bio(self._from_peer, self._to_peer, server_hostname=server_name)

    @property
    def certificate(self) -> bytes | None:
        return self._tls.getpeercert(binary_form=True)

    @property
    def chain(self) -> tuple[bytes, ...]:
        """Public from Python 3.13 on; 3.11 and 3.12 have the same method one level below, and will not change any more.

        It answers after a failed handshake as well, which `certificate` does not.
        """
        below, der = self._tls._sslobj, ssl._ssl.ENCODING_DER  # type: ignore[attr-defined]
        return tuple(each.public_bytes(der) for each in below.get_unverified_chain() or ())

    @property
    def version(self) -> str:
        return self._tls.version() or ""

    @property
    def alpn(self) -> str | None:
        return self._tls.selected_alpn_protocol()

    async def shake_hands(self) -> None:
        with _told_apart(self._line.peer):
            try:
                await self._step(self._tls.do_handshake)
            except (OSError, NetProblem) as error:
                if not (self._proved and _hung_up(error)):
                    raise
                why = f"{self._line.peer} refused us after it showed its certificate"
                raise NetProblem("tls", why, shown=self.chain) from None

    @property
    def _proved(self) -> bool:
        """Up to TLS 1.2, we answer the first flight of a server only after its signature was found to fit its key.

        With TLS 1.3 our handshake ends before a server can refuse us, and with RSA key exchange nothing is signed.
        """
        cipher = self._tls.cipher()
        return self._flights > 1 and cipher is not None and cipher[0].startswith(("ECDHE", "DHE"))

    async def upgrade(self, tls: Tls, *, deadline_for: float) -> Stream:
        raise NetProblem("tls", f"{self._line.peer} speaks TLS already")

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
                    self._flights += 1
                    await self._line.write(self._to_peer.read())
            piece = await self._line.read(_PIECE)
            if piece:
                self._from_peer.write(piece)
            else:
                self._from_peer.write_eof()

    def close(self) -> None:
        self._line.close()


def _hung_up(error: Exception) -> bool:
    """The peer ended it, by an alert or without; not we, because something is wrong with its handshake."""
    if isinstance(error, NetProblem):
        return error.kind == "reset"
    return isinstance(error, (ConnectionError, ssl.SSLEOFError)) or "ALERT" in (getattr(error, "reason", None) or "")


def _family(to: tuple[str, int] | str) -> socket.AddressFamily:
    if isinstance(to, str):
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in to[0] else socket.AF_INET


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
