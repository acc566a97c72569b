"""Many certificates at once through the API: documents planned and applied, files of another client adopted."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support import foreign_layouts as layouts
from tests.support.api import a_desk, on_a_port
from tests.support.commands import typed
from tests.support.foreign_layouts import SmallCa
from tests.support.processes import environment

from holdfast.core.access import Role
from holdfast.store import journal
from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio
DOCUMENT: dict[str, Any] = {
    "certificates": [
        {"name": "www.example.com", "names": ["www.example.com"], "issuers": ["ca"]},
        {"name": "api.example.com", "names": ["api.example.com"], "issuers": ["ca"], "paused": True},
    ]
}


async def test_a_document_is_planned_tried_applied_and_exported_again(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_(Role.OPERATOR)
        plan = await ask.post("/documents/plan", {"document": DOCUMENT})
        assert [(each["action"], each["name"]) for each in plan["steps"]] == [
            ("create", "www.example.com"), ("create", "api.example.com")
        ]  # fmt: skip
        assert plan["orders"] == {"ca": 1}
        before = await db.read(journal.audit_head)
        tried = await ask("POST", "/documents/apply", {"document": DOCUMENT}, dry_run=True)
        assert [each["error"] for each in tried.json()["done"]] == ["", ""]
        assert await db.read(journal.audit_head) == before  # only tried
        wish = {"document": DOCUMENT, "expect": plan["digest"]}
        assert (await ask.post("/documents/apply", wish))["left"] == 0
        stale = await ask("POST", "/documents/apply", wish)
        assert (stale.status_code, stale.json()["code"]) == (409, "stale")
        exported = await ask.get("/documents")
        assert (await ask.post("/documents/plan", {"document": exported}))["steps"] == []
        auditor = await desk.as_(Role.AUDITOR)
        rows = (await auditor.get("/audit", action="certificate_requested"))["items"]
        assert {(each["actor"], each["origin"]["face"]) for each in rows} == {("human:operator", "api")}


async def test_an_operator_cannot_lift_an_approval_by_a_document_and_an_admin_can(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin, operator = await desk.as_(), await desk.as_(Role.OPERATOR)
        await admin.post("/certificates", {"names": ["www.example.com"], "approval_required": True})
        document = {"certificates": [{"name": "www.example.com", "names": ["www.example.com"]}]}
        [refused] = (await operator.post("/documents/apply", {"document": document}))["done"]
        assert "A change cannot lift the need for approval" in refused["error"]
        [done] = (await admin.post("/documents/apply", {"document": document}))["done"]
        assert done["error"] == ""


@pytest.mark.parametrize("body", ["", "[]", "{", '{"document": 1}', '{"document": {"certificates": 3}}', '{"x": 1}'])
async def test_what_is_no_document_is_refused_in_words(db: Database, tmp_path: Path, body: str) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        headers = {"Authorization": f"Bearer {ask.token}", "Content-Type": "application/json"}
        answer = await desk.http.post("/documents/plan", content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) in ((422, "invalid-request"), (400, "document-refused"))
        assert answer.json()["doc"].endswith(answer.json()["code"])


async def test_a_long_document_is_read_only_for_whoever_may_plan(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        entries = [{"name": f"n{n}.example.com", "names": [f"n{n}.example.com"]} for n in range(6000)]
        plan = await ask.post("/documents/plan", {"document": {"certificates": entries}})
        assert len(plan["steps"]) == 6000
        long = b"x" * 20_000_000
        answer = await desk.http.post("/documents/plan", content=long, headers={"Authorization": "Bearer no"})
        assert answer.status_code == 401


# ── From another machine ──


class Elsewhere:
    """Somebody with a token, and files of their own."""

    def __init__(self, url: str, token: str, folder: Path) -> None:
        self._env = {**environment(folder, {}), "HOLDFAST_SERVER_URL": url, "HOLDFAST_TOKEN": token}
        self._folder = folder

    async def __call__(self, *args: str) -> tuple[int, str, str]:
        said = await typed(*args, cwd=self._folder, env=self._env)
        return said.code, said.out, said.err


@pytest.fixture
def make_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Engine]:
    """One store is enough here: what these routes do is tested on both elsewhere."""
    return lambda: SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())


async def test_plan_apply_export_import_and_audit_work_from_another_machine(db: Database, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    async with a_desk(db, tmp_path) as desk, on_a_port(desk) as url:
        run = Elsewhere(url, await desk.token(), theirs)
        (theirs / "certs.yaml").write_text(json.dumps(DOCUMENT))
        code, out, err = await run("apply", "-f", "certs.yaml")
        assert code == 0, err
        layouts.certbot(theirs / "le", "old.example.com", SmallCa().issue("old.example.com"))
        code, out, err = await run("import", "certbot", str(theirs / "le"), "-o", "json")
        [adopted] = json.loads(out)["certificates"]
        assert (code, adopted["verdict"]) == (0, "adopted"), err
        planned, exported, verified, rows = await asyncio.gather(
            run("plan", "-f", "certs.yaml"), run("export", "-o", "json"), run("audit", "verify"), run("audit", "export")
        )
        assert planned[0] == 0, planned
        names = [each["name"] for each in json.loads(exported[1])["certificates"]]
        assert names == ["api.example.com", "old.example.com", "www.example.com"]
        assert (verified[0], "The audit chain holds" in verified[1]) == (0, True), verified
        assert len(rows[1].splitlines()) == (await db.read(journal.audit_head))[0]
