"""The listener of tls-alpn-01 (RFC 8737): a handshake with a certificate made for the name asked for, and no more.

Which proof is to be shown stands in the store, and TLS cannot wait for one while it shakes hands. So the client's first
words are read twice: by a session that only learns the name, then by the one that answers.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.core.acme import Identifier
from holdfast.ports import Clock
from holdfast.solvers.tls_alpn import Shown, certificate_for, identifier_of, plain_context, showing_context

Find = Callable[[Identifier], Awaitable[str | None]]  # the key authorization to show for a name; None: nobody proves it
Line = socket.socket  # bound, and ours

BACKLOG: Final = 256
PIECE: Final = 4096
MOST_ASKED: Final = 32 * 1024  # bytes before we know which name is meant: no honest client needs a tenth of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The port is open to everybody: no line may last, and too many of them push out the oldest."""

    handshake_for: float = 10.0  # seconds, from the first byte to the last
    lines: int = 256


@asynccontextmanager
async def showing(line: Line, find: Find, clock: Clock, limits: Limits = Limits()) -> AsyncIterator[None]:  # noqa: B008
    """Answer on the socket for as long as the block runs."""
    listener = _Listener(find, clock, limits)
    server = await asyncio.start_server(listener.accept, sock=line, limit=PIECE, backlog=BACKLOG)
    try:
        yield
    finally:
        server.close()
        await listener.close()
        await server.wait_closed()


class _Asking(ssl.SSLObject):
    """A session that only hears which name the client wants, and refuses it: unrecognized_name."""

    asked: str | None = None  # until the client has said it; empty if it names none


def _hear(line: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int:
    if isinstance(line, _Asking):
        line.asked = (name or "").lower()
    return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME


class _Listener:
    def __init__(self, find: Find, clock: Clock, limits: Limits) -> None:
        self._find, self._clock, self._limits = find, clock, limits
        self._key = ec.generate_private_key(ec.SECP256R1())  # of this process; it proves nothing, the digest does
        self._asking = plain_context()
        self._asking.sslobject_class = _Asking
        self._asking.sni_callback = _hear
        self._lines: dict[asyncio.Task[None], None] = {}  # the oldest first

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._lines) >= self._limits.lines:
            oldest = next(iter(self._lines))
            del self._lines[oldest]
            oldest.cancel()  # a CA is done in a moment: whoever lingers makes room
        task = asyncio.ensure_future(self._serve(_Talk(reader, writer)))
        self._lines[task] = None
        task.add_done_callback(lambda ended: self._lines.pop(ended, None))

    async def close(self) -> None:
        lines = list(self._lines)
        for each in lines:
            each.cancel()
        await asyncio.gather(*lines, return_exceptions=True)

    async def _serve(self, talk: _Talk) -> None:
        """Whatever goes wrong on a line is the client's affair: it hears an alert, or nothing."""
        with suppress(TimeoutError, OSError, EOFError), talk:
            async with asyncio.timeout(self._limits.handshake_for):
                await self._shake_hands(talk)

    async def _shake_hands(self, talk: _Talk) -> None:
        heard, refusal = await self._first_words(talk)
        context = await self._context_for(heard.asked)
        if context is None:
            await talk.send(refusal.read())
            return
        await talk.answer(context)

    async def _first_words(self, talk: _Talk) -> tuple[_Asking, ssl.MemoryBIO]:
        """The name that is asked for, and what to tell a client whose name is not being proved."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = self._asking.wrap_bio(incoming, outgoing, server_side=True)
        if not isinstance(session, _Asking):
            raise AssertionError("the context makes sessions of this class")
        while len(talk.said) <= MOST_ASKED:
            incoming.write(await talk.hear())
            try:
                session.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                break  # it was refused: by us, with its name, or because it is no TLS
        return session, outgoing

    async def _context_for(self, name: str | None) -> ssl.SSLContext | None:
        if not name:
            return None
        identifier = identifier_of(name)
        proof = await self._find(identifier)
        if proof is None:
            return None
        return showing_context(certificate_for(Shown(identifier, proof), self._key, self._clock.now()), self._key)


class _Talk:
    """One line: what the client said so far, and the handshake with it. Closed at the end, whatever that was."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.said = b""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, ssl.SSLError):
            self._writer.close()  # after what is still to be said, such as an alert
        else:
            self._writer.transport.abort()

    async def hear(self) -> bytes:
        piece = await self._reader.read(PIECE)
        if not piece:
            raise EOFError
        self.said += piece
        return piece

    async def send(self, content: bytes) -> None:
        self._writer.write(content)
        await self._writer.drain()

    async def answer(self, context: ssl.SSLContext) -> None:
        """The whole handshake, from the words that were heard already; nothing is said after it (§3)."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = context.wrap_bio(incoming, outgoing, server_side=True)
        incoming.write(self.said)
        while not self._stepped(session, outgoing):
            incoming.write(await self.hear())
        with suppress(ssl.SSLError):
            session.unwrap()  # we have said all we had to say, and do not wait for the same from the client
        await self.send(outgoing.read())

    def _stepped(self, session: ssl.SSLObject, outgoing: ssl.MemoryBIO) -> bool:
        """Whether the handshake is over; what it has to say is sent, an alert too."""
        try:
            session.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self._writer.write(outgoing.read())
        return True
