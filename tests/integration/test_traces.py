"""Traces: what a real collector on loopback receives by OTLP, for jobs that end well, fail, and go on elsewhere."""

import asyncio
import gzip
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.routing import Route
from tests.support.api import a_desk
from tests.support.engine import Watch, eventually, working
from tests.support.jobs import enqueue
from tests.support.processes import environment
from tests.support.secrets_planted import MARK, TRACED_KEY

from holdfast.app import App
from holdfast.config import load
from holdfast.core.client import traceparent
from holdfast.core.work.job import Again, Done, JobFailed, Outcome
from holdfast.engine.kind import JobKind, Work
from holdfast.errors import SettingRefused, TryLater
from holdfast.ports import Request, Response
from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.telemetry import Metrics, Traces
from holdfast.tracing import OtlpTraces
from holdfast.web.serve import bind, serving
from holdfast.world import SystemClock, TracedTransport

pytestmark = pytest.mark.anyio


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[], Engine]:
    """One store is enough here: traces do not touch it."""
    return lambda: SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())


@dataclass
class Collector:
    """What was sent to it."""

    url: str = ""
    spans: list[Any] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    async def take(self, request: HttpRequest) -> HttpResponse:
        body = await request.body()
        if request.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        asked = ExportTraceServiceRequest.FromString(body)
        self.headers.append(dict(request.headers))
        for resource in asked.resource_spans:
            self.resources.append({each.key: each.value.string_value for each in resource.resource.attributes})
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return HttpResponse(b"", media_type="application/x-protobuf")


@asynccontextmanager
async def a_collector() -> AsyncIterator[Collector]:
    line, collector = bind("127.0.0.1", 0), Collector()
    app = Starlette(routes=[Route("/v1/traces", collector.take, methods=["POST"])])
    async with serving(app, line):
        collector.url = f"http://127.0.0.1:{line.getsockname()[1]}"
        yield collector


def facts(span: Any) -> dict[str, Any]:
    """Attributes without our prefix."""
    return {
        each.key.removeprefix("holdfast."): getattr(each.value, each.value.WhichOneof("value"))
        for each in span.attributes
    }


def traces_to(collector: Collector, metrics: Metrics | None = None, **more: float) -> OtlpTraces:
    return OtlpTraces(collector.url, headers={"x-tenant": "us"}, replica="here", metrics=metrics or Metrics(), **more)


async def test_each_run_of_a_job_is_a_span_with_its_kind_subject_attempt_and_outcome(db: Database) -> None:
    async def handler(work: Work) -> Outcome:
        match work.claim.subject:
            case "well":
                return Done()
            case "bad":
                return JobFailed(error="the CA said no", reason="CA_REFUSED", final=True)
            case _ if work.claim.fence % 2**32 == 1:
                return Again(after=timedelta(0), reason="UNDER_WAY")
        return Done()

    async with a_collector() as collector:
        traces = traces_to(collector)
        watch = Watch(traces=traces)
        for subject in ("well", "bad", "twice"):
            await enqueue(db, subject)
        async with working(db, [JobKind(name="k", handler=handler)], watch=watch):
            await eventually(lambda: watch.attempts("done") == 2 and watch.attempts("failed") == 1)
        await traces.close()
        told = {(facts(span)["subject"], facts(span)["fence"] % 2**32): span for span in collector.named("job k")}
    assert set(told) == {("well", 1), ("bad", 1), ("twice", 1), ("twice", 2)}
    well = facts(told["well", 1])
    assert (well["kind"], well["attempt"], well["outcome"], well["reason"]) == ("k", 1, "done", "")
    bad = told["bad", 1]
    assert (facts(bad)["outcome"], facts(bad)["reason"], bad.status.message) == (
        "failed", "CA_REFUSED", "the CA said no",
    )  # fmt: skip
    first, second = told["twice", 1], told["twice", 2]
    assert first.trace_id == second.trace_id != well_trace(told)
    assert [link.span_id for link in second.links] == [first.span_id]
    assert not second.parent_span_id
    assert collector.headers[0]["x-tenant"] == "us"
    assert collector.resources[0]["service.instance.id"] == "here"


def well_trace(told: dict[Any, Any]) -> bytes:
    return bytes(told["well", 1].trace_id)


class Remote:
    """Somebody outside, as the transport sees them."""

    async def request(self, request: Request) -> Response:
        if "broken" in request.url:
            raise TryLater("broken.example did not answer", reason="TIMEOUT")
        return Response(status=201, headers={}, body=b"")


async def test_a_call_to_somebody_outside_is_a_part_of_the_run_that_made_it_and_shows_no_path() -> None:
    async with a_collector() as collector:
        traces = traces_to(collector)
        transport = TracedTransport(Remote(), traces)
        with traces.attempt("job_1", 1, kind="issue", subject="i", attempt=1):
            await transport.request(Request(method="POST", url=f"https://ca.example/secret-path?key={TRACED_KEY}"))
            with pytest.raises(TryLater):
                await transport.request(Request(method="GET", url="https://broken.example/"))
        await traces.close()
        [run] = collector.named("job issue")
        [post] = collector.named("POST ca.example")
        [get] = collector.named("GET broken.example")
    assert post.parent_span_id == get.parent_span_id == run.span_id
    assert (facts(post)["status"], get.status.message) == (201, "TryLater")
    assert MARK.encode() not in post.SerializeToString() + run.SerializeToString()
    assert b"secret-path" not in post.SerializeToString()


