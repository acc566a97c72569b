"""The accept loop: a connection is counted before anything is read from it, and too many of them do not stop it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from holdfast.listening.admission import Admission, Seat
from holdfast.listening.bounds import LOBBY, PROBES, RefusalReason

AT_ONCE: Final = 64  # connections accepted in one turn of the loop, which has other things to do
AGAIN_AFTER: Final = 0.1  # seconds; accepting without descriptors would only turn the loop
ASKS_WITHIN: Final = 0.02  # seconds that a probe may need to send its first words after it was accepted
CLOSING_FOR: Final = 5.0  # seconds that TLS waits for the client's good-bye
Make = Callable[[Seat], asyncio.BaseProtocol]


class Accepting:
    """Accepts on a listening socket from the start to `close`. uvicorn closes it like a server of asyncio."""

    def __init__(
        self, line: socket.socket, make: Make, admission: Admission, *, tls: ssl.SSLContext | None, refusal: bytes
    ) -> None:
        """`refusal` is said to a client that gets no seat; over TLS there is no way to say it."""
        self._line, self._make, self._admission, self._tls = line, make, admission, tls
        self._refusal = b"" if tls else refusal
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._lobby: deque[tuple[socket.socket, str]] = deque()
        self._judging: asyncio.TimerHandle | None = None
        self._loop.add_reader(line.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more connections, and end those that have no protocol yet."""
        if self._again is not None:
            self._again.cancel()
        if self._line.fileno() >= 0:
            self._loop.remove_reader(self._line.fileno())
            self._line.close()
        if self._judging is not None:
            self._judging.cancel()
        for connection, _ in self._lobby:
            connection.close()
        for each in self._beginning:
            each.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._beginning, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, peer = self._line.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue  # it was gone before we came to it
            except OSError:
                self._starved()
                return
            connection.setblocking(False)
            self._enter(connection, str(peer[0]) if isinstance(peer, tuple) else "", waits=True)

    def _starved(self) -> None:
        """No descriptors or no memory: new connections wait in the backlog until there are some again."""
        self._admission.tally.refused(RefusalReason.DESCRIPTORS)
        self._admission.free_descriptors()
        self._loop.remove_reader(self._line.fileno())
        self._again = self._loop.call_later(
            AGAIN_AFTER, lambda: self._loop.add_reader(self._line.fileno(), self._accept)
        )

    def _enter(self, connection: socket.socket, host: str, *, waits: bool) -> None:
        """`waits`: if there is no room now, it may show that it is a probe before it is refused."""
        seat = self._admission.enter(host, partial(_cut, connection), partial(_is_probe, connection))
        if isinstance(seat, Seat):
            task = self._loop.create_task(self._begin(connection, seat))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)
        elif waits and self._admission.bounds.probes:
            self._let_wait(connection, host)
        else:
            self._refuse(connection, seat)

    def _let_wait(self, connection: socket.socket, host: str) -> None:
        """We may be quicker than its first words; in a flood, one costs us a look, and not a protocol."""
        self._lobby.append((connection, host))
        if len(self._lobby) > LOBBY:
            self._enter(*self._lobby.popleft(), waits=False)
        if self._judging is None:
            self._judging = self._loop.call_later(ASKS_WITHIN, self._judge)

    def _judge(self) -> None:
        self._judging = None
        waiting, self._lobby = self._lobby, deque()
        for connection, host in waiting:
            self._enter(connection, host, waits=False)

    async def _begin(self, connection: socket.socket, seat: Seat) -> None:
        """Hand it to its protocol, which releases the seat; over TLS that is after the handshake."""
        make = partial(self._make, seat)
        try:
            if self._tls is None:
                await self._loop.connect_accepted_socket(make, connection)
            else:
                await self._loop.connect_accepted_socket(
                    make, connection, ssl=self._tls,
                    ssl_handshake_timeout=self._admission.bounds.head_for, ssl_shutdown_timeout=CLOSING_FOR,
                )  # fmt: skip
        except OSError:  # of which TimeoutError and SSLError are kinds
            if seat in self._admission:  # else it was displaced, and that was told
                self._admission.tally.refused(RefusalReason.HANDSHAKE)
            self._admission.release(seat)
        except BaseException:
            self._admission.release(seat)
            raise

    def _refuse(self, connection: socket.socket, reason: RefusalReason) -> None:
        self._admission.tally.refused(reason)
        with suppress(OSError):
            connection.send(self._refusal)
            connection.recv(64 * 1024)  # bytes left unread when we close make the client lose the answer
        connection.close()


def _is_probe(connection: socket.socket) -> bool:
    with suppress(OSError):
        method, _, path = connection.recv(32, socket.MSG_PEEK).partition(b" ")
        return method in (b"GET", b"HEAD") and path.startswith(PROBES)
    return False


def _cut(connection: socket.socket) -> None:
    """End a connection that has no protocol yet: the client sees it close."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
