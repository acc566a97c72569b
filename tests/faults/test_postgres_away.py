"""PostgreSQL is away: at the start, later, half-way. The replica says so, stays, and goes on by itself."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.conftest import Serve
from tests.support.postgres import HOST, Cluster
from tests.support.processes import Served
from tests.support.proxy import FaultProxy
from tests.support.reaper import until
from tests.support.secrets_planted import AWAY_PASSWORD

from holdfast.store import migrate

PASSWORD = AWAY_PASSWORD


@pytest.fixture
def database(victim: Cluster) -> Iterator[str]:
    if not victim.running:
        victim.restart()
    url = victim.create_database()
    yield url
    victim.resume()
    if not victim.running:
        victim.restart()
    victim.drop_database(url)


@pytest.fixture
def url(database: str) -> str:
    """With a password: the server does not ask for it, and nobody else may ever see it."""
    return database.replace("holdfast@", f"holdfast:{PASSWORD}@")


def told(served: Served, path: str) -> tuple[int, dict[str, object]]:
    status, body = served.get(path)
    return status, json.loads(body)


def all_that_it_said(served: Served) -> str:
    answers = [served.get(path)[1] for path in ("/health/live", "/health/ready", "/health/startup", "/metrics")]
    return "\n".join([served.output(), *answers])


def test_a_replica_that_starts_before_its_database_waits_says_why_and_then_serves(
    serve: Serve, victim: Cluster, url: str
) -> None:
    victim.stop()
    served = serve(STORE_URL=url)
    served.wait_for_event("store.unreachable", times=2)
    where = f"{HOST}:{victim.port}"
    assert served.get("/health/live")[0] == 200
    status, ready = told(served, "/health/ready")
    assert status == 503
    assert where in str(ready["reason"])
    status, startup = told(served, "/health/startup")
    assert (status, startup["phase"]) == (503, "store")
    assert where in str(startup["waiting_for"])
    assert PASSWORD not in all_that_it_said(served)
    victim.restart()
    served.wait_until_ready()
    assert told(served, "/health/startup")[0] == 200
    assert served.process.poll() is None
    assert PASSWORD not in all_that_it_said(served)
    assert served.stop() == 0
    assert PASSWORD not in served.output()


def test_a_user_that_may_not_make_tables_is_told_which_right_is_missing(
    serve: Serve, victim: Cluster, database: str
) -> None:
    victim.run("DROP ROLE IF EXISTS plain")
    victim.run("CREATE ROLE plain LOGIN")
    served = serve(STORE_URL=database.replace("holdfast@", "plain@"))
    assert served.wait() == 1
    text = served.output()
    assert "Traceback" not in text
    assert "error: The store cannot be used (phase schema): PostgreSQL does not let this user do that" in text
    assert "GRANT USAGE, CREATE ON SCHEMA public" in text


def test_a_replica_that_loses_its_database_is_alive_not_ready_and_recovers(
    serve: Serve, victim: Cluster, url: str
) -> None:
    served = serve(STORE_URL=url, ENGINE_LEASE_TTL="3s", ENGINE_POLL_INTERVAL="1s")
    served.wait_until_ready()
    victim.stop()
    assert "PostgreSQL" in served.wait_until_not_ready()
    until(lambda: f"{HOST}:{victim.port}" in served.wait_until_not_ready(), "the address in the reason")
    assert served.get("/health/live")[0] == 200
    until(lambda: "holdfast_store_up 0.0" in served.get("/metrics")[1], "a heartbeat that failed")
    victim.restart()
    served.wait_until_ready()
    until(lambda: "holdfast_store_up 1.0" in served.get("/metrics")[1], "a heartbeat")
    assert PASSWORD not in all_that_it_said(served)
    assert "Traceback" not in served.output()
    assert served.stop() == 0


def test_a_replica_told_to_stop_while_it_waits_for_its_database_stops(serve: Serve, victim: Cluster, url: str) -> None:
    victim.stop()
    served = serve(STORE_URL=url)
    served.wait_for_event("store.unreachable")
    assert served.stop() == 0


def test_a_replica_told_to_stop_while_its_database_hangs_says_so_and_ends_in_time(
    serve: Serve, victim: Cluster, url: str
) -> None:
    """Its own deadline would keep each call waiting for an hour: what counts is the one deadline of the stop."""
    served = serve(STORE_URL=url, STORE_DEADLINE="1h", ENGINE_DRAIN="1s")
    served.wait_until_ready()
    victim.pause()
    served.process.send_signal(signal.SIGTERM)
    assert "draining" in served.wait_until_not_ready()
    assert served.get("/health/live")[0] == 200
    assert served.wait() == 0
    assert "Traceback" not in served.output()


@pytest.mark.parametrize("step", ["SELECT 1 AS one", "CREATE TABLE jobs", "key_checks"])
def test_a_database_that_goes_away_during_the_start_costs_a_retry_not_the_process(
    serve: Serve, victim: Cluster, database: str, step: str
) -> None:
    with FaultProxy(HOST, victim.port) as proxy:
        proxy.cut_before(step.encode())
        served = serve(STORE_URL=victim.url(database, through=proxy.port))
        served.wait_until_ready()
        assert proxy.cuts == 1
        assert "Traceback" not in served.output()
        assert served.stop() == 0


def test_two_replicas_that_start_at_once_on_an_empty_database_both_serve(
    serve: Serve, victim: Cluster, database: str, tmp_path: Path
) -> None:
    both = [serve(tmp_path / name, STORE_URL=database, KEYS_FILE=str(tmp_path / "shared.key")) for name in "ab"]
    for served in both:
        served.wait_until_ready()
    migrated = [event for served in both for event in served.events("schema.migrated")]
    assert len(migrated) == len(migrate.bundled())
    for served in both:
        assert served.stop() == 0
