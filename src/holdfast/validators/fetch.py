"""One GET over HTTP/1.1 (RFC 9112): the status, the Location, and the first bytes of the body. Nothing more is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from holdfast.ports import NetProblem, Stream
from holdfast.validators.dialer import refused
from holdfast.validators.location import Place
from holdfast.validators.verdict import Failed

MAX_HEAD: Final = 16 * 1024
MAX_BODY: Final = 128  # a key authorization has 87
MAX_CHUNK_LINE: Final = 256
MAX_INTERIM: Final = 5  # answers of 1xx before the real one
_PIECE: Final = 4096

_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: [^\r\n]*)?")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?")


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    location: bytes | None
    body: bytes  # as it came, undecoded
    cut_off: bool = False  # there was more


async def get(stream: Stream, place: Place, user_agent: str) -> Reply:
    """Ask, and read as much as is of use; Failed if it is no answer."""
    try:
        await stream.write(_request(place, user_agent))
        return await _Reader(stream, place.url).reply()
    except NetProblem as why:
        raise refused(place.url, why) from None


def _request(place: Place, user_agent: str) -> bytes:
    lines = (
        f"GET {place.target} HTTP/1.1",
        f"Host: {place.authority}",
        f"User-Agent: {user_agent}",
        "Accept: */*",  # some firewalls turn away whoever does not say it
        "Accept-Encoding: identity",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode("ascii")


class _Reader:
    """What has come over the line, and not been used yet."""

    def __init__(self, stream: Stream, url: str) -> None:
        self._stream = stream
        self._url = url
        self._data = b""
        self._ended = False

    async def reply(self) -> Reply:
        for _ in range(MAX_INTERIM + 1):
            status, headers = await self._head()
            if status >= 200:
                break
        else:
            raise self._bad("sent only interim answers")
        location = headers.get(b"location")
        if status != 200:  # redirects and errors alike: what they say is of no use
            return Reply(status, location, b"")
        body = await self._body(headers)
        return Reply(status, location, body[:MAX_BODY], cut_off=len(body) > MAX_BODY)

    async def _head(self) -> tuple[int, dict[bytes, bytes]]:
        line = await self._line(MAX_HEAD, "headers")
        status = _STATUS.fullmatch(line)
        if status is None:
            raise self._bad("did not answer with HTTP/1.1")
        headers, left = dict[bytes, bytes](), MAX_HEAD
        while line := await self._line(left := left - len(line) - 2, "headers"):
            name, _, value = line.partition(b":")
            headers.setdefault(name.lower(), value.strip(b" \t"))
        return int(status[1]), headers

    async def _body(self, headers: dict[bytes, bytes]) -> bytes:
        """At most one byte more than we take, so that it shows that there is more."""
        coding = headers.get(b"transfer-encoding")
        if coding is not None:
            if coding.lower() != b"chunked":
                raise self._bad("sent a body in an unknown transfer coding")
            return await self._chunks()
        length = headers.get(b"content-length")
        if length is None:
            return await self._upto(MAX_BODY + 1)
        if not length.isdigit() or len(length) > 18:
            raise self._bad("sent a content length that is no number")
        wanted = min(int(length), MAX_BODY + 1)
        body = await self._upto(wanted)
        if len(body) < wanted:
            raise self._bad("hung up before the end of its answer", retryable=True)
        return body

    async def _chunks(self) -> bytes:
        body = b""
        while len(body) <= MAX_BODY:
            size = _CHUNK.fullmatch(await self._line(MAX_CHUNK_LINE, "chunk sizes"))
            if size is None:
                raise self._bad("sent a chunk without its size")
            wanted = min(int(size[1], 16), MAX_BODY + 1 - len(body))
            if not wanted:
                break
            piece = await self._upto(wanted)
            body += piece
            if len(piece) < wanted:
                raise self._bad("hung up before the end of its answer", retryable=True)
            if len(body) <= MAX_BODY and await self._line(MAX_CHUNK_LINE, "chunk ends"):
                raise self._bad("sent a chunk that is longer than its size")
        return body

    async def _line(self, limit: int, what: str) -> bytes:
        """One line, without its end: which may be a lone LF (RFC 9112 §2.2), as shell scripts write it."""
        while (at := self._data.find(b"\n")) < 0 and len(self._data) <= limit:
            if not await self._more():
                raise self._bad("hung up before the end of its answer", retryable=True)
        if not 0 <= at <= limit:
            raise self._bad(f"sent too long {what}")
        found, self._data = self._data[:at], self._data[at + 1 :]
        return found.removesuffix(b"\r")

    async def _upto(self, size: int) -> bytes:
        """So many bytes, or all there are."""
        while len(self._data) < size and await self._more():
            pass
        found, self._data = self._data[:size], self._data[size:]
        return found

    async def _more(self) -> bool:
        if not self._ended:
            piece = await self._stream.read(_PIECE)
            self._data += piece
            self._ended = not piece
        return not self._ended

    def _bad(self, did: str, *, retryable: bool = False) -> Failed:
        word = "connection" if retryable else "incorrectResponse"
        return Failed(word, f"{self._url} {did}.", retryable=retryable)
