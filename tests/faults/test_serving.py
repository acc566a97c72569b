"""`holdfast serve` on SQLite: what it says when it cannot start, and that it stops in good order."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.faults.conftest import Serve
from tests.support.grounds import SqliteGround, look
from tests.support.processes import Served, environment

from holdfast.store import leases, replicas
from holdfast.store.tx import Row, Tx


def refused(served: Served, code: int) -> str:
    """Wait for a server that cannot start; what it told the operator: a sentence, never a traceback."""
    assert served.wait() == code
    text = served.output()
    assert "Traceback" not in text
    [error] = [line for line in text.splitlines() if line.startswith("error: ")]
    return error


def running(tx: Tx) -> list[Row]:
    return tx.rows("SELECT id FROM jobs WHERE state = 'running'")


def test_a_second_process_on_the_same_file_is_refused_by_name_and_the_first_does_not_notice(serve: Serve) -> None:
    first = serve()
    first.wait_until_ready()
    second = serve()
    error = refused(second, 1)
    assert "is in use by another Holdfast process" in error
    assert f"(pid {first.pid})" in error
    assert "PostgreSQL" in second.output()  # the way to run several
    assert first.get("/health/ready") == (200, '{"status":"ready"}')
    assert first.stop() == 0


def test_a_killed_process_leaves_no_lock_and_its_successor_serves(serve: Serve) -> None:
    first = serve()
    first.wait_until_ready()
    first.process.kill()
    first.wait()
    second = serve()
    second.wait_until_ready()
    page = second.get("/metrics")[1]
    assert 'holdfast_ca_circuit_open{ca="own"} 0.0' in page  # what comes from the whole inventory is there, too
    assert "holdfast_store_gauges_failures_total 0.0" in page
    assert second.stop() == 0


@pytest.mark.parametrize(
    ("setting", "value", "problem"),
    [
        ("SCHEDULER_RETRY_INTERVAL", "500ms", "scheduler.retry_interval (HOLDFAST_SCHEDULER_RETRY_INTERVAL): 500ms is"),
        ("SCHEDULER_RETRY_INTERVALL", "5m", "HOLDFAST_SCHEDULER_RETRY_INTERVALL: there is no such setting"),
    ],
    ids=["too-short", "misspelt"],
)
def test_a_wrong_setting_is_named_and_nothing_starts(
    serve: Serve, tmp_path: Path, setting: str, value: str, problem: str
) -> None:
    assert problem in refused(serve(**{setting: value}), 2)
    assert not list((tmp_path / "data").glob("holdfast*"))


@pytest.mark.parametrize("setting", ["SERVER_LISTEN", "KEEPING_TLS_ALPN_LISTEN"])
def test_an_address_in_use_is_said_with_the_setting_that_chooses_it(serve: Serve, setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        served = serve(**{setting: f"127.0.0.1:{port}"})
        error = refused(served, 1)
    assert f"127.0.0.1:{port}" in error
    assert f"HOLDFAST_{setting}" in served.output()


def test_proofs_by_tls_are_refused_while_nobody_would_show_them(serve: Serve, tmp_path: Path) -> None:
    solvers = tmp_path / "solvers.toml"
    solvers.write_text('[[solver]]\nkind = "tls-alpn"\nnames = ["*"]\n')
    error = refused(serve(KEEPING_SOLVERS_FILE=str(solvers)), 2)
    assert f"keeping.solvers_file: {solvers}: tls-alpn: " in error
    assert "set keeping.tls_alpn_listen" in error


def test_a_database_file_of_0_bytes_is_refused_and_left_alone(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    file = folder / "holdfast.sqlite"
    file.touch()
    served = serve()
    assert f"{file} is empty (0 bytes): its content was lost." in refused(served, 1)
    assert "hint: Restore it from a backup." in served.output()
    assert file.stat().st_size == 0


def test_a_file_that_was_cut_off_is_refused(serve: Serve, tmp_path: Path) -> None:
    first = serve()
    first.wait_until_ready()
    assert first.stop() == 0
    file = tmp_path / "data" / "holdfast.sqlite"
    assert not file.with_name("holdfast.sqlite-wal").exists()  # a stop in good order leaves everything in the file
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert f"{file} is damaged" in refused(serve(), 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_an_idle_replica_in_good_order(serve: Serve, tmp_path: Path, number: signal.Signals) -> None:
    served = serve()
    served.wait_until_ready()
    served.wait_for_event("selfcheck.passed")  # it has worked, and leads
    told_at = time.monotonic()
    assert served.stop(number) == 0
    assert time.monotonic() - told_at < 10
    [drained] = served.events("worker.drained")
    assert drained["handed_back"] == 0
    left = SqliteGround(tmp_path / "data")
    assert look(left, running) == []
    assert look(left, leases.held) == []
    assert look(left, replicas.everyone) == []


def test_a_log_that_cannot_be_written_does_not_stop_the_work(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"SERVER_LISTEN": f"127.0.0.1:{port}"}
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli.main", "serve", "--stop-after=3"],
            env=environment(tmp_path, settings),
            stderr=full,
            stdout=full,
        )
        assert process.wait(40) == 0
    with_work = SqliteGround(tmp_path)
    [row] = look(with_work, lambda tx: tx.rows("SELECT ok, details FROM self_checks WHERE name = 'audit-chain'"))
    assert row["ok"], json.loads(row["details"])
