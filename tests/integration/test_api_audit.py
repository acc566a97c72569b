"""Who changed what, and from where: searched, exported as a whole, verified, and handed on to a second place."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.api import a_desk
from tests.support.engine import PATIENCE, eventually
from tests.support.processes import environment
from tests.support.stores import migrated, open_store

from holdfast.core.access import Role
from holdfast.core.client import networks
from holdfast.core.journal import AuditRow, canonical, chain_verdict
from holdfast.operations.installation import audit
from holdfast.ports import AuditLine
from holdfast.store import journal
from holdfast.store.database import Database
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx
from holdfast.world import FileSink, SyslogSink, SystemClock

pytestmark = pytest.mark.anyio
WISH = {"names": ["a.example.com"]}


# ── Who, from where, and what it was ──


async def test_a_row_says_who_did_it_by_which_token_and_from_where(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_(name="ci", kind="robot")
        made = await ask("POST", "/certificates", WISH)
        [row] = (await ask.get("/audit", action="certificate_requested"))["items"]
        token = ask.token.split("_")[1]
        assert (row["actor"], row["actor_kind"]) == ("robot:ci", "robot")
        assert row["origin"].pop("client").startswith("python-httpx2")
        assert row["origin"] == {
            "face": "api", "address": "127.0.0.1", "request": made.headers["x-request-id"], "token": token,
            "session": "", "trace": "",
        }  # fmt: skip
        [own] = (await ask.get("/audit", action="token_created"))["items"]
        assert own["origin"] is None  # it was made beside the API


async def test_an_address_in_a_header_counts_only_from_a_proxy_that_is_listed(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        said = {"X-Forwarded-For": "203.0.113.9, 198.51.100.7"}
        await ask.http.post("/issuers/ca/pause", headers={"Authorization": f"Bearer {ask.token}", **said})
        desk.api.state.proxies = networks(["127.0.0.0/8"])
        await ask.http.post("/issuers/ca/resume", headers={"Authorization": f"Bearer {ask.token}", **said})
        rows = (await ask.get("/audit", subject="ca", limit=2))["items"]
        assert [each["origin"]["address"] for each in rows] == ["198.51.100.7", "127.0.0.1"]


async def test_a_change_leaves_digests_of_before_and_after(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        made = await ask.post("/certificates", WISH)
        path = f"/certificates/{made['id']}"
        await ask("PATCH", path, {"owner": "web"}, headers={"If-Match": "*"})
        await ask.post(f"{path}/pause")
        await ask.post(f"{path}/resume")
        rows = (await ask.get("/audit", subject=made["id"]))["items"]
        states = {each["action"]: (each["before"], each["after"]) for each in rows if each["after"]}
        asked, changed = states["certificate_requested"], states["certificate_changed"]
        paused, resumed = states["certificate_paused"], states["certificate_resumed"]
        assert asked[0] is None
        assert (asked[1], changed[1], paused[1]) == (changed[0], paused[0], resumed[0])  # each begins where one ended
        assert resumed[1] == changed[1]  # and is as it was
        assert len({asked[1], changed[1], paused[1]}) == 3


async def test_a_command_on_the_server_is_told_apart(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path, local=True) as desk:
        offer = {"directory": "https://acme.example.com/directory"}
        made = await desk.http.post("/imports/account", json=offer, headers={"X-Holdfast-User": "root"})
        assert made.status_code == 200, made.text
        ask = await desk.as_()
        [row] = (await ask.get("/audit", action="issuer_added", actor="local:root"))["items"]
        assert (row["actor_kind"], row["origin"]["face"]) == ("local", "local")


async def test_a_dry_run_leaves_no_row(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        before = await db.read(journal.audit_head)
        token = {"name": "x", "role": "viewer"}
        made = await ask("POST", "/tokens", token, dry_run=True)
        assert (made.status_code, made.json()["token"]) == (201, "")
        assert (await ask("POST", "/issuers/ca/pause", dry_run=True)).json()["state"] == "paused"
        assert await db.read(journal.audit_head) == before
        assert len((await ask.get("/tokens"))["items"]) == 1


# ── Searched, exported, verified ──


async def test_rows_are_found_by_their_time_and_read_page_by_page(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        await db.write(_fill(20))
        rows = (await ask.get("/audit", actor="human:x", limit=500))["items"]
        assert [each["subject"] for each in rows] == [f"s{n}" for n in reversed(range(20))]
        middle = rows[10]["at"]
        later = (await ask.get("/audit", actor="human:x", since=middle))["items"]
        earlier = (await ask.get("/audit", actor="human:x", until=middle))["items"]
        assert len(later) + len(earlier) == 20
        pages, cursor = [], None
        while True:
            page = await ask.get("/audit", action="did", limit=7, **({"cursor": cursor} if cursor else {}))
            pages.append([each["seq"] for each in page["items"]])
            if (cursor := page["next"]) is None:
                break
        assert [len(each) for each in pages] == [7, 7, 6]
        assert [seq for page in pages for seq in page] == [each["seq"] for each in rows]


def _fill(number: int) -> Callable[[Tx], None]:
    def write(tx: Tx) -> None:
        for n in range(number):
            journal.audit(tx, "did", f"s{n}", actor="human:x", n=n, text="ü\r\n\u202e<script>")

    return write


async def test_the_export_is_the_whole_log_and_its_chain_can_be_checked_elsewhere(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_(Role.AUDITOR)
        for _ in range(3):
            await db.write(_fill(800))
        answer = await ask("GET", "/audit/export")
        assert answer.headers["content-type"].startswith("application/jsonl")
        rows = [json.loads(line) for line in answer.text.splitlines()]
        head, newest = await db.read(journal.audit_head)
        entries = [_entry(each) for each in rows]
        assert chain_verdict(entries, newest_seq=head, newest_hash=newest).verified == head
        part = await ask("GET", "/audit/export", actor="human:x")
        assert len(part.text.splitlines()) == 2400
        verdict = await ask.get("/audit/verify")
        assert (verdict["ok"], verdict["verified"], verdict["last_hash"]) == (True, head, newest)


def _entry(row: Mapping[str, Any]) -> AuditRow:
    return AuditRow(
        seq=row["seq"], at=row["at_us"], actor=row["actor"], action=row["action"], subject=row["subject"],
        details=canonical(row["details"]), hash=row["hash"],
    )  # fmt: skip


async def test_an_altered_row_is_found_and_named(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        await db.write(_fill(1200))
        on = " ON audit" if db.engine.name == "postgresql" else ""
        await db.write(lambda tx: tx.run(f"DROP TRIGGER audit_is_never_changed{on}"))
        await db.write(lambda tx: tx.run("UPDATE audit SET actor = 'human:eve' WHERE seq = 1100"))
        verdict = await ask.get("/audit/verify")
        assert (verdict["ok"], verdict["first_bad_row"], verdict["verified"]) == (False, 1100, 1099)


# ── A second place ──


async def test_a_sink_gets_every_row_once_and_in_order(db: Database, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    sink = FileSink(file)
    await db.write(_fill(1500))
    assert await audit.hand_on(db, sink) == 1500
    assert await audit.hand_on(db, sink) == 0
    await db.write(_fill(3))
    assert await audit.hand_on(db, FileSink(file)) == 3  # another process goes on
    assert [json.loads(line)["seq"] for line in file.read_text().splitlines()] == list(range(1, 1504))
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_row_that_could_not_be_written_comes_again(db: Database, tmp_path: Path) -> None:
    await db.write(_fill(5))
    file = tmp_path / "away" / "audit.jsonl"
    with pytest.raises(OSError, match="No such file"):
        await audit.hand_on(db, FileSink(file))
    file.parent.mkdir()
    assert await audit.hand_on(db, FileSink(file)) == 5


async def test_a_line_that_a_crash_cut_is_followed_by_the_whole_one(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_text('{"seq":1}\n{"se')
    await FileSink(file).write([_line(2)])
    assert file.read_text().splitlines() == ['{"seq":1}', '{"se', '{"seq":2}']


def _line(seq: int) -> AuditLine:
    return AuditLine(seq=seq, at=datetime(2030, 1, 1, tzinfo=UTC), text=f'{{"seq":{seq}}}')


@contextmanager
def _listening(kind: str, folder: Path) -> Iterator[tuple[str, socket.socket]]:
    if kind == "unix":
        line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        line.bind(str(folder / "log"))
        address = f"unix://{folder}/log"
    else:
        line = socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
        line.bind(("127.0.0.1", 0))
        address = f"{kind}://127.0.0.1:{line.getsockname()[1]}"
    line.settimeout(PATIENCE)
    with line:
        if kind == "tcp":
            line.listen()
        yield address, line


@pytest.mark.parametrize("kind", ["unix", "udp", "tcp"])
async def test_syslog_gets_rfc_5424(tmp_path: Path, kind: str) -> None:
    with _listening(kind, tmp_path) as (address, line):
        await SyslogSink(address, "a host\n").write([_line(1), _line(2)])
        got = _received(line, kind)
    head = '<110>1 2030-01-01T00:00:00.000000Z ahost holdfast - audit [audit@32473 seq="{}"] {{"seq":{}}}'
    assert got == [head.format(n, n) for n in (1, 2)]


def _received(line: socket.socket, kind: str) -> Sequence[str]:
    if kind != "tcp":
        return [line.recv(65536).decode() for _ in range(2)]
    peer, _ = line.accept()
    with peer:
        text = b"".join(iter(lambda: peer.recv(65536), b"")).decode()
    found = []
    while text:
        size, _, rest = text.partition(" ")
        found.append(rest[: int(size)])
        text = rest[int(size) :]
    return found


CHILD = """
import asyncio, sys
from pathlib import Path
from holdfast.operations.installation import audit
from holdfast.world import FileSink
from holdfast.store import journal
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import SystemClock
from tests.support.stores import migrated, open_store

