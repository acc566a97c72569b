"""uvicorn's HTTP protocol with our bounds: sizes, times, and one write for each answer."""

from __future__ import annotations

import asyncio
import http
import json
from typing import Any, Final, NoReturn

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.listening.admission import Admission, Seat
from holdfast.listening.bounds import PROBES, RefusalReason

# ── One write for each answer ──
# uvicorn sends head and body apart, which over TLS are two records and two system calls.


TAKEN_WITHIN: Final = 10.0  # seconds, for what a closed connection still has to send


class GatheringProtocol(HttpToolsProtocol):
    """uvicorn's protocol, on a transport that gathers the writes of one turn of the loop."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Gathering(transport))  # type: ignore[arg-type]


class _Gathering:
    """A transport that gathers writes; everything else is passed to the inner transport."""

    def __init__(self, inner: asyncio.Transport) -> None:
        self._inner = inner
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)

    def close(self) -> None:
        """A client that does not read the rest must not keep the connection for ever."""
        self._flush()
        if not self._inner.is_closing() and self._inner.get_write_buffer_size():
            self._loop.call_later(TAKEN_WITHIN, self._inner.abort)
        self._inner.close()

    def write_eof(self) -> None:
        self._flush()
        self._inner.write_eof()

    def _flush(self) -> None:
        if self._pieces and not self._inner.is_closing():
            self._inner.write(b"".join(self._pieces))
        self._pieces.clear()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


# ── Bounds ──
# How large a head may be, how long a client may take, and the answer to a client beyond these bounds.


PIECE: Final = 16 * 1024  # bytes that the parser gets at a time, so that a bound is met soon after it is passed
LEAST_RATE: Final = 64 * 1024  # bytes a second: a body that comes faster than that may take as long as it needs
LARGEST_BODY: Final = 32 << 20  # bytes; what a route may read is less, and this holds for all of them
MOST_PIPELINED: Final = 16  # requests that wait for the answers to those before them
PROBE_WITHIN: Final = 2.0  # seconds; a probe sends its one line at once
HEARD_OUT_FOR: Final = (
    2.0  # seconds that a refused client may go on sending: if we just closed, it would lose the answer
)
THROWN_AWAY: Final = 256 * 1024  # bytes of that, at most
RETRY_AFTER: Final = 5  # seconds

ANSWERS: Final = {
    RefusalReason.HEAD_SIZE: (431, "The head of the request is larger than listeners.head_size allows."),
    RefusalReason.HEAD_FIELDS: (431, "The request has more header fields than listeners.head_fields allows."),
    RefusalReason.HEAD_TIMEOUT: (408, "The head of the request did not arrive within listeners.head_timeout."),
    RefusalReason.BODY_TIMEOUT: (408, "The body of the request did not arrive within listeners.body_timeout."),
    RefusalReason.BODY_SIZE: (413, f"The body of the request has more than {LARGEST_BODY >> 20} MiB."),
    RefusalReason.PIPELINED: (503, f"More than {MOST_PIPELINED} requests wait on this connection."),
    RefusalReason.LISTENER_FULL: (503, "This server holds as many connections as it may."),
    RefusalReason.DISPLACED: (503, "This server needed the connection for another client."),
    RefusalReason.BAD_REQUEST: (400, "This is not a request of HTTP/1.1."),
}


def answer(reason: RefusalReason) -> bytes:
    """The whole response that refuses a request, before any application saw it."""
    status, detail = ANSWERS[reason]
    phrase = http.HTTPStatus(status).phrase
    body = json.dumps({"type": "about:blank", "title": phrase, "status": status, "detail": detail}).encode()
    later = f"retry-after: {RETRY_AFTER}\r\n" if status == 503 else ""
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/problem+json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}{later}connection: close\r\n\r\n".encode() + body


class BoundedProtocol(GatheringProtocol):
    """One connection. It is `heard` for requests until it is refused; after that, what still comes is thrown away."""

    def __init__(self, *args: Any, admission: Admission, seat: Seat, **more: Any) -> None:
        super().__init__(*args, **more)
        self._admission, self._seat, self._bounds = admission, seat, admission.bounds
        self.timeout_keep_alive = self._bounds.idle_for  # type: ignore[assignment]
        self._heard = True
        self._begun = self._in_body = False
        self._fed = 0  # bytes that brought neither a head to its end nor a body on: a head's, or trailers
        self._head_size = self._head_fields = 0
        self._body_bytes, self._body_due = 0, 0.0
        self._due: asyncio.TimerHandle | None = None  # for the head or the body
        self._cut: asyncio.TimerHandle | None = None  # until when the client must read what we wrote
        self._refusal: RefusalReason | None = None

    # ── The connection ──

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._seat not in self._admission:
            transport.abort()  # displaced between its handshake and now
            return
        self._seat.leave = self._displaced
        self._head_within(PROBE_WITHIN if self._seat.only_probes else self._bounds.head_for)

    def connection_lost(self, exc: Exception | None) -> None:
        self._admission.release(self._seat)
        self._disarm()
        self._unset_keepalive_if_required()
        self._reads_again()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if not self._heard:
            self._throw_away(len(data))
            return
        view = memoryview(data)
        for start in range(0, len(data), PIECE):
            if not self._read(view[start : start + PIECE]):
                return
        if self._due is None:
            self._wait_for_the_rest()

    def _read(self, piece: memoryview) -> bool:
        """Whether the client may go on."""
        was_in_body, body = self._in_body, self._body_bytes
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            pass  # to what we do not speak: its request is answered like any other
        except httptools.HttpParserError:
            self._refuse(self._refusal or RefusalReason.BAD_REQUEST)
            return False
        if was_in_body != self._in_body or self._body_bytes != body:
            self._fed = 0
            return True
        self._fed += len(piece)
        if self._fed > self._bounds.head_size + PIECE:  # the first piece may hold the end of what was before
            self._refuse(RefusalReason.HEAD_SIZE)
        return self._heard

    def _wait_for_the_rest(self) -> None:
        if self._in_body:
            self._body_due = self.loop.time() + self._bounds.body_for
            self._due = self.loop.call_later(self._bounds.body_for, self._body_is_late)
        elif self._begun or not (self._answering() or self.timeout_keep_alive_task):
            self._head_within(self._bounds.head_for)

    # ── What the parser finds ──

    def on_message_begin(self) -> None:
        self._begun = True
        self._fed = self._head_size = self._head_fields = 0
        self._admission.waits(self._seat)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._grown(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_fields += 1
        if self._head_fields > self._bounds.head_fields:
            self._stop(RefusalReason.HEAD_FIELDS)
        self._grown(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._seat.only_probes and not self.url.startswith(PROBES):
            self._stop(RefusalReason.LISTENER_FULL)
        if len(self.pipeline) >= MOST_PIPELINED:
            self._stop(RefusalReason.PIPELINED)
        self._disarm()
        self._in_body, self._body_bytes = True, 0
        super().on_headers_complete()
        if self._seat.only_probes:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > LARGEST_BODY:
            self._stop(RefusalReason.BODY_SIZE)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._disarm()
        self._begun = self._in_body = False
        super().on_message_complete()
        if self._answering():
            self._admission.at_work(self._seat)
        else:  # it was answered before all of it was here, and waits for nothing
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(self._bounds.idle_for, self.timeout_keep_alive_handler)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline:
            self._admission.waits(self._seat)

    def _grown(self, size: int) -> None:
        self._head_size += size
        if self._head_size > self._bounds.head_size:
            self._stop(RefusalReason.HEAD_SIZE)

    def _stop(self, reason: RefusalReason) -> NoReturn:
        """Leave the parser by the only way it has."""
        self._refusal = reason
        raise ValueError(reason)

    # ── Time ──

    def _head_within(self, seconds: float) -> None:
        self._due = self.loop.call_later(seconds, self._head_is_late, seconds)

    def _head_is_late(self, seconds: float) -> None:
        self._due = None
        if self._answering():  # we may have stopped reading until that is done: it is not the client who is late
            self._head_within(seconds)
        else:
            self._refuse(RefusalReason.HEAD_TIMEOUT)

    def _body_is_late(self) -> None:
        left = self._body_due + self._body_bytes / LEAST_RATE - self.loop.time()
        if left > 0:
            self._due = self.loop.call_later(left, self._body_is_late)
        else:
            self._due = None
            self._refuse(RefusalReason.BODY_TIMEOUT)

    def _disarm(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._cut is None:
            self._cut = self.loop.call_later(self._bounds.body_for, self._is_not_reading)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reads_again()

    def _reads_again(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None

    def _is_not_reading(self) -> None:
        self._cut = None
        self._admission.tally.refused(RefusalReason.NOT_READING)
        self.transport.abort()

    # ── The end ──

    def _answering(self) -> bool:
        """Whether an answer is not complete: nothing else may be said before it is."""
        return self.cycle is not None and not self.cycle.response_complete

    def _displaced(self) -> None:
        self._end(RefusalReason.DISPLACED)

    def _refuse(self, reason: RefusalReason) -> None:
        self._admission.tally.refused(reason)
        self._end(reason)

    def _end(self, reason: RefusalReason) -> None:
        """End the connection; a client in the middle of a request, and of no answer, gets the reason."""
        self._heard = False
        self._disarm()
        self._unset_keepalive_if_required()
        tell = self._may_be_told(reason)
        if self._answering():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if reason is RefusalReason.DISPLACED and self.scheme == "https":
            self.transport.abort()  # TLS would wait for the client's good-bye, and its place is taken
            return
        if tell:
            self.transport.write(answer(reason))
        if not tell or reason is RefusalReason.DISPLACED:
            self.transport.close()
            return
        if self.scheme == "http":
            self.transport.write_eof()
        self._fed = 0
        self._cut = self._cut or self.loop.call_later(HEARD_OUT_FOR, self.transport.abort)

    def _throw_away(self, size: int) -> None:
        """What a refused client still sends; from a certain point on it stays with the client."""
        self._fed += size
        if self._fed > THROWN_AWAY and not self.transport.is_closing():
            self.transport.pause_reading()

    def _may_be_told(self, reason: RefusalReason) -> bool:
        if self._answering():
            return self._in_body and not self.pipeline and not self.cycle.response_started
        return self._begun or reason is RefusalReason.BAD_REQUEST
