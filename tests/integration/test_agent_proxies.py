"""Agents behind a proxy that ends TLS: who they are survives it, because requests are signed."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.agents import AgentHost, Fleet, a_fleet
from tests.support.nginx import NGINX, needs_nginx
from tests.support.ports import free_port
from tests.support.reaper import until
from tests.support.served import Issuing, program

from holdfast.agent.server import ServerRefused
from holdfast.core.agents import protocol


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with a_fleet(tmp_path_factory.mktemp("fleet")) as made:
        yield made


@contextmanager
def _nginx(folder: Path, fleet: Fleet, pem: Path) -> Iterator[int]:
    port, (host, behind) = free_port(), fleet.acme
    (folder / "nginx.conf").write_text(
        f"""daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}
http {{ access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {pem}; ssl_certificate_key {pem};
    location / {{ proxy_pass https://{host}:{behind}; proxy_read_timeout 300s; }} }} }}"""
    )
    argv = [str(NGINX), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    with _running(argv):
        yield port


@contextmanager
def _haproxy(folder: Path, fleet: Fleet, pem: Path) -> Iterator[int]:
    port, (_, behind) = free_port(), fleet.acme
    (folder / "haproxy.cfg").write_text(
        f"""defaults
  mode http
  timeout connect 5s
  timeout client 300s
  timeout server 300s
frontend f
  bind 127.0.0.1:{port} ssl crt {pem}
  default_backend b
backend b
  server s 127.0.0.1:{behind} ssl verify none sni str(localhost)
"""
    )
    with _running([program("haproxy", "haproxy"), "-f", str(folder / "haproxy.cfg"), "-db"]):
        yield port


@contextmanager
def _running(argv: list[str]) -> Iterator[None]:
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


@needs_nginx
@pytest.mark.parametrize("proxy", [_nginx, _haproxy], ids=["nginx", "HAProxy"])
def test_an_agent_enrols_and_works_through_a_proxy_that_ends_tls(fleet: Fleet, tmp_path: Path, proxy: Any) -> None:
    issuing = Issuing(tmp_path)
    pem = issuing.pair("localhost").combined
    name = f"behind-{proxy.__name__.strip('_')}"
    with proxy(tmp_path, fleet, pem) as port:
        host = fleet.host(name, SSL_CERT_FILE=str(issuing.roots))
        token = fleet.token("--url", f"https://localhost:{port}", "--system-roots")
        until(lambda: host.enrol(token).returncode == 0, "enrolled", every=0.5)
        host.start()
        until(lambda: fleet.agent(name)["last_seen_at"] or host.said("started"), "heard of", every=0.2)
        _answered(host)
        assert host.stop() == 0
    assert fleet.agent(name)["generation"] == 1


def test_a_result_for_another_agents_item_is_refused_by_name(fleet: Fleet) -> None:
    mine, theirs = fleet.enrolled("mine"), fleet.enrolled("theirs")
    theirs.start()
    _answered(theirs)
    fleet.ok("target", "add", "agent", "their-web", "--set", "agent=theirs")
    fleet.type("target", "test", "their-web")
    item = theirs.wait_for("failed").split("item=")[1].split()[0]
    with pytest.raises(ServerRefused) as refused:
        asyncio.run(_polled(mine, {"results": [{"id": item, "result": {"ok": True, "data": {}}}]}))
    assert refused.value.code == "not-your-item"


def test_a_request_that_is_sent_twice_or_changed_on_the_way_is_refused(fleet: Fleet) -> None:
    host = fleet.enrolled("replayed")
    with pytest.raises(ServerRefused) as refused:
        asyncio.run(_replayed(host))
    assert refused.value.code == "replayed"


def _answered(host: AgentHost) -> None:
    """Wait until the server has answered this agent."""
    status = host.state / "status.json"
    until(lambda: status.exists() and '"last_contact": true' in status.read_text(), "an answer", every=0.1)


async def _polled(host: AgentHost, body: dict[str, Any]) -> dict[str, Any]:
    membership = host.membership()
    state = membership.folder.load()
    try:
        told = {"session": "a" * 16, "wait_s": 0, **body}
        return await membership.server_of(state).ask(protocol.POLL, told, signer=membership.signer(state))
    finally:
        await membership.transport.aclose()


class _Same:
    """Random numbers of which every second one is the one before."""

    def token(self, size: int) -> bytes:
        return bytes(size)

    def uniform(self, low: float, high: float) -> float:
        return low

    def new_id(self, prefix: str) -> str:
        return prefix


async def _replayed(host: AgentHost) -> None:
    membership = host.membership()
    state = membership.folder.load()
    server = membership.server_of(state)
    server.random = _Same()
    body = {"session": "a" * 16, "wait_s": 0}
    try:
        for _ in range(2):
            await server.ask(protocol.POLL, body, signer=membership.signer(state))
    finally:
        await membership.transport.aclose()
