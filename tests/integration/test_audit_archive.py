"""Old audit entries are archived: file and store are one chain, and no other row can be deleted."""

import json
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_selfcheck import checked, tamper
from tests.support.api import a_desk
from tests.support.engine import Watch
from tests.support.terminal import a_terminal

from holdfast.core.access import Role
from holdfast.core.journal import Anchor
from holdfast.engine import sweep
from holdfast.errors import StoreError
from holdfast.operations.installation import audit
from holdfast.store import backdating, journal
from holdfast.store.database import Database
from holdfast.store.postgres import PostgresEngine
from holdfast.store.tx import Tx
from holdfast.world import FileSink

pytestmark = pytest.mark.anyio
OLD = timedelta(days=120)


async def aged(db: Database, number: int, age: timedelta = OLD) -> None:
    """So many audit entries that were written so long ago."""

    def write(tx: Tx) -> None:
        at = tx.now() - age
        backdating.insert_journal(tx, [], [(at, "human:x", "did", f"s{n}", {"n": n}) for n in range(number)])

    await db.write(write)


async def numbers(db: Database) -> list[int]:
    return [row["seq"] for row in await db.read(lambda tx: tx.rows("SELECT seq FROM audit ORDER BY seq"))]


async def body(db: Database, seq: int) -> dict[str, Any]:
    known, _ = await db.read(lambda tx: journal.known_hashes(tx, seq, seq))
    return {"seq": seq, "hash": known[seq]}


async def archived(db: Database, seq: int) -> None:
    """As the operation does it, without its checks."""
    upto = Anchor(**await body(db, seq))
    await db.write(lambda tx: journal.archive(tx, upto, actor="human:x"))


async def holds(db: Database) -> bool:
    """What every walk over the chain of the store says, which is always the same."""
    verdicts = {(await db.read(journal.verify)).ok, (await audit.verified(db)).ok, await checked(db, Watch())}
    assert len(verdicts) == 1
    return verdicts.pop()


async def test_the_chain_holds_before_the_deletion_in_the_middle_of_it_and_after(db: Database, tmp_path: Path) -> None:
    await aged(db, 2500)
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        done = await ask.post("/audit/archive", await body(db, 2400))
        assert done["entries"] == 2400
        again = await ask.post("/audit/archive", await body(db, 2400))
        assert (again["seq"], again["entries"]) == (2400, 0)
        [told] = (await ask.get("/audit", action="audit_archived"))["items"]
        assert (told["details"]["seq"], told["details"]["hash"]) == (2400, done["hash"])
        assert (await numbers(db))[0] == 1
        assert await holds(db)
        assert await db.write(lambda tx: journal.forget_archived(tx, limit=7)) == 7  # and then the process is killed
        assert (await numbers(db))[0] == 8
        assert await holds(db)
        await sweep.clean_up(db, timedelta(days=3650))
        assert (await numbers(db))[0] == 2401
        assert await holds(db)
        verdict = await ask.get("/audit/verify")
        assert (verdict["ok"], verdict["archived"]) == (True, 2400)
        assert json.loads((await ask("GET", "/audit/export")).text.splitlines()[0])["seq"] == 2401


async def test_a_self_check_that_came_further_than_the_anchor_goes_on_from_where_it_was(db: Database) -> None:
    await aged(db, 20)
    assert await holds(db)
    await archived(db, 10)
    await sweep.clean_up(db, OLD)
    assert await holds(db)
    await aged(db, 5)
    await tamper(db, "UPDATE audit SET actor = 'human:eve' WHERE seq = 23")
    assert not await holds(db)


async def test_a_self_check_that_never_ran_begins_after_the_anchor(db: Database) -> None:
    await aged(db, 20)
    await archived(db, 10)
    await sweep.clean_up(db, OLD)
    assert await holds(db)


