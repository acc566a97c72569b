"""One write for one answer: uvicorn sends head and body apart, which over TLS are two records and two system calls."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

TAKEN_WITHIN: Final = 10.0  # seconds, for what a closed connection still has to send


class GatheringProtocol(HttpToolsProtocol):
    """uvicorn's own, on a line that gathers what is written within one turn of the loop."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Gathering(transport))  # type: ignore[arg-type]


class _Gathering:
    """A transport; whatever is not about writing is the inner one's."""

    def __init__(self, inner: asyncio.Transport) -> None:
        self._inner = inner
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)

    def close(self) -> None:
        """A client that does not read what is left must not keep the connection for ever."""
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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
