"""The metrics: the names that dashboards rely on, as Prometheus reads them, set from what is in the store."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import httpx2
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.support.engine import Moody, Watch
from tests.support.jobs import claim, enqueue, update

from holdfast.core.issuers.budget import Limit
from holdfast.errors import StoreUnavailable
from holdfast.operations.installation import observe
from holdfast.store.database import Database
from holdfast.store.tx import Row, Tx
from holdfast.store.work import budgets, cluster
from holdfast.telemetry import Health, Metrics
from holdfast.web.sites import plain_site

pytestmark = pytest.mark.anyio

T = TypeVar("T")
TTL = timedelta(seconds=30)
NAMES = {
    "holdfast_build_info": "gauge",
    "holdfast_jobs": "gauge",
    "holdfast_job_oldest_ready_age_seconds": "gauge",
    "holdfast_job_attempts": "counter",
    "holdfast_job_duration_seconds": "histogram",
    "holdfast_loop_last_tick_timestamp_seconds": "gauge",
    "holdfast_loop_skipped_ticks": "counter",
    "holdfast_loop_failures": "counter",
    "holdfast_lease_held": "gauge",
    "holdfast_budget_remaining": "gauge",
    "holdfast_replicas": "gauge",
    "holdfast_clock_skew_seconds": "gauge",
    "holdfast_store_up": "gauge",
    "holdfast_self_check_ok": "gauge",
    "holdfast_certificates": "gauge",
    "holdfast_certificates_ending": "gauge",
    "holdfast_certificate_not_after_timestamp_seconds": "gauge",
    "holdfast_certificate_renewal_due_timestamp_seconds": "gauge",
    "holdfast_certificate_next_attempt_timestamp_seconds": "gauge",
    "holdfast_issuance_attempts": "counter",
    "holdfast_issuance_duration_seconds": "histogram",
    "holdfast_issuances": "gauge",
    "holdfast_ca_budget_remaining": "gauge",
    "holdfast_ca_circuit_open": "gauge",
}


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def shown(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """Every series of one name: its label values, and its value."""
    family = families(metrics.render().decode())[f"holdfast_{name}"]
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


async def refreshed(db: Any, metrics: Metrics | None = None) -> Metrics:
    metrics = metrics or Metrics()
    await observe.refresh(db, metrics, "me", TTL)
    return metrics


# ── the page ──


async def test_the_page_is_what_prometheus_reads_and_every_promised_name_is_on_it(db: Database) -> None:
    metrics, looked = Metrics(), list[str]()

    async def scrape() -> bytes:
        looked.append("at the store")
        await refreshed(db, metrics)
        return metrics.render()

    async def look() -> None: ...

    pages = httpx2.ASGITransport(app=plain_site(Health(), look=look, scrape=scrape))
    async with httpx2.AsyncClient(transport=pages, base_url="http://localhost") as client:
        answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert looked == ["at the store"]
    found = families(answer.text)
    assert {name: found[name].type for name in NAMES} == NAMES
    assert all(found[name].documentation.endswith(".") for name in NAMES)


async def test_only_counters_are_called_total_and_only_seconds_are_called_seconds() -> None:
    text = Metrics().render().decode()
    for name, family in families(text).items():
        totals = [sample.name for sample in family.samples if sample.name.endswith("_total")]
        assert family.type == "counter" or totals == [], name
        assert not name.endswith(("_ms", "_milliseconds", "_minutes")), name


async def test_a_label_never_carries_a_subject_or_an_id_save_where_the_number_of_series_is_capped() -> None:
    """What grows with the number of certificates or jobs would one day be the largest table of all."""
    metrics = vars(Metrics())
    capped = {"not_after", "renewal_due", "next_attempt"}
    labels = {name for each in metrics.keys() - capped for name in getattr(metrics[each], "_labelnames", ())}
    few = {
        "version",
        "queue",
        "state",
        "outcome",
        "loop",
        "lease",
        "budget",
        "name",
        "ca",
        "phase",
        "reason",
        "days",
        "listener",
        "manager",
        "target",
    }
    assert labels - {"channel", "kind"} == few | {"limit"}  # CAs, channels and targets are few


# ── the gauges ──


async def test_jobs_are_counted_by_queue_and_state_and_go_down_again(db: Database) -> None:
    await enqueue(db, "1")
    await enqueue(db, "2")
    await enqueue(db, "1", kind="other")
    await claim(db, limit=1)
    metrics = await refreshed(db)
    assert shown(metrics, "jobs") == {("k", "ready"): 1, ("k", "running"): 1, ("other", "ready"): 1}
    await update(db, "DELETE FROM jobs WHERE kind = 'k'")
    await refreshed(db, metrics)
    assert shown(metrics, "jobs") == {("other", "ready"): 1}


async def test_the_oldest_ready_job_has_an_age_and_none_has_none(db: Database) -> None:
    metrics = await refreshed(db)
    assert shown(metrics, "job_oldest_ready_age_seconds") == {(): 0}
    await enqueue(db, "late")
    await enqueue(db, "future")
    await update(db, "UPDATE jobs SET due_at = now_us() - 90000000 WHERE subject = 'late'")
    await update(db, "UPDATE jobs SET due_at = now_us() + 90000000 WHERE subject = 'future'")
    await refreshed(db, metrics)
    assert 90 <= shown(metrics, "job_oldest_ready_age_seconds")[()] < 600


async def test_budgets_leases_and_self_checks_show_what_the_store_says(db: Database) -> None:
    def write(tx: Tx) -> None:
        budgets.define(tx, "ca:one", Limit(burst=10, every=timedelta(hours=1)))
        cluster.take_lease(tx, "mine", "me", TTL)
        cluster.take_lease(tx, "theirs", "another", TTL)
        cluster.record_selfcheck(tx, "good", ok=True, details={})
        cluster.record_selfcheck(tx, "bad", ok=False, details={})

    await db.write(write)
    metrics = await refreshed(db)
    assert shown(metrics, "budget_remaining") == {("ca:one",): 10}
    assert shown(metrics, "lease_held") == {("mine",): 1, ("theirs",): 0}
    assert shown(metrics, "self_check_ok") == {("good",): 1, ("bad",): 0}


async def test_a_replica_that_went_silent_is_not_alive_although_it_is_still_listed(db: Database) -> None:
    for holder in ("alive", "silent"):
        await db.write(lambda tx, holder=holder: cluster.replica_seen(tx, holder, holder, "1", draining=False))  # type: ignore[misc]
    await update(db, "UPDATE replicas SET seen_at = now_us() - 31000000 WHERE holder = 'silent'")
    assert shown(await refreshed(db), "replicas") == {(): 1}


async def test_while_the_store_is_away_the_gauges_stay_and_store_up_says_so(db: Database) -> None:
    await enqueue(db)
    metrics, moody = await refreshed(db), Moody(db)
    metrics.store_up.set(1)
    moody.reading = StoreUnavailable("down")
    await refreshed(moody, metrics)
    assert shown(metrics, "jobs") == {("k", "ready"): 1}
    assert shown(metrics, "store_up") == {(): 0}


async def test_a_look_that_breaks_off_half_way_leaves_every_gauge_as_it_was(db: Database) -> None:
    class Half:
        """A transaction that ends in the middle."""

        def __init__(self, tx: Tx) -> None:
            self._tx = tx
            self.now = tx.now

        def row(self, sql: str, **params: Any) -> Row | None:
            return self._tx.row(sql, **params)

        def rows(self, sql: str, **params: Any) -> list[Row]:
            if "FROM replicas" in sql:
                raise StoreUnavailable("gone")
            return self._tx.rows(sql, **params)

    class Breaking(Moody):
        async def read(self, fn: Callable[[Any], T]) -> T:
            return await db.read(lambda tx: fn(Half(tx)))

    await enqueue(db, "1")
    metrics = await refreshed(db)
    await enqueue(db, "2")
    await refreshed(Breaking(db), metrics)
    assert shown(metrics, "jobs") == {("k", "ready"): 1}


async def test_the_version_is_shown() -> None:
    assert Watch().metric("build_info", version="0.1.0") == 1