async def test_no_row_beyond_the_anchor_can_be_deleted_even_by_hand(db: Database) -> None:
    await aged(db, 10)
    await archived(db, 4)
    for statement in (
        "DELETE FROM audit",
        "DELETE FROM audit WHERE seq = 5",
        "DELETE FROM audit WHERE seq = 11",
        "UPDATE audit SET actor = 'human:eve' WHERE seq = 1",
        "UPDATE audit_anchors SET seq = 9",
        "DELETE FROM audit_anchors",
        "INSERT INTO audit_anchors (seq, hash, at, actor, entries) VALUES (9, 'beef', 0, 'human:eve', 5)",
        "INSERT INTO audit_anchors (seq, hash, at, actor, entries) SELECT 99, hash, 0, 'x', 5 FROM audit WHERE seq = 9",
    ):
        with pytest.raises(StoreError):
            await db.write(lambda tx, statement=statement: tx.run(statement))
    assert await numbers(db) == list(range(1, 12))
    await db.write(lambda tx: tx.run("DELETE FROM audit WHERE seq <= 4"))
    assert await numbers(db) == list(range(5, 12))
    assert await holds(db)


async def test_an_anchor_that_was_written_by_hand_is_found(db: Database) -> None:
    await aged(db, 10)
    sql = "INSERT INTO audit_anchors (seq, hash, at, actor, entries) SELECT seq, hash, at, actor, 5 FROM audit"
    await db.write(lambda tx: tx.run(f"{sql} WHERE seq = 5"))
    assert not await holds(db)
    verdict = await db.read(journal.verify)
    assert (verdict.bad_seq, verdict.problem) == (5, "row 5 was archived, and no audit entry says so")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"hash": "0" * 64}, "not-that-audit-entry"),
        ({"seq": 7}, "not-that-audit-entry"),
        ({"seq": 4000}, "not-that-audit-entry"),
        ({"keep_days": 121}, "audit-entry-too-young"),
        ({"keep_days": 29}, "invalid-request"),
    ],
)
async def test_what_must_not_be_archived_is_refused_and_nothing_is_lost(
    db: Database, tmp_path: Path, change: dict[str, Any], code: str
) -> None:
    await aged(db, 10)
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        refused = await ask("POST", "/audit/archive", await body(db, 8) | change)
        assert (refused.status_code in (409, 422), refused.json()["code"]) == (True, code)
        await sweep.clean_up(db, OLD)
        assert (await numbers(db))[:10] == list(range(1, 11))
        assert await holds(db)


async def test_an_entry_before_the_last_one_may_be_the_one_that_is_too_young(db: Database, tmp_path: Path) -> None:
    await aged(db, 5)
    await aged(db, 1, timedelta(days=3))
    await aged(db, 5)  # by a clock that was set back
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        assert (await ask("POST", "/audit/archive", await body(db, 11))).json()["code"] == "audit-entry-too-young"
        assert (await ask.post("/audit/archive", await body(db, 5)))["entries"] == 5


async def test_rows_of_a_broken_chain_are_evidence_and_stay(db: Database, tmp_path: Path) -> None:
    await aged(db, 10)
    await tamper(db, "UPDATE audit SET actor = 'human:eve' WHERE seq = 3")
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        refused = await ask("POST", "/audit/archive", await body(db, 8))
        assert (refused.status_code, refused.json()["code"]) == (409, "audit-chain-broken")
        assert (await ask("POST", "/audit/archive", await body(db, 2))).status_code == 200


class Away:
    """A sink that cannot be reached."""

    name = "syslog:tcp://away"

    async def write(self, lines: object) -> None:
        raise OSError("away")


async def test_no_row_is_archived_that_a_sink_has_not_got(db: Database, tmp_path: Path) -> None:
    await aged(db, 6)
    file = FileSink(tmp_path / "audit.jsonl")
    await audit.hand_on(db, file)
    await aged(db, 4)
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        refused = await ask("POST", "/audit/archive", await body(db, 10))
        assert (refused.status_code, refused.json()["code"]) == (409, "audit-sink-behind")
        assert f"file:{tmp_path}/audit.jsonl has entries up to 6 only" in refused.json()["detail"]
        await audit.hand_on(db, file)
        with pytest.raises(OSError, match="away"):
            await audit.hand_on(db, Away())  # it never got a row, and is known all the same
        refused = await ask("POST", "/audit/archive", await body(db, 10))
        assert (refused.status_code, Away.name in refused.json()["hint"]) == (409, True)
        done = await ask("POST", "/audit/archive", await body(db, 10) | {"forget_sinks": [Away.name]})
        assert (done.status_code, done.json()["entries"]) == (200, 10)


