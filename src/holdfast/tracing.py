"""Traces by OpenTelemetry, sent by OTLP over HTTP: only loaded where otel.endpoint is set (the extra [otel])."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Final
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, TraceFlags

from holdfast import __version__
from holdfast.telemetry import Metrics, Span, Traces

PATH: Final = "/v1/traces"
EVERY: Final = 2000  # milliseconds between two batches
PATIENCE: Final = 5.0  # seconds for one batch; what does not get through is lost, and counted
EPOCH: Final = 2**32  # fences of one epoch of the store count from a multiple of this
LONGEST: Final = 200  # characters of an error
Fact = str | int | float | bool


class _Ids(IdGenerator):
    """Random ones, save where a run of a job says which: those follow from the job, on every replica alike."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self.wanted: ContextVar[tuple[int, int] | None] = ContextVar("wanted", default=None)

    def generate_trace_id(self) -> int:
        wanted = self.wanted.get()
        return self._random.generate_trace_id() if wanted is None else wanted[0]

    def generate_span_id(self) -> int:
        wanted = self.wanted.get()
        return self._random.generate_span_id() if wanted is None else wanted[1]


class _Counted(SpanExporter):
    """Says how many spans were lost, instead of writing into the log for each."""

    def __init__(self, inner: SpanExporter, metrics: Metrics) -> None:
        self._inner, self._metrics = inner, metrics

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._metrics.traces_lost.inc(len(spans))
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._inner.force_flush(timeout_millis)


class _Seen(Span):
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def tell(self, **facts: Fact) -> None:
        for name, value in facts.items():
            self._span.set_attribute(f"holdfast.{name}", value)

    def failed(self, why: str) -> None:
        self._span.set_status(StatusCode.ERROR, why[:LONGEST])


class OtlpTraces(Traces):
    """Spans in batches, from a thread of the library; a collector that is away costs spans, and no work."""

    def __init__(
        self,
        endpoint: str,
        *,
        headers: Mapping[str, str],
        replica: str,
        metrics: Metrics,
        patience: float = PATIENCE,
    ) -> None:
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())  # losses are a metric, not a line each
        logging.getLogger("opentelemetry").propagate = False
        exporter = OTLPSpanExporter(endpoint=_address(endpoint), headers=dict(headers), timeout=patience)
        self._ids = _Ids()
        about = {"service.name": "holdfast", "service.version": __version__, "service.instance.id": replica}
        self._provider = TracerProvider(id_generator=self._ids, resource=Resource(about), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_Counted(exporter, metrics), schedule_delay_millis=EVERY))
        self._tracer = self._provider.get_tracer("holdfast", __version__)

    def attempt(self, job: str, fence: int, *, asked_in: str = "", **facts: Fact) -> AbstractContextManager[Span]:
        return self._attempt(job, fence, asked_in, facts)

    @contextmanager
    def _attempt(self, job: str, fence: int, asked_in: str, facts: Mapping[str, Fact]) -> Iterator[Span]:
        first = fence % EPOCH <= 1  # since the job was made, or since a failover: what was before it is unknown
        before = [] if first else [Link(_context(job, fence - 1))]
        before += [] if not asked_in else [Link(_request(asked_in), {"holdfast.link": "request"})]
        wanted = self._ids.wanted.set((_trace_id(job), _span_id(job, fence)))
        try:
            span = self._tracer.start_span(
                f"job {facts.get('kind', '')}".strip(), context=Context(), kind=SpanKind.CONSUMER, links=before
            )
        finally:
            self._ids.wanted.reset(wanted)
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            seen = _Seen(span)
            seen.tell(job=job, fence=fence, **facts)
            yield seen

    def call(self, name: str, **facts: Fact) -> AbstractContextManager[Span]:
        return self._call(name, facts)

    @contextmanager
    def _call(self, name: str, facts: Mapping[str, Fact]) -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            name, kind=SpanKind.CLIENT, record_exception=False, set_status_on_exception=False
        ) as span:
            seen = _Seen(span)
            seen.tell(**facts)
            yield seen

    async def close(self) -> None:
        """Send the remaining spans; not for longer than a batch may take."""
        await asyncio.to_thread(self._provider.shutdown)


def _address(endpoint: str) -> str:
    """The whole address, whether or not the path of traces was given."""
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + PATH


def _trace_id(job: str) -> int:
    return int.from_bytes(hashlib.sha256(f"trace {job}".encode()).digest()[:16], "big")


def _span_id(job: str, fence: int) -> int:
    return int.from_bytes(hashlib.sha256(f"run {fence} of {job}".encode()).digest()[:8], "big")


def _request(traceparent: str) -> SpanContext:
    """The span that a client named; its form was checked when it came in."""
    _, trace_id, span_id, flags = traceparent.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))


def _context(job: str, fence: int) -> SpanContext:
    return SpanContext(_trace_id(job), _span_id(job, fence), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
