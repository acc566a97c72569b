"""The transport to remotes, with a span for each request."""

from __future__ import annotations

from urllib.parse import urlsplit

from holdfast.ports import Request, Response, Transport
from holdfast.telemetry import Traces


class TracedTransport:
    """The same transport, with a span for each request: whom it went to, and what came of it; no path, no header."""

    def __init__(self, inner: Transport, traces: Traces) -> None:
        self._inner, self._traces = inner, traces

    async def request(self, request: Request) -> Response:
        host = urlsplit(request.url).hostname or ""
        with self._traces.call(f"{request.method} {host}", method=request.method, remote=host) as span:
            try:
                answer = await self._inner.request(request)
            except Exception as error:
                span.failed(type(error).__name__)
                raise
            span.tell(status=answer.status)
            return answer
