"""What needs a person can be put off: for the asker alone, with the reason, and not beyond a change for the worse."""

from pathlib import Path

import pytest
from tests.support.api import a_desk

from holdfast.core.access import Role
from holdfast.demo import fill
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
FAILING = {"what": "certificate", "name": "api.shop.example"}


def _keys(found: dict[str, list[dict[str, str]]]) -> set[tuple[str, str]]:
    return {(each["what"], each["name"]) for each in found["items"]}


async def test_a_snooze_hides_one_thing_from_its_asker_alone_and_is_undone(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        await fill.fill(db, desk.services.certificate_context.secret_store)
        mine, other = await desk.as_(Role.VIEWER, name="alice"), await desk.as_(Role.VIEWER, name="bob")
        before = await mine.get("/attention")
        await mine.post("/attention/snooze", {**FAILING, "why": "the owner is on it", "for_s": 3600})
        after = await mine.get("/attention")
        assert _keys(before) - _keys(after) == {("certificate", "api.shop.example")}
        [put_off] = after["snoozed"]
        assert (put_off["item"]["name"], put_off["why"]) == ("api.shop.example", "the owner is on it")
        assert _keys(await other.get("/attention")) == _keys(before)
        await mine.post("/attention/wake", FAILING)
        assert _keys(await mine.get("/attention")) == _keys(before)
        told = (await (await desk.as_(Role.ADMIN)).get("/audit", actor="human:alice", limit=2))["items"]
        assert [(each["action"], each["actor"]) for each in told] == [
            ("attention_woken", "human:alice"),
            ("attention_snoozed", "human:alice"),
        ]


async def test_what_gets_worse_comes_back_before_its_time(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        await fill.fill(db, desk.services.certificate_context.secret_store)
        mine = await desk.as_(Role.ADMIN)
        before = _keys(await mine.get("/attention"))
        await mine.post("/attention/snooze", {**FAILING, "why": "later"})
        await mine.post("/attention/snooze", {"what": "dead-letters", "why": "later"})
        assert before - _keys(await mine.get("/attention")) == {
            ("certificate", "api.shop.example"),
            *(each for each in before if each[0] == "dead-letters"),
        }

        def worse(tx: object) -> None:
            """Its version ends before the next attempt, and one more notification is dead."""
            run = tx.run  # type: ignore[attr-defined]
            run("UPDATE certificates SET ends_at = 1 WHERE name = 'api.shop.example'")
            run("""UPDATE certificate_versions SET not_after = not_before + 1
                    WHERE id = (SELECT current_version FROM certificates WHERE name = 'api.shop.example')""")
            run("""UPDATE notifications SET state = 'dead', why = 'CHANNEL_DOWN'
                    WHERE id = (SELECT MIN(id) FROM notifications WHERE state = 'sent')""")

        await db.write(worse)
        assert _keys(await mine.get("/attention")) >= {("certificate", "api.shop.example")}
        assert {each["what"] for each in (await mine.get("/attention"))["items"]} >= {"dead-letters"}


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"what": "certificate", "name": "not-there.example", "why": "x"}, 404),
        ({"what": "certificate", "name": "api.shop.example", "why": ""}, 422),
        ({"what": "certificate", "name": "api.shop.example", "why": "x", "for_s": 31 * 86_400}, 422),
        ({"what": "weather", "name": "", "why": "x"}, 422),
    ],
)
async def test_a_wrong_snooze_is_refused_and_changes_nothing(
    db: Database, tmp_path: Path, asked: dict[str, object], status: int
) -> None:
    async with a_desk(db, tmp_path) as desk:
        await fill.fill(db, desk.services.certificate_context.secret_store)
        mine = await desk.as_(Role.ADMIN)
        before = _keys(await mine.get("/attention"))
        answer = await mine("POST", "/attention/snooze", asked)
        assert answer.status_code == status
        assert _keys(await mine.get("/attention")) == before


async def test_saved_views_follow_a_person_and_go_with_the_account(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        mine, other = await desk.as_(Role.VIEWER, name="alice"), await desk.as_(Role.VIEWER, name="bob")
        again = await desk.as_(Role.VIEWER, name="alice")
        admin = await desk.as_(Role.ADMIN)
        await admin.post("/people", {"name": "alice", "role": "viewer"})
        await mine("PUT", "/views/Ours", {"query": "owner:payments"})
        assert [(each["name"], each["query"]) for each in await again.get("/views")] == [("Ours", "owner:payments")]
        assert await other.get("/views") == []
        await admin("DELETE", "/people/alice")
        assert await again.get("/views") == []


async def test_a_person_has_at_most_fifty_views(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        mine = await desk.as_(Role.VIEWER)
        for number in range(50):
            await mine("PUT", f"/views/v{number}", {})
        refused = await mine("PUT", "/views/one-more", {})
        assert (refused.status_code, refused.json()["code"]) == (409, "too-many-views")
        assert (await mine("PUT", "/views/v7", {"query": "state:failing"})).status_code == 200
