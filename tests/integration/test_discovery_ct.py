"""CT logs: tiles and get-entries of a log with a real Merkle tree, by URL and as files; and logs that lie."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.api import Asker, Desk, a_desk
from tests.support.ct_log import CtLog, LoggingCa

from holdfast.core.discovery.discovery import Discovery
from holdfast.core.discovery.find import FindSource
from holdfast.ct import heads
from holdfast.ct.logs import AT_ONCE, EntriesLog, FolderShelf, Log, TiledLog, UrlShelf
from holdfast.engine.discovery import ct_logs, rounds
from holdfast.store.database import Database
from holdfast.world import HttpTransport, LocalTree, SystemRandom

pytestmark = pytest.mark.anyio
LOG = "https://log.example.com/2026h1"
OURS = "www.example.org"


@dataclass
class Ground:
    desk: Desk
    admin: Asker
    log: CtLog
    transport: HttpTransport
    folder: Path | None = None

    def open_log(self, row: Discovery) -> Log:
        shelf = (
            UrlShelf(self.transport, self.log.origin) if self.folder is None else FolderShelf(LocalTree(self.folder))
        )
        key = None if row.settings["key"] is None else heads.read_key(row.settings["key"])
        return TiledLog(shelf, key) if row.settings["kind"] == "static" else EntriesLog(shelf, key)

    async def begun(self, **wishes: Any) -> str:
        return str((await self.admin.post("/discovery/ct", {"log": LOG, "start": 0, **wishes}))["id"])

    async def finished(self, discovery: str) -> Any:
        async def over() -> bool:
            found = await self.admin.get(f"/discovery/runs/{discovery}")
            return found["state"] in ("done", "resting", "failed") or bool(found["problem"])

        db = self.desk.house.db
        kind = rounds.kind(db, SystemRandom(), {FindSource.CT: ct_logs.read(db, self.open_log)})
        await db.write(lambda tx: tx.run("UPDATE budgets SET every = 1, tat = 0"))
        async with self.desk.house.working(kinds=[kind], only=True):
            await self.desk.house.until(over)
        return await self.admin.get(f"/discovery/runs/{discovery}")

    async def read(self, **wishes: Any) -> Any:
        return await self.finished(await self.begun(**wishes))

    async def finds(self) -> list[Any]:
        return list((await self.admin.get("/finds"))["items"])


@pytest.fixture
async def ground(db: Database, tmp_path: Path) -> AsyncIterator[Ground]:
    transport = HttpTransport()
    async with a_desk(db, tmp_path, offers={"readable_logs": (LOG,)}) as desk, CtLog() as log:
        yield Ground(desk, await desk.as_(), log, transport)
    await transport.close()


CA = LoggingCa()
PRE, CERT = CA.pair(OURS, "example.org")
OTHERS = [CA.pair(f"www{number}.elsewhere.example")[1] for number in range(3)]


@pytest.mark.parametrize("kind", ["static", "rfc6962"])
async def test_a_precertificate_and_its_certificate_are_one_find_by_either_way_of_reading(
    ground: Ground, kind: str
) -> None:
    log = ground.log
    log.add(OTHERS[0])
    at = log.add_precertificate(PRE, CERT, CA)
    log.add_unreadable()
    done = await ground.read(kind=kind, key=log.public_key, domains=["example.org"], every_s=3600)
    assert (done["state"], done["counts"]["tried"], done["counts"]["unreadable"]) == ("resting", 3, 1)
    [found] = await ground.finds()
    assert (found["fingerprint"], found["names"], found["served"]) == ("", [OURS, "example.org"], False)
    assert found["where"] == f"{LOG} entry {at}"
    then = log.add(CERT)
    log.add(OTHERS[1])
    await ground.admin.post(f"/discovery/runs/{done['id']}/again")
    again = await ground.finished(done["id"])
    assert again["counts"]["tried"] == 2, "a round goes on from where the last one ended"
    [same] = await ground.finds()
    assert (same["id"], same["places"], len(same["fingerprint"])) == (found["id"], 2, 64)
    seen = (await ground.admin.get(f"/finds/{same['id']}"))["seen"]
    assert [(each["place"], each["notes"]) for each in seen] == [
        (f"{LOG} entry {at}", "precertificate"), (f"{LOG} entry {then}", "certificate"),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["static", "rfc6962"])
async def test_a_log_of_many_tiles_is_read_in_bounded_steps(ground: Ground, kind: str) -> None:
    log, more = ground.log, AT_ONCE + 300
    log.page = 100 if kind == "rfc6962" else 1000
    for number in range(more):
        log.add(CERT if number == more - 1 else OTHERS[number % 3])
    done = await ground.read(kind=kind, key=log.public_key, domains=["example.org"])
    assert (done["state"], done["done"], done["total"], done["counts"]["tried"]) == ("done", more, more, more)
    assert len(await ground.finds()) == 1


async def test_only_names_that_are_kept_here_concern_us_unless_domains_are_named(ground: Ground) -> None:
    async with ground.desk.house.working():
        await ground.admin.post("/certificates", {"names": [OURS]}, Prefer="wait=30")
    ground.log.add(CERT)
    ground.log.add(OTHERS[0])
    await ground.read()
    [found] = await ground.finds()
    assert OURS in found["names"]


async def test_a_log_is_read_from_its_files(ground: Ground, tmp_path: Path) -> None:
    for number in range(300):
        ground.log.add(CERT if number == 280 else OTHERS[0])
    ground.folder = tmp_path / "mirror"
    ground.folder.mkdir()
    ground.log.write(ground.folder)
    done = await ground.read(key=ground.log.public_key, domains=["example.org"])
    assert (done["state"], done["counts"]["tried"]) == ("done", 300)
    [found] = await ground.finds()
    assert found["where"] == f"{LOG} entry 280"


async def test_without_a_start_only_what_is_new_from_now_on_is_read(ground: Ground) -> None:
    ground.log.add(CERT)
    done = await ground.read(start=None, domains=["example.org"], every_s=3600)
    assert (done["state"], done["counts"].get("tried", 0)) == ("resting", 0)
    ground.log.add(CA.pair("new.example.org")[1])
    await ground.admin.post(f"/discovery/runs/{done['id']}/again")
    await ground.finished(done["id"])
    [found] = await ground.finds()
    assert found["names"] == ["new.example.org"]


# ── Logs that lie ──


@pytest.mark.parametrize("kind", ["static", "rfc6962"])
async def test_a_head_that_another_key_signed_is_not_believed(ground: Ground, kind: str) -> None:
    ground.log.add(CERT)
    done = await ground.read(kind=kind, key=CtLog().public_key, domains=["example.org"])
    assert done["state"] == "failed"
    assert "sign" in done["problem"]
    assert await ground.finds() == []


async def test_a_log_that_shows_less_than_before_or_another_tree_is_not_read_on(ground: Ground) -> None:
    ground.log.add(CERT)
    ground.log.add(OTHERS[0])
    done = await ground.read(domains=["example.org"], every_s=3600)
    kept = ground.log.entries.pop()
    await ground.admin.post(f"/discovery/runs/{done['id']}/again")
    less = await ground.finished(done["id"])
    assert (less["state"], "it had 2 entries, and shows 1 now" in less["problem"]) == ("failed", True)
    ground.log.add(OTHERS[2])
    await ground.admin.post(f"/discovery/runs/{done['id']}/again")
    other = await ground.finished(done["id"])
    assert "two different trees of 2 entries" in other["problem"]
    ground.log.entries[1] = kept
    await ground.admin.post(f"/discovery/runs/{done['id']}/again")
    assert (await ground.finished(done["id"]))["state"] == "resting"


@pytest.mark.parametrize(
    ("kind", "path", "lie", "said"),
    [
        ("static", "/checkpoint", b"", "checkpoint cannot be read"),
        ("static", "/checkpoint", b"x\n99999999999999999999\nAAAA\n\n", "cannot be"),
        ("static", "/checkpoint", b"x\n5\n" + b"A" * 43 + b"=\n\n", "announced"),
        ("static", "/tile", b"\xff" * 100, "cannot be read on"),
        ("static", "/tile", b"\x1f\x8b" + b"\x00" * 50, "unpacked"),
        ("static", "/tile", b"", "bytes are announced"),
        ("rfc6962", "/ct/v1/get-sth", b"[" * 60_000, "get-sth cannot be read"),
        ("rfc6962", "/ct/v1/get-entries", b'{"entries": []}', "shows none"),
        ("rfc6962", "/ct/v1/get-entries", b'{"entries": [{"leaf_input": "!"}]}', "cannot be read"),
        ("rfc6962", "/ct/v1/get-entries", b'{"entries": [{"leaf_input": "AAAA", "extra_data": ""}]}', "announced"),
        ("rfc6962", "/ct/v1/get-entries", b'{"entries": 7}', "cannot be read"),
    ],
)
async def test_an_answer_that_no_log_gives_ends_the_round_and_says_why(
    ground: Ground, kind: str, path: str, lie: bytes, said: str
) -> None:
    ground.log.add(CERT)
    ground.log.lies[path] = lie
    done = await ground.read(kind=kind, domains=["example.org"])
    assert (done["state"], said in done["problem"]) == ("failed", True), done["problem"]


async def test_an_answer_that_never_ends_is_cut_off_at_its_bound(ground: Ground) -> None:
    ground.log.add(CERT)
    ground.log.endless = "/checkpoint"
    done = await ground.read(domains=["example.org"])
    assert done["problem"], "it is asked again later, and says what went wrong"
    assert await ground.finds() == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"log": "https://other.example.com"}, "discovery.logs does not list it"),
        ({"log": "file:///etc"}, "discovery.logs does not list it"),
        ({"log": LOG, "kind": "gopher"}, "kind"),
        ({"log": LOG, "key": "AAAA"}, "The key cannot be used"),
        ({"log": LOG, "start": -1}, "start"),
        ({"log": LOG, "domains": ["x"] * 201}, "domains"),
    ],
)
async def test_a_log_that_may_not_be_read_is_refused_and_says_which_setting_or_field(
    ground: Ground, body: dict[str, Any], said: str
) -> None:
    answer = await ground.admin("POST", "/discovery/ct", body)
    assert 400 <= answer.status_code < 500, answer.text
    assert said in answer.text
