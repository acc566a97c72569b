"""What an agent refuses of its server, and a server of its agents: each by name, with nothing on the host touched."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import items
from holdfast.agent.items import Worker
from holdfast.agent.line import AgentTransport
from holdfast.agent.log import AgentLog
from holdfast.agent.state import AgentFolder, Enrolled
from holdfast.core import base64url
from holdfast.core.agents.item import AgentItem
from holdfast.errors import TryLater
from holdfast.machine import LocalFiles
from holdfast.pki import agent_keys
from holdfast.ports import Request
from holdfast.system_clock import SystemClock

pytestmark = pytest.mark.anyio
NOW = datetime(2030, 1, 1, tzinfo=UTC)
SERVER = agent_keys.new_binding()
STATE = Enrolled(
    agent="agent_1", name="edge", urls=("https://localhost",), pin="", system_roots=False, roots="",
    server_key=base64url.encode(agent_keys.public_der(SERVER)), generation=1, chain="", jitter=0.5,
)  # fmt: skip


class Full(LocalFiles):
    """A disk without room."""

    def write_private(self, path: Path, content: bytes, *, replace: bool) -> None:
        raise OSError(28, "No space left on device")


def _worker(folder: Path, files: LocalFiles | None = None) -> Worker:
    (folder / "agent.toml").write_text("[targets.web]\nkind = 'files'\n[targets.web.settings]\nfolder = '/nowhere'\n")
    clock = SystemClock()
    made = Worker(
        folder=AgentFolder(path=folder, files=files or LocalFiles()),
        config=folder / "agent.toml",
        log=AgentLog(clock),
        clock=clock,
    )
    made.load()
    return made


def _item(number: int = 1, *, by: Any = SERVER, **changes: Any) -> dict[str, str]:
    given = {
        "id": f"item_{number}",
        "agent": "agent_1",
        "target": "web",
        "call": "probe",
        "fence": number,
        "body": "{}",
    }
    item = AgentItem(**{**given, **changes}, created_at=NOW, deadline=NOW + timedelta(minutes=1))
    text = item.signed_text()
    return {"item": text, "signature": base64url.encode(agent_keys.sign(by, text.encode()))}


async def _done(worker: Worker) -> dict[str, Any]:
    working = asyncio.ensure_future(worker.work())
    async with asyncio.timeout(60):
        await worker.idle.wait()
    working.cancel()
    return {each["id"]: each["result"] for each in worker.results()}


async def test_the_same_item_twice_gives_the_same_result_and_is_carried_out_once(tmp_path: Path) -> None:
    worker = _worker(tmp_path)
    worker.accept(STATE, [_item()])
    first = await _done(worker)
    assert "allows no deployment to '/nowhere'" in first["item_1"]["why"]
    worker.acknowledged(["item_1"])
    assert worker.results() == []
    worker.accept(STATE, [_item()])
    assert worker.idle.is_set()
    assert {each["id"]: each["result"] for each in worker.results()} == first
    again = _worker(tmp_path)  # after a restart
    again.accept(STATE, [_item()])
    assert again.idle.is_set()
    assert {each["id"]: each["result"] for each in again.results()} == first


async def test_a_lower_fence_is_refused_and_the_newest_stays(tmp_path: Path) -> None:
    worker = _worker(tmp_path)
    worker.accept(STATE, [_item(7)])
    await _done(worker)
    worker.accept(STATE, [_item(6)])
    assert worker.idle.is_set()
    told = {each["id"]: each["result"] for each in worker.results()}
    assert "a newer item was carried out" in told["item_6"]["why"]
    assert json.loads((tmp_path / items.SPOOL).read_text())["web"]["fence"] == 7


@pytest.mark.parametrize(
    "bad",
    [
        _item(by=agent_keys.new_binding()),
        _item(agent="agent_2"),
        {"item": _item()["item"], "signature": _item(2)["signature"]},
        {"item": _item()["item"].replace("probe", "write"), "signature": _item()["signature"]},
        _item(id="../../etc/cron.d/x"),
        {"item": 7, "signature": []},
        "no item",
    ],
)
async def test_an_item_that_our_server_did_not_sign_for_us_is_not_looked_at(tmp_path: Path, bad: Any) -> None:
    worker = _worker(tmp_path)
    worker.accept(STATE, [bad])
    assert (worker.running, worker.results(), worker.last) == (set(), [], {})
    worker.accept(STATE, {"not": "a list"})
    assert worker.idle.is_set()


async def test_a_command_or_a_path_of_the_server_is_never_used(tmp_path: Path) -> None:
    """A signed item of a server that was taken over: what it names is not in the agent's file."""
    worker = _worker(tmp_path)
    asked = {"argv": ["/bin/sh", "-c", "touch /tmp/owned"], "settings": {"folder": "/etc", "reload": "sh"}}
    worker.accept(STATE, [_item(1, target="shell", body=json.dumps(asked)), _item(2, call="exec", target="x")])
    told = await _done(worker)
    assert "has no target 'shell'; it has: web" in told["item_1"]["why"]
    assert "does not know 'exec'" in told["item_2"]["why"]


async def test_a_full_disk_refuses_work_before_anything_is_touched_and_says_so(tmp_path: Path) -> None:
    worker = _worker(tmp_path, Full())
    worker.accept(STATE, [_item()])
    assert worker.idle.is_set()
    [told] = worker.results()
    assert told["result"]["refused"] is False
    assert "No space left on device. Nothing was changed." in told["result"]["why"]
    assert worker.last == {}


async def test_a_reload_that_failed_is_repeated_without_the_server(tmp_path: Path) -> None:
    worker = _worker(tmp_path)
    live, script = tmp_path / "live", tmp_path / "reload"
    live.mkdir()
    script.write_text(f"#!/bin/sh\n[ -e {tmp_path}/well ]\n")
    script.chmod(0o755)
    worker.config.write_text(
        f"folders = ['{live}']\n[programs.r]\nargv = ['{script}']\n[targets.web]\nkind = 'files'\n"
        f"[targets.web.settings]\nfolder = '{live}'\nreload = 'r'\n"
    )
    worker.accept(STATE, [_item(call="reload")])
    assert (await _done(worker))["item_1"]["reason"] == "RELOAD_FAILED"
    (tmp_path / "well").touch()
    await worker.without_server()
    assert worker.last["web"].result == {"ok": True, "data": {}}


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"a" * 200_000 + b"\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"",
    ],
)
async def test_a_hostile_answer_is_an_error_and_not_more(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()

    async def plain(self: AgentTransport, request: Request) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=64 * 1024)
        self._open = (("localhost", b""), reader, writer)
        return reader, writer

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    class Plain(AgentTransport):
        _connection = plain

    async with server:
        with pytest.raises(TryLater):
            await Plain().request(Request(method="POST", url="https://localhost/agent/v1/poll", max_body=1 << 20))