async def main(folder):
    db = await migrated(open_store(SqliteEngine(folder / "s.sqlite", SystemClock())))
    while True:
        await db.write(lambda tx: [journal.audit(tx, "did", "s", n=n) for n in range(20)])
        await audit.hand_on(db, FileSink(folder / "audit.jsonl"))

asyncio.run(main(Path(sys.argv[1])))
"""


async def test_nothing_is_lost_when_the_process_is_killed_again_and_again(tmp_path: Path) -> None:
    """At least once and in order: repeated lines may be there, a missing one never."""
    file = tmp_path / "audit.jsonl"
    for _ in range(3):
        size = file.stat().st_size if file.exists() else 0
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD, str(tmp_path), env={**environment(tmp_path, {}), "PYTHONPATH": os.getcwd()}
        )
        await eventually(lambda size=size: file.exists() and file.stat().st_size > size + 20_000)  # type: ignore[misc]
        child.send_signal(signal.SIGKILL)
        await child.wait()
    db = await migrated(open_store(SqliteEngine(tmp_path / "s.sqlite", SystemClock())))
    await audit.hand_on(db, FileSink(file))
    head, _ = await db.read(journal.audit_head)
    await db.close()
    seen = [json.loads(line)["seq"] for line in file.read_text().splitlines() if line.endswith("}")]
    first_of_each = list(dict.fromkeys(seen))
    assert first_of_each == list(range(1, head + 1))