async def test_two_runs_at_the_same_time_do_not_mix_their_calls() -> None:
    async with a_collector() as collector:
        traces = traces_to(collector)
        transport = TracedTransport(Remote(), traces)

        async def run(number: int) -> None:
            with traces.attempt(f"job_{number}", 1, kind="k", subject=str(number), attempt=1):
                await asyncio.sleep(0)
                await transport.request(Request(method="GET", url=f"https://ca{number}.example/"))

        await asyncio.gather(*(run(number) for number in range(8)))
        await traces.close()
        runs = {facts(span)["subject"]: span.span_id for span in collector.named("job k")}
        for number in range(8):
            [call] = collector.named(f"GET ca{number}.example")
            assert call.parent_span_id == runs[str(number)]


async def test_a_collector_that_is_away_costs_spans_and_nothing_else() -> None:
    line, metrics = bind("127.0.0.1", 0), Metrics()
    nobody = Collector(url=f"http://127.0.0.1:{line.getsockname()[1]}")
    line.close()
    traces = traces_to(nobody, metrics, patience=0.5)
    with traces.attempt("job_1", 1, kind="k"):
        pass
    await traces.close()
    assert metrics.registry.get_sample_value("holdfast_trace_spans_lost_total") == 1


async def test_without_an_endpoint_there_are_no_traces(tmp_path: Path) -> None:
    settings = load(None, environment(tmp_path, {}), Path.read_bytes)
    assert type(App(settings)._telemetry.traces) is Traces


async def test_an_endpoint_without_the_extra_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = environment(tmp_path, {}) | {"HOLDFAST_OTEL_ENDPOINT": "http://127.0.0.1:4318"}
    settings = load(None, env, Path.read_bytes)
    monkeypatch.setitem(sys.modules, "holdfast.tracing", None)  # as if it could not be imported
    with pytest.raises(SettingRefused) as refused:
        App(settings)
    assert "holdfast[otel]" in refused.value.hint


# ── the request that asked for it (W3C trace context) ──

PARENT = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_what_a_request_asks_for_is_linked_to_its_trace_and_nobody_outside_hears_of_it(
    db: Database, tmp_path: Path
) -> None:
    async with a_collector() as collector, a_desk(db, tmp_path) as desk:
        traces, house = traces_to(collector), desk.house
        house.watch.traces = traces
        admin = await desk.as_()
        async with house.working():
            given = {"traceparent": f"00-{PARENT}", "Prefer": "wait=30"}
            made = await admin("POST", "/certificates", {"names": ["www.example.com"]}, headers=given)
            assert made.status_code == 201
            await admin.post("/certificates", {"names": ["api.example.com"]}, Prefer="wait=30", traceparent="00-no")
        await traces.close()
        by_subject = {facts(span)["subject"]: span for span in collector.named("job issue")}
        [audited] = (await admin.get("/audit", action="certificate_requested", subject=made.json()["id"]))["items"]
        attempts = {each["names"][0]: each["id"] for each in (await admin.get("/issuances"))["items"]}
    linked = by_subject[attempts["www.example.com"]]
    [link] = linked.links
    assert (link.trace_id.hex(), link.span_id.hex()) == tuple(PARENT.split("-")[:2])
    assert linked.trace_id != link.trace_id, "a link, and no parent"
    assert list(by_subject[attempts["api.example.com"]].links) == []
    assert audited["origin"]["trace"] == f"00-{PARENT}"


async def test_a_request_to_somebody_outside_carries_no_trace() -> None:
    class Seen(Remote):
        headers: ClassVar[list[str]] = []

        async def request(self, request: Request) -> Response:
            self.headers += [name.lower() for name in request.headers]
            return await super().request(request)

    async with a_collector() as collector:
        traces = traces_to(collector)
        with traces.attempt("job_1", 1, asked_in=f"00-{PARENT}", kind="issue", subject="i", attempt=1):
            await TracedTransport(Seen(), traces).request(Request(method="POST", url="https://ca.example/"))
        await traces.close()
    assert not {"traceparent", "tracestate", "baggage"} & set(Seen.headers)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (f"00-{PARENT}", f"00-{PARENT}"),
        (f"01-{PARENT}-later", f"00-{PARENT}"),
        (f"00-{PARENT}-more", ""),
        (f"01-{PARENT}more", ""),
        (f"ff-{PARENT}", ""),
        (f"00-{PARENT.upper()}", ""),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", ""),
        (f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01", ""),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736", ""),
        ("", ""),
    ],
    ids=["good", "later version", "too long", "no dash", "ff", "upper case", "no trace", "no span", "half", "none"],
)
def test_only_a_traceparent_that_is_one_is_kept(given: str, kept: str) -> None:
    assert traceparent(given) == kept
