"""What a machine shared with others must not give away: memory, sockets, metrics, internal addresses."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from tests.support.acme_desk import open_office
from tests.support.keys import settings_in
from tests.support.processes import Served

from holdfast.cli.client import NotOurSocket, local
from holdfast.config import SOCKET_NAME, Acme
from holdfast.core.finding import Finding
from holdfast.core.own_ca.acme import Identifier
from holdfast.operations.installation import diagnosis
from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.telemetry import Health
from holdfast.web.sites import plain_site
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio
BEHIND_PROXY = "127.0.0.9"


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[], Engine]:
    """One store is enough here."""
    return lambda: SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())


# ── Memory ──


def test_the_process_leaves_no_core_dump_and_its_memory_is_its_own() -> None:
    code = (
        "import ctypes, resource; from holdfast.undumpable import forbid_core_dumps; print(forbid_core_dumps() == '', "
        "resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "True (0, 0) 0"


def test_a_server_forbids_core_dumps_and_warns_that_only_this_machine_can_fetch_its_crls(tmp_path: Path) -> None:
    with Served(tmp_path / "data", {"ACME_BASE_URL": "https://ca.corp.example"}) as server:
        server.wait_until_ready()
        limits = Path(f"/proc/{server.pid}/limits").read_text()
        assert re.search(r"Max core file size +0 +0 ", limits)
        warned = server.wait_for_event("acme.published_here_only")
        assert "acme.publish_url" in warned["fix"]


# ── The local socket ──


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("whose", ["socket", "folder"])
def test_commands_do_not_talk_to_a_socket_of_another_user(
    tmp_path: Path, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as line:
        monkeypatch.chdir(folder)  # the path of a socket must be short
        line.bind(SOCKET_NAME)
        line.listen()
        os.chown(folder if whose == "folder" else folder / SOCKET_NAME, 65534, 65534)
        with pytest.raises(NotOurSocket, match="65534"), local(settings_in(folder)) as client:
            client.get("/self")


# ── Answers to anybody ──


async def _nothing() -> None:
    """Nothing is to be looked at."""


async def _no_metrics() -> bytes:
    return b""


@pytest.mark.parametrize(
    ("host", "peer", "status"),
    [
        ("127.0.0.1:8630", "127.0.0.1", 200),
        ("localhost:8630", "::1", 200),
        ("[::1]:8630", "::1", 200),
        ("ca.example.org", "127.0.0.1", 200),
        ("evil.example:8630", "127.0.0.1", 421),
        ("127.0.0.1.evil.example", "127.0.0.1", 421),
        ("evil.example", BEHIND_PROXY, 200),
        ("holdfast.monitoring.svc:8630", "10.0.0.7", 200),
    ],
)
@pytest.mark.parametrize("path", ["/metrics", "/health/ready", "/health/startup"])
async def test_a_page_that_leads_its_own_name_to_this_machine_reads_nothing(
    host: str, peer: str, status: int, path: str
) -> None:
    health = Health()
    site = plain_site(health, look=_nothing, scrape=_no_metrics, hosts=["CA.example.org"], proxies=[BEHIND_PROXY])
    transport = httpx2.ASGITransport(app=site, client=(peer, 1))
    async with httpx2.AsyncClient(transport=transport) as http:
        answer = await http.get(f"http://x{path}", headers={"Host": host})
    assert (answer.status_code == 421) == (status == 421)
    assert status != 421 or "holdfast_" not in answer.text


# ── Internal addresses ──


@pytest.mark.parametrize("address", ["10.1.2.3", "192.168.0.1", "169.254.169.254", "100.64.0.1", "::1", "fd00::1"])
async def test_a_stranger_does_not_learn_what_kind_of_address_a_name_has(
    db: Database, tmp_path: Path, address: str
) -> None:
    """All answers are alike; the audit log has the reason."""
    async with open_office(db, tmp_path) as office, office.working():
        who = await office.client()
        order = await office.order(who, Identifier("ip", address))
        await office.answer(who, order.authzs[0])
        authz = await office.decided(who, order.authzs[0])
        [problem] = [each.error for each in authz.challenges if each.error is not None]
        assert problem.detail.replace(address, "X").startswith("We do not connect to where X leads. The audit log")
        assert "RFC" not in str(problem.to_json())
        rows = await db.read(lambda tx: tx.rows("SELECT details FROM audit WHERE action = 'authz_invalid'"))
        assert '"denied":"a' in rows[0]["details"]


# ── CRLs ──


@pytest.mark.parametrize(
    ("base", "publish", "found"),
    [
        ("", "", []),
        ("https://localhost:8631", "", []),
        ("https://ca.corp.example", "", ["bad"]),
        ("https://ca.corp.example", "http://127.0.0.1:8630", ["bad"]),
        ("https://ca.corp.example", "http://ca.corp.example", ["ok"]),
    ],
)
def test_doctor_says_that_nobody_can_fetch_the_crls(base: str, publish: str, found: list[str]) -> None:
    settings = Acme(base_url=base, publish_url=publish)
    told: list[Finding] = diagnosis.publishing(base, publish, here_only=settings.published_here_only)
    assert [each.level for each in told] == found
    assert all("acme.publish_url" in each.fix for each in told if each.level == "bad")
