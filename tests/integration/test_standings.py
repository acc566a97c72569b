"""How certificates stand: counted and filtered in SQL as the pages show them, and what needs a person; on the demo."""

from collections import Counter
from pathlib import Path

import pytest
from tests.support.api import Desk, a_desk

from holdfast.core.access import Role
from holdfast.demo import fill
from holdfast.demo.fill import InUse
from holdfast.pages import states
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio


async def _filled(desk: Desk) -> None:
    await fill.fill(desk.house.db, desk.services.certificate_context.secret_store)


async def test_sql_and_pages_agree_about_every_certificate(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        await _filled(desk)
        asker = await desk.as_(Role.VIEWER)
        counted = (await asker.get("/attention"))["standings"]
        rows = [*(await asker.get("/certificates", limit=500))["items"]]
        shown = Counter(row["status"]["standing"] for row in rows)
        assert counted == dict(shown)
        for standing, number in counted.items():
            found = (await asker.get("/certificates", standing=standing, limit=500, total=True))["items"]
            assert {row["status"]["standing"] for row in found} == {standing}
            assert len(found) == number


async def test_what_hurts_first_comes_first(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        await _filled(desk)
        found = await (await desk.as_(Role.ADMIN)).get("/attention")
        times = [each["harm_at"] for each in found["items"] if each["harm_at"]]
        assert times == sorted(times)
        assert {each["what"] for each in found["items"]} == {
            "certificate",
            "approvals",
            "dead-letters",
            "issuer",
            "paused",
            "endpoint",
        }
        assert found["items"][0]["name"] == "old.bank.example"


async def test_an_owner_is_shown_only_their_own(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        await _filled(desk)
        found = await (await desk.as_(Role.VIEWER, owners=("banking",))).get("/attention")
        assert {each["what"] for each in found["items"]} <= {"certificate", "approvals", "paused"}
        assert all(each["name"].endswith("bank.example") for each in found["items"])
        assert found["dead"] == 0


async def test_dead_letters_are_grouped_by_cause(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        await _filled(desk)
        found = await (await desk.as_(Role.VIEWER)).get("/dead-letters")
        assert [(each["channel"], each["dead_because"], each["number"]) for each in found] == [
            ("ops-mail", "CHANNEL_MISCONFIGURED", 11),
            ("shop-hook", "ATTEMPTS_USED_UP", 5),
            ("", "NO_CHANNEL", 1),
        ]


async def test_the_demo_is_refused_where_there_is_a_certificate_and_told_once(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        secrets = desk.services.certificate_context.secret_store
        assert await fill.fill(db, secrets)
        assert not await fill.fill(db, secrets)
        verdict = await (await desk.as_(Role.ADMIN)).get("/audit/verify")
        assert verdict["ok"]


async def test_the_demo_is_refused_on_a_database_in_use(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        await desk.as_(Role.ADMIN)  # a token is enough
        with pytest.raises(InUse):
            await _filled(desk)


async def test_what_is_not_served_needs_somebody(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        await _filled(desk)
        asker = await desk.as_(Role.ADMIN)
        items = (await asker.get("/attention"))["items"]
        [failed, seen] = sorted((each for each in items if each["standing"] == "not-served"), key=lambda it: it["what"])
        assert (failed["what"], failed["reason_code"]) == ("certificate", "DEPLOY_FAILED")
        assert (seen["what"], seen["reason_code"]) == ("endpoint", "ENDPOINT_DRIFT")
        [row] = (await asker.get("/certificates", standing="not-served"))["items"]
        assert row["name"] == failed["name"]
        other = await asker.get(f"/certificates/{seen['certificate']}")
        words = [states.served(each) for each in (row, other)]
        assert [each.word for each in words if each] == ["Not served 1 of 2", "Not served 1 of 1"]