async def test_an_archive_never_goes_back(db: Database, tmp_path: Path) -> None:
    await aged(db, 10)
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        await ask.post("/audit/archive", await body(db, 8))
        assert (await ask("POST", "/audit/archive", await body(db, 6))).status_code == 409
        await ask.post("/audit/archive", await body(db, 9))
        assert await holds(db)


def store_of(db: Database) -> dict[str, str]:
    return {"HOLDFAST_STORE_URL": db.engine._url.reveal()} if isinstance(db.engine, PostgresEngine) else {}


async def test_files_and_store_are_one_chain(db: Database, tmp_path: Path) -> None:
    await aged(db, 30, timedelta(days=200))
    await aged(db, 20, timedelta(days=100))
    one, two, copy = (tmp_path / name for name in ("one.jsonl", "two.jsonl", "copy.jsonl"))
    async with a_terminal(db, tmp_path, works=False) as terminal:
        typed, ok = partial(terminal, env=store_of(db)), partial(terminal.ok, env=store_of(db))
        copy.write_text((await ok("audit", "export")).out)
        assert "This needs --yes" in (await typed("audit", "archive", "--before", "150d", "--to", str(one))).err
        assert not one.exists()
        await ok("audit", "archive", "--before", "150d", "--to", str(one), "--yes")
        assert one.stat().st_mode & 0o777 == 0o600
        assert "exists" in (await typed("audit", "archive", "--before", "95d", "--to", str(one), "--yes")).err
        await ok("audit", "archive", "--before", "95d", "--to", str(two), "--yes")  # none is deleted yet
        assert [json.loads(line)["seq"] for line in two.read_text().splitlines()[1:]] == list(range(31, 51))
        await sweep.clean_up(db, OLD)
        assert (await numbers(db))[0] == 51
        assert "Rows 1 to 50 of them are archived" in (await ok("audit", "verify")).out
        for file in (one, two, copy):
            await ok("audit", "verify", "--file", str(file), "--against-store")
        lines = two.read_text().splitlines(keepends=True)
        two.write_text("".join([lines[0], lines[1].replace("human:x", "human:eve"), *lines[2:]]))
        assert "row 31 was altered" in (await typed("audit", "verify", "--file", str(two))).out
        copy.write_text("".join(copy.read_text().splitlines(keepends=True)[:20]))  # no anchor is in it
        unknown = await typed("audit", "verify", "--file", str(copy), "--against-store")
        assert (unknown.code, "row 1 is another one in the store" in unknown.out) == (10, True)
        rest = await ok("audit", "archive", "--before", "95d", "--to", str(tmp_path / "three"), "--yes")
        assert "No audit entry before 95d is left" in rest.err


async def test_a_refused_archive_leaves_no_file_and_an_auditor_is_refused(db: Database, tmp_path: Path) -> None:
    await aged(db, 5, timedelta(days=40))
    file = tmp_path / "young.jsonl"
    words = ("audit", "archive", "--before", "35d", "--to", str(file), "--yes")
    async with a_terminal(db, tmp_path, works=False) as typed:
        assert "younger than 90 days" in (await typed(*words)).err
        auditor = {"HOLDFAST_TOKEN": await typed.desk.token(Role.AUDITOR)}
        assert (await typed(*words, "--keep-days", "30", env=auditor)).code == 4
        assert not file.exists()
        assert (await numbers(db))[:5] == [1, 2, 3, 4, 5]
        await typed.ok(*words, "--keep-days", "30")
        assert file.exists()
