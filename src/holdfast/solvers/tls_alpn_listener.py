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
from dataclasses import replace
from functools import partial
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.core.acme import Identifier
from holdfast.listening.accepting import Accepting
from holdfast.listening.admission import Admission, Seat, Tally
from holdfast.listening.bounds import Bounds
from holdfast.ports import Clock
from holdfast.solvers.tls_alpn import Shown, certificate_for, identifier_of, plain_context, showing_context

Find = Callable[[Identifier], Awaitable[str | None]]  # the key authorization to show for a name; None: nobody proves it
Line = socket.socket  # bound, and ours
Begin = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]

BACKLOG: Final = 256
PIECE: Final = 4096
MOST_HELD: Final = 256  # connections, whatever the settings allow
MOST_ASKED: Final = 32 * 1024  # bytes before we know which name is meant: no honest client needs a tenth of it


@asynccontextmanager
async def showing(
    line: Line,
    find: Find,
    clock: Clock,
    bounds: Bounds = Bounds(),  # noqa: B008  (a frozen value)
    tally: Tally = Tally(),  # noqa: B008  (it has no state)
) -> AsyncIterator[None]:
    """Answer on the socket for as long as the block runs.

    The port is open to everybody. A CA is done in a moment, so too many connections push out the oldest at once.
    """
    at_most = min(bounds.connections, MOST_HELD)
    admission = Admission(replace(bounds, connections=at_most, probes=0, displaced_after=0.0), tally)
    listener = _Listener(find, clock, admission)
    line.listen(BACKLOG)
    accepting = Accepting(line, listener.protocol, admission, tls=None, refusal=b"")
    try:
        yield
    finally:
        accepting.close()
        await listener.close()
        await accepting.wait_closed()


class _Line(asyncio.StreamReaderProtocol):
    """A connection with streams, and with a seat that is free when it ends."""

    def __init__(self, begin: Begin, release: Callable[[], None]) -> None:
        super().__init__(asyncio.StreamReader(limit=PIECE), begin)
        self._release = release

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        super().connection_lost(exc)


class _Asking(ssl.SSLObject):
    """A session that only hears which name the client wants, and refuses it: unrecognized_name."""

    asked: str | None = None  # until the client has said it; empty if it names none


def _hear(line: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int:
    if isinstance(line, _Asking):
        line.asked = (name or "").lower()
    return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME


class _Listener:
    def __init__(self, find: Find, clock: Clock, admission: Admission) -> None:
        self._find, self._clock, self._admission = find, clock, admission
        self._key = ec.generate_private_key(ec.SECP256R1())  # of this process; it proves nothing, the digest does
        self._asking = plain_context()
        self._asking.sslobject_class = _Asking
        self._asking.sni_callback = _hear
        self._lines: set[asyncio.Task[None]] = set()

    def protocol(self, seat: Seat) -> asyncio.Protocol:
        return _Line(partial(self._begin, seat), lambda: self._admission.release(seat))

    def _begin(self, seat: Seat, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(_Talk(reader, writer)))
        seat.leave = partial(_cancel, task)
        self._lines.add(task)
        task.add_done_callback(self._lines.discard)

    async def close(self) -> None:
        lines = list(self._lines)
        for each in lines:
            each.cancel()
        await asyncio.gather(*lines, return_exceptions=True)

    async def _serve(self, talk: _Talk) -> None:
        """Whatever goes wrong on a line is the client's affair: it hears an alert, or nothing."""
        with suppress(TimeoutError, OSError, EOFError), talk:
            async with asyncio.timeout(self._admission.bounds.head_for):
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


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


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
