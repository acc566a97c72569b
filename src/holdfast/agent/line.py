"""The agent's adapter of Transport: HTTP/1.1 over TLS on one connection that is kept, in a tenth of the memory."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from holdfast.errors import TryLater
from holdfast.ports import Request, Response

ANYBODY: Final = b"anybody"  # as roots: the answer proves itself, by a pin
_HEAD: Final = 64 * 1024
_NO_CHECK_TIME: Final = ssl.VerifyFlags(0x200000)  # X509_V_FLAG_NO_CHECK_TIME, which Python has no name for


class AgentTransport:
    """Connections to one server at a time: the last one is used again, as long as the server keeps it open."""

    def __init__(self) -> None:
        self._open: tuple[tuple[str, bytes], asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._contexts: dict[bytes, ssl.SSLContext] = {}

    async def request(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(request.deadline_for):
                return await self._exchange(request)
        except TimeoutError:
            self.close()
            raise TryLater(
                f"{_remote(request)} did not answer in {request.deadline_for:g} s", reason="TIMEOUT"
            ) from None
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            self.close()
            raise TryLater(f"{_remote(request)}: {_words(error)}", reason="UNREACHABLE") from error
        except BaseException:
            self.close()
            raise

    async def _exchange(self, request: Request) -> Response:
        kept = self._open is not None and self._open[0] == (_remote(request), request.roots)
        try:
            return await self._ask(request)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.close()
            if not kept:
                raise
        return await self._ask(request)  # a kept connection may have been closed by the server meanwhile

    async def _ask(self, request: Request) -> Response:
        reader, writer = await self._connection(request)
        writer.write(_written(request))
        await writer.drain()
        response, keep = await _read(reader, request.max_body)
        if not keep:
            self.close()
        return response

    async def _connection(self, request: Request) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        place = (_remote(request), request.roots)
        if self._open is not None and self._open[0] == place and not self._open[2].is_closing():
            return self._open[1], self._open[2]
        self.close()
        address = urlsplit(request.url)
        reader, writer = await asyncio.open_connection(
            address.hostname, address.port or 443, ssl=self._context(request.roots), limit=_HEAD
        )
        self._open = (place, reader, writer)
        return reader, writer

    def _context(self, roots: bytes) -> ssl.SSLContext:
        if roots not in self._contexts:
            self._contexts[roots] = _context(roots)
        return self._contexts[roots]

    async def aclose(self) -> None:
        """Close, and wait until it is: for those who go on without this loop."""
        writer = None if self._open is None else self._open[2]
        self.close()
        if writer is not None:
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def close(self) -> None:
        if self._open is not None:
            self._open[2].transport.abort()
        self._open = None


def _context(roots: bytes) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=roots.decode() if roots not in (b"", ANYBODY) else None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if roots == ANYBODY:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif roots:
        # A host whose clock is wrong by years must come back, too. Requests are signed, and so is the work that comes.
        context.verify_flags |= _NO_CHECK_TIME
    return context


def _remote(request: Request) -> str:
    return urlsplit(request.url).netloc


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    return str(error) or type(error).__name__


def _written(request: Request) -> bytes:
    address = urlsplit(request.url)
    headers: Mapping[str, str] = {
        "Host": address.netloc,
        "Content-Length": str(len(request.body)),
        **request.headers,
    }
    lines = [f"{request.method} {address.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + request.body


async def _read(reader: asyncio.StreamReader, most: int) -> tuple[Response, bool]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise ValueError("this is no answer of HTTP/1.1")
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    body = await _body(reader, headers, most)
    keep = headers.get("connection", "").lower() != "close"
    return Response(status=int(rest[:3]), headers=headers, body=body), keep


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str], most: int) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _chunks(reader, most)
    size = int(headers.get("content-length", "0"))
    if not 0 <= size <= most:
        raise ValueError(f"its answer has more than {most} bytes")
    return await reader.readexactly(size)


async def _chunks(reader: asyncio.StreamReader, most: int) -> bytes:
    body = bytearray()
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        if size < 0 or len(body) + size > most:
            raise ValueError(f"its answer has more than {most} bytes")
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return bytes(body)
