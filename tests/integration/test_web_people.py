"""The pages Settings → People, Tokens and Sessions: what they show, whom they let, and links that are shown once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.browser import ADDRESS, WebDesk, a_web_desk, form_of

from holdfast.core.access import Role
from holdfast.operations.people.accounts import NewPerson
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
ATTACK = "<script>alert(1)</script>"


def copied(text: str) -> str:
    return re.findall(r'data-copy="([^"]+)"', text)[0]


async def test_a_person_is_added_and_gets_a_link_that_is_shown_once(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        browser = await desk.logged_in()
        page = await browser.get("/settings/people")
        made = await browser.submit(page, "/settings/people", name="bob", role="operator", owners="web shop")
        assert made.status_code == 200
        link = copied(made.text).removeprefix(ADDRESS.url)
        again = await browser.get("/settings/people")
        assert "not set up yet" in again.text
        assert link not in again.text
        assert (await desk.browser().get(link)).headers["location"] == "/account/setup"


@pytest.mark.parametrize(("name", "beside"), [("alice", "alice already"), ("a b", "e-name"), (ATTACK, "e-name")])
async def test_a_person_that_cannot_be_added_is_said_beside_the_field(
    db: Database, tmp_path: Path, name: str, beside: str
) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        browser = await desk.logged_in()
        answer = await browser.submit(
            await browser.get("/settings/people"), "/settings/people", name=name, role="viewer"
        )
        assert answer.status_code in (409, 422)
        assert beside in answer.text
        assert 'aria-invalid="true"' in answer.text
        assert ATTACK not in answer.text


async def test_buttons_reset_disable_enable_and_remove(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        await desk.do("people.add", NewPerson(name="bob"))
        browser = await desk.logged_in()
        page = await browser.get("/settings/people")
        assert copied((await browser.submit(page, "/settings/people/bob/reset")).text).startswith(ADDRESS.url)
        csrf = form_of(page.text, "/settings/people").fields["csrf"]
        for act, says in (("disable", "disabled"), ("enable", "not set up yet"), ("delete", "1 person")):
            done = await browser.post(f"/do/people.{act}", {"csrf": csrf, "name": "bob", "_back": "/settings/people"})
            assert done.status_code == 303
            assert says in (await browser.get("/settings/people")).text


async def test_a_token_is_made_and_shown_once(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        browser = await desk.logged_in()
        page = await browser.get("/settings/tokens")
        made = await browser.submit(page, "/settings/tokens", name="ci", role="operator")
        token = copied(made.text)
        assert token.startswith("hf_")
        assert token not in (await browser.get("/settings/tokens")).text


async def _paths(desk: WebDesk, name: str) -> list[int]:
    browser = await desk.logged_in(name)
    return [(await browser.get(f"/settings/{each}")).status_code for each in ("people", "tokens", "sessions")]


async def test_who_may_not_see_people_sees_only_their_own_sessions(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        for name, role in (("olga", Role.OPERATOR), ("vera", Role.VIEWER), ("audrey", Role.AUDITOR)):
            await desk.link(name)
            await desk.set_role(name, role)
        assert await _paths(desk, "olga") == [403, 403, 200]
        assert await _paths(desk, "vera") == [403, 403, 200]
        assert await _paths(desk, "audrey") == [200, 200, 200]
        browser = await desk.logged_in("audrey")
        assert 'action="/settings/people"' not in (await browser.get("/settings/people")).text
        csrf = form_of((await browser.get("/")).text, "/logout").fields["csrf"]
        assert (await browser.post("/settings/people", {"csrf": csrf, "name": "x"})).status_code == 403
        assert (await browser.post("/settings/people/olga/reset", {"csrf": csrf})).status_code == 403


async def test_a_person_ends_another_browser_and_all_of_them(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        here, there = await desk.logged_in(), await desk.logged_in(client="198.51.100.9")
        other = await desk.logged_in("bob")
        page = await here.get("/settings/sessions")
        assert "198.51.100.9" in page.text
        await here.submit(page, "/do/sessions.end")
        assert [(await each.get("/settings/sessions")).status_code for each in (here, there)] == [200, 303]
        csrf = form_of(page.text, "/do/people.logout").fields
        await here.post("/do/people.logout", csrf)
        assert [(await each.get("/settings/sessions")).status_code for each in (here, other)] == [303, 200]


async def test_nobody_ends_the_session_of_another_without_the_right(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        admin = await desk.logged_in("alice")
        await desk.link("vera")
        await desk.set_role("vera", Role.VIEWER)
        vera = await desk.logged_in("vera")
        session = await db.read(
            lambda tx: tx.rows(
                "SELECT sessions.id FROM sessions JOIN people ON people.id = person WHERE name = 'alice'"
            )[0]["id"]
        )
        csrf = form_of((await vera.get("/")).text, "/logout").fields["csrf"]
        assert (await vera.post("/do/sessions.end", {"csrf": csrf, "session": session})).status_code == 404
        assert (await vera.post("/do/people.logout", {"csrf": csrf, "name": "alice"})).status_code == 404
        assert (await admin.get("/settings/sessions")).status_code == 200


async def test_new_recovery_codes_are_shown_once_and_soon_after_a_log_in_only(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        browser = await desk.logged_in()
        csrf = form_of((await browser.get("/settings/sessions")).text, "/do/people.logout").fields["csrf"]
        made = await browser.post("/account/recovery-codes", {"csrf": csrf})
        assert len(re.findall(r"<li>[A-Z2-7 ]{19}</li>", made.text)) == 10
        await db.write(lambda tx: tx.run("UPDATE sessions SET created_at = created_at - 700000000"))
        late = await browser.post("/account/recovery-codes", {"csrf": csrf})
        assert late.status_code == 403
        assert "too long ago" in late.text


async def test_what_a_browser_calls_itself_is_no_markup(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        browser = desk.browser()
        browser.http.headers["User-Agent"] = ATTACK
        await browser.get(await desk.link())
        page = await browser.get("/settings/sessions")
        assert ATTACK not in page.text
        assert "&lt;script&gt;" in page.text
