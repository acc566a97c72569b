"""`holdfast serve` on SQLite: what it says when it cannot start, and that it stops in good order."""

import asyncio
import json
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest
from tests.faults.conftest import Serve
from tests.support.grounds import SqliteGround, look
from tests.support.jobs import opened
from tests.support.processes import STOPS_AFTER, Served, environment
from tests.support.reaper import PATIENCE, until
from tests.support.stores import migrated

from holdfast.errors import StoreError
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Row, Tx
from holdfast.store.work import cluster
from holdfast.world import SystemClock


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
    first.wait_until_ready()
    assert first.stop() == 0


def test_a_killed_process_leaves_no_lock_and_its_successor_serves(serve: Serve) -> None:
    first = serve()
    first.wait_until_ready()
    first.process.kill()
    first.wait()
    second = serve()
    second.wait_until_ready()
    inventory = 'holdfast_ca_circuit_open{ca="own"} 0.0'
    until(lambda: inventory in second.get("/metrics")[1], "what comes from the whole inventory")
    assert second.stop() == 0


def test_a_successor_does_not_wait_for_the_leases_of_the_process_that_was_killed(serve: Serve, tmp_path: Path) -> None:
    """Its instance lock proves that process dead; a lease lasts for 30 seconds."""
    first = serve()
    first.wait_until_ready()
    leads = 'holdfast_lease_held{lease="scheduler"} 1.0'
    until(lambda: leads in first.get("/metrics")[1], "the first to lead")
    first.process.kill()
    first.wait()
    second = serve()
    second.wait_until_ready()
    ready_at = monotonic()
    until(lambda: leads in second.get("/metrics")[1], "the second to lead")
    assert monotonic() - ready_at <= 5
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
    assert "hint: Move it away and restore a backup" in served.output()
    assert file.stat().st_size == 0


def test_a_file_that_was_cut_off_is_refused(serve: Serve, tmp_path: Path) -> None:
    first = serve()
    first.wait_until_ready()
    assert first.stop() == 0
    file = tmp_path / "data" / "holdfast.sqlite"
    assert not file.with_name("holdfast.sqlite-wal").exists()  # a stop in good order leaves everything in the file
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert f"{file} is damaged" in refused(serve(), 1)


def test_a_file_with_damaged_pages_is_refused_with_a_sentence(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    file = folder / "holdfast.sqlite"
    asyncio.run(made(file))
    whole = file.read_bytes()
    file.write_bytes(whole[:4096] + b"\xa5" * 9 * 4096 + whole[10 * 4096 :])
    served = serve()
    assert "the database file is damaged: " in refused(served, 1)
    assert "hint: Move it away and restore a backup" in served.output()


async def made(file: Path) -> None:
    """A store with its schema, closed in good order."""
    async with opened(SqliteEngine(file, SystemClock())) as db:
        await migrated(db)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_an_idle_replica_in_good_order(serve: Serve, tmp_path: Path, number: signal.Signals) -> None:
    served = serve()
    served.wait_until_ready()
    served.wait_for_event("selfcheck.passed")  # it has worked, and leads
    assert served.stop(number) == 0
    [drained] = served.events("worker.drained")
    assert drained["handed_back"] == 0
    left = SqliteGround(tmp_path / "data")
    assert look(left, running) == []
    assert look(left, cluster.held_leases) == []
    assert look(left, cluster.all_replicas) == []


def test_a_log_that_cannot_be_written_does_not_stop_the_work(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli.main", "serve", f"--stop-after={STOPS_AFTER}"],
            env=environment(tmp_path, {}),
            stderr=full,
            stdout=full,
        )
    try:
        until(lambda: checked(tmp_path) or process.poll() is not None, "its first work")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
    [row] = checked(tmp_path)
    assert row["ok"], json.loads(row["details"])


def checked(folder: Path) -> list[Row]:
    """What the replica wrote about the audit chain, if it came to that."""
    try:
        return look(
            SqliteGround(folder), lambda tx: tx.rows("SELECT ok, details FROM self_checks WHERE name = 'audit-chain'")
        )
    except (StoreError, sqlite3.Error):
        return []  # there is no store yet, or no schema in it
