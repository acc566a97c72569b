"""Log lines, metrics and health: the names that operators will search for."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TextIO, cast

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from holdfast import __version__

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class Log:
    """Structured lines: one event name, then ids and facts. Nothing secret has a name here to be logged under."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def debug(self, event: str, **facts: object) -> None:
        self._logger.debug(event, **facts)

    def info(self, event: str, **facts: object) -> None:
        self._logger.info(event, **facts)

    def warning(self, event: str, **facts: object) -> None:
        self._logger.warning(event, **facts)

    def error(self, event: str, **facts: object) -> None:
        self._logger.error(event, **facts)


class _Stderr:
    """Where the lines go. One that cannot be written (full disk, closed pipe) is lost: it must not stop the work."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def _visible(_logger: object, _method: str, facts: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """A console writes text as it is; other people's must neither steer it nor fail to be written. JSON is safe so."""
    for name, value in facts.items():
        if isinstance(value, str) and not value.isprintable():
            kept = "\n" if name == "exception" else ""
            facts[name] = "".join(char if char.isprintable() or char in kept else ascii(char)[1:-1] for char in value)
    return facts


def make_log(level: str, style: str, **always: object) -> Log:
    """A log on stderr. `style` json: one object a line; console: for people; auto: console at a terminal."""
    if style == "auto":
        style = "console" if sys.stderr.isatty() else "json"
    last: Any = (
        structlog.processors.JSONRenderer(sort_keys=True)
        if style == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    logger = structlog.wrap_logger(
        structlog.PrintLogger(cast(TextIO, _Stderr())),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *([] if style == "json" else [_visible]),
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
    )
    return Log(logger.bind(**always))


class SilentLog(Log):
    """For the simulator, where a million lines a minute would say nothing."""

    def __init__(self) -> None:
        super().__init__(None)

    def debug(self, event: str, **facts: object) -> None: ...
    def info(self, event: str, **facts: object) -> None: ...
    def warning(self, event: str, **facts: object) -> None: ...
    def error(self, event: str, **facts: object) -> None: ...


class ManySeries:
    """A gauge with a thousand series. Through the registry these would take longer than counting the whole inventory.

    The registry knows its name and says what it is; its lines are written here, and put below that.
    """

    def __init__(self, name: str, doc: str, labels: tuple[str, ...]) -> None:
        self._name, self._doc, self._labelnames = name, doc, labels
        self.heading = f"# TYPE {name} gauge\n".encode()
        self.lines = b""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily(self._name, self._doc, labels=self._labelnames)

    def show(self, values: Iterable[tuple[str, float]]) -> None:
        """All that there are, each with its labels as `labelled` writes them."""
        self.lines = "".join(f"{self._name}{labels} {value!r}\n" for labels, value in values).encode()


def labelled(**labels: str) -> str:
    """Labels as a line of /metrics has them."""
    return "{" + ",".join([f'{name}="{_escaped(value)}"' for name, value in labels.items()]) + "}"


def _escaped(value: str) -> str:
    """Almost no value has any of these, and there are thousands in a scrape."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value


class Metrics:
    """The Prometheus registry. Gauges about the store are set from SQL at each scrape, never kept by hand."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._many: list[ManySeries] = []
        self.build_info = self._gauge("build_info", "The running version.", "version")
        self.build_info.labels(version=__version__).set(1)
        self.jobs = self._gauge("jobs", "Jobs by queue (their kind) and state.", "queue", "state")
        self.job_oldest_ready_age = self._gauge("job_oldest_ready_age_seconds", "Wait of the longest-waiting due job.")
        self.job_attempts = self._counter("job_attempts_total", "Attempts by queue and outcome.", "queue", "outcome")
        self.job_duration = Histogram(
            "holdfast_job_duration_seconds",
            "How long a handler ran.",
            ["queue"],
            registry=self.registry,
            buckets=(0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300),
        )
        self.loop_last_tick = self._gauge("loop_last_tick_timestamp_seconds", "When a loop last finished.", "loop")
        self.loop_skipped = self._counter("loop_skipped_ticks_total", "Ticks skipped: still running.", "loop")
        self.loop_failures = self._counter("loop_failures_total", "Ticks that ended in an error.", "loop")
        self.lease_held = self._gauge("lease_held", "1 while this replica holds the lease.", "lease")
        self.budget_remaining = self._gauge("budget_remaining", "Requests that a budget still allows now.", "budget")
        self.replicas = self._gauge("replicas", "Replicas that are alive.")
        self.replicas_at_work = self._gauge("replicas_at_work", "Of these, the ones that were not drained.")
        self.clock_skew = self._gauge("clock_skew_seconds", "This replica's clock minus the database's.")
        self.backup_last_success = self._gauge(
            "backup_last_success_timestamp_seconds", "When the last backup was made; 0: none was."
        )
        self.backup_interval = self._gauge("backup_interval_seconds", "How often one is to be made; 0: never.")
        self.quarantine = self._gauge(
            "quarantine",
            "1 while this installation was restored or is a copy, and acts on nothing until it is released.",
        )
        self.store_commits = self._counter("store_commits_total", "Durable commits by this replica.")
        self.store_up = self._gauge("store_up", "1 while the store takes our heartbeats.")
        self.crl_expires = self._gauge("crl_expires_timestamp_seconds", "When the first of a CA's lists ends.", "ca")
        self.self_check_ok = self._gauge("self_check_ok", "1 if the last self-check of this name passed.", "name")
        self.connections = self._gauge("connections", "Connections that a listener holds.", "listener")
        self.connections_refused = self._counter(
            "connections_refused_total", "Connections that a listener refused or ended.", "listener", "reason"
        )
        self._of_lifecycle()
        self._of_notifications()
        self._of_deployments()

    def _of_notifications(self) -> None:
        self.notifications = self._gauge("notifications", "Notifications by channel and state.", "channel", "state")
        self.notifications_dead = self._gauge(
            "notifications_dead", "Notifications that were given up; a person must look."
        )
        self.notification_oldest = self._gauge(
            "notification_oldest_waiting_seconds",
            "How long the longest-waiting notification of a channel waits.",
            "channel",
        )
        self.channel_down = self._gauge("channel_down", "1 while a channel does not answer.", "channel")
        self.notification_deliveries = self._counter(
            "notification_deliveries_total", "Sends by this replica.", "channel", "outcome"
        )

    def _of_deployments(self) -> None:
        self.deployments = self._gauge("deployments", "Deployments by state; superseded ones are left out.", "state")
        self.target_circuit_open = self._gauge(
            "target_circuit_open", "1 while a target is left alone after failures.", "target"
        )
        self.target_paused = self._gauge("target_paused", "1 while a person holds deployments to a target.", "target")
        self.deployment_steps = self._counter(
            "deployment_steps_total", "Steps of deployments by this replica, by the state they led to.", "state"
        )

    def _of_lifecycle(self) -> None:
        """About certificates and CAs: of the whole installation, so every replica says the same. Take max, not sum."""
        self.certificates = self._gauge("certificates", "Certificates by phase and reason code.", "phase", "reason")
        self.certificates_ending = self._gauge(
            "certificates_ending", "Certificates that end within so many days; 0: have ended.", "days"
        )
        self.not_after = self._per_certificate("not_after", "When it ends.")
        self.renewal_due = self._per_certificate("renewal_due", "When its renewal is, or was, due.")
        self.next_attempt = self._per_certificate("next_attempt", "When it is tried next; in the past: it is due.")
        self.series_left_out = self._gauge(
            "certificate_series_left_out", "Certificates without series of their own: metrics.certificate_series."
        )
        self.issuance_attempts = self._counter(
            "issuance_attempts_total", "Attempts that ended since this replica began.", "ca", "outcome", "reason"
        )
        self.issuance_duration = Histogram(
            "holdfast_issuance_duration_seconds",
            "From the beginning of an attempt to its certificate.",
            ["ca"],
            registry=self.registry,
            buckets=(1, 5, 15, 60, 300, 900, 3600, 6 * 3600, 86400),
        )
        self.finds = self._gauge("finds", "Finds by state and by who manages them.", "state", "manager")
        self.unmanaged = self._gauge("certificates_unmanaged", "Certificates served that are not managed here.")
        self.endpoints = self._gauge("endpoints", "Endpoints by the reason code of the last look.", "reason")
        self.issuances = self._gauge("issuances", "Attempts under way by CA and state.", "ca", "state")
        self.ca_budget = self._gauge("ca_budget_remaining", "What a CA's limit still allows now.", "ca", "limit")
        self.ca_circuit_open = self._gauge("ca_circuit_open", "1 while a CA is left alone after failures.", "ca")
        self.ca_paused = self._gauge("ca_paused", "1 while the issuer is paused by a person.", "ca")
        self.ca_issuer_not_after = self._gauge(
            "ca_issuer_not_after_timestamp_seconds", "When the issuer of one of our own CAs ends.", "ca"
        )
        self.approvals_pending = self._gauge("approvals_pending", "Attempts that wait for a second person.")
        self.gauges_age = self._gauge("store_gauges_age_seconds", "How old what comes from the store is.")
        self.gauges_failures = self._counter("store_gauges_failures_total", "Looks at the store that failed.")
        self.traces_lost = self._counter("trace_spans_lost_total", "Spans that could not be sent to otel.endpoint.")
        self.gauges_took = self._gauge("store_gauges_took_seconds", "How long reading it from the store took.")

    def _per_certificate(self, what: str, doc: str) -> ManySeries:
        made = ManySeries(f"holdfast_certificate_{what}_timestamp_seconds", doc, ("certificate", "ca", "owner"))
        self.registry.register(made)
        self._many.append(made)
        return made

    def _gauge(self, name: str, doc: str, *labels: str) -> Gauge:
        return Gauge(f"holdfast_{name}", doc, labels, registry=self.registry)

    def _counter(self, name: str, doc: str, *labels: str) -> Counter:
        return Counter(f"holdfast_{name}", doc, labels, registry=self.registry)

    def render(self) -> bytes:
        text = generate_latest(self.registry)
        for each in self._many:
            text = text.replace(each.heading, each.heading + each.lines, 1)
        return text


class Span:
    """A span of work for traces; this one records nothing."""

    def tell(self, **facts: str | int | float | bool) -> None:
        """Facts by their names; nothing secret has a name here either."""

    def failed(self, why: str) -> None: ...


class Traces:
    """Where spans go: nowhere, unless otel.endpoint says where (tracing.py)."""

    def attempt(self, job: str, fence: int, *, asked_in: str = "", **facts: str | int) -> AbstractContextManager[Span]:
        """One run of a job. All runs of it are one trace, on whatever replica; each is linked to the one before.

        `asked_in`: the traceparent (W3C) of the request that asked for the job: each run is linked to that, too.
        """
        return contextlib.nullcontext(_UNSEEN)

    def call(self, name: str, **facts: str | int) -> AbstractContextManager[Span]:
        """A call to a remote, as a child of the current span."""
        return contextlib.nullcontext(_UNSEEN)

    async def close(self) -> None: ...


_UNSEEN: Final = Span()

StartPhase = Literal["settings", "store", "schema", "keys", "engine", "serving"]
PHASES: Final[tuple[StartPhase, ...]] = ("settings", "store", "schema", "keys", "engine", "serving")


@dataclass
class Health:
    """What the probes say. Phases are passed in order; a phase that waits says why."""

    passed: list[StartPhase] = field(default_factory=list)
    waiting_for: str = ""  # why the current phase is not over
    store_problem: str = "not connected yet"
    beat_problem: str = ""  # why our last heartbeat could not be written: reading may work on a full disk
    draining: bool = False
    rests: bool = False  # an operator asked this replica to take no more work
    loops: dict[str, dict[str, Any]] = field(default_factory=dict)  # how each loop of this replica ended last

    def enter(self, phase: StartPhase) -> None:
        self.passed.append(phase)
        self.waiting_for = ""

    @property
    def started(self) -> bool:
        return len(self.passed) == len(PHASES)

    def startup(self) -> Mapping[str, object]:
        current = next((phase for phase in PHASES if phase not in self.passed), None)
        return {
            "started": self.started,
            "passed": list(self.passed),
            "phase": current,
            "waiting_for": self.waiting_for,
        }

    def readiness(self) -> str:
        """Why traffic should not come here; empty when it should."""
        if self.draining:
            return "draining: this replica is stopping"
        if self.rests:
            return "draining: this replica was asked to take no more work"
        if not self.started:
            return self.waiting_for or "starting"
        return self.store_problem or self.beat_problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What the engine reports through."""

    log: Log
    metrics: Metrics
    health: Health = field(default_factory=Health)
    traces: Traces = field(default_factory=Traces)
