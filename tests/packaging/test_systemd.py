"""The unit for systemd: as systemd itself reads it, and what a served process tells its service manager."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.world import ServiceManager
from tests.support.reaper import PATIENCE

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "holdfast.service"


def analyze(*arguments: str) -> str:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("there is no systemd-analyze here: apt-get install systemd")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.stdout + done.stderr


def test_systemd_finds_no_mistake_in_the_unit() -> None:
    said = [line for line in analyze("verify", "--man=no", str(UNIT)).splitlines() if "holdfast.service" in line]
    assert [line for line in said if "is not executable" not in line] == [], "it is not installed here"


def test_the_unit_exposes_little() -> None:
    found = re.search(
        r"exposure level for holdfast.service: ([0-9.]+)", analyze("security", "--offline=true", str(UNIT))
    )
    assert found is not None
    assert float(found[1]) <= 2.0


def test_a_stop_has_the_time_that_a_drain_takes() -> None:
    unit = UNIT.read_text()
    assert "Type=notify" in unit
    assert "TimeoutStopSec=45" in unit
    assert "WatchdogSec=60" in unit


# ── sd_notify ──


@pytest.fixture
def heard(tmp_path: Path) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    line.bind(str(tmp_path / "notify"))
    line.settimeout(PATIENCE)
    return line


def test_without_a_service_manager_nothing_is_sent() -> None:
    manager = ServiceManager({})
    manager.ready()
    assert manager.watchdog is None


def test_a_watchdog_of_another_process_is_not_ours() -> None:
    assert ServiceManager({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}).watchdog is None
    mine = ServiceManager({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}).watchdog
    assert mine is not None
    assert mine.total_seconds() == 60


def test_a_server_says_when_it_serves_that_its_loops_tick_and_that_it_drains(
    heard: socket.socket, tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "900000",
        "HOLDFAST_STORE_DATA_DIR": str(tmp_path / "data"),
        "HOLDFAST_SERVER_LISTEN": "127.0.0.1:0",
        "HOLDFAST_ACME_LISTEN": "127.0.0.1:0",
    }
    command = [sys.executable, "-m", "holdfast.cli.main", "serve"]
    with closing(heard), subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as server:
        try:
            told = set[str]()
            while not {"READY=1", "WATCHDOG=1"} <= told:
                told |= set(heard.recv(4096).decode().splitlines())
            server.send_signal(signal.SIGTERM)
            while "STOPPING=1" not in told:
                told |= set(heard.recv(4096).decode().splitlines())
            assert server.wait(PATIENCE) == 0
        finally:
            server.kill()
