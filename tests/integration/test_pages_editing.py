"""Editing on pages: typed values stay, what is wrong is said beside its field, and a stale form shows both changes."""

import re
from pathlib import Path

import pytest
from tests.support.browser import WebDesk, a_web_desk

from holdfast.core.access import Role
from holdfast.demo import fill
from holdfast.operations.catalog import named
from holdfast.operations.people.accounts import NewPerson
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
CAROL = "/settings/people/carol/edit"


async def _filled(desk: WebDesk) -> str:
    """A certificate that is well."""
    await fill.fill(desk.services.certificate_context.db, desk.services.certificate_context.secret_store)
    found = named("certificates.list").input_model.model_validate({"owner": "payments", "standing": ["ok"], "limit": 1})
    return str((await desk.do("certificates.list", found))["items"][0]["name"])


async def _owner(desk: WebDesk, name: str) -> tuple[str, dict[str, str]]:
    found = await desk.do("certificates.get", named("certificates.get").input_model(ref=name))
    return found.owner, found.labels


async def test_a_stale_form_shows_what_was_yours_and_theirs_and_saves_what_the_person_decides(
    db: Database, tmp_path: Path
) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        name = await _filled(desk)
        address = f"/certificates/{name}/edit"
        mine, other = await desk.logged_in(), await desk.logged_in("bob")
        began, theirs = await mine.get(address), await other.get(address)
        _, labels = await _owner(desk, name)
        kept = ", ".join(f"{key}={value}" for key, value in labels.items())
        saved = await other.submit(theirs, address, **_values(theirs.text) | {"labels": "team=theirs"})
        assert saved.status_code == 303, saved.text
        stale = await mine.submit(began, address, **_values(began.text) | {"owner": "mine"})
        assert stale.status_code == 412
        cells = [_plain(each) for each in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", _table(stale.text), re.DOTALL)]
        assert cells[:4] == ["Field", "When you began", "Yours", "Theirs, now"]
        rows = [cells[at : at + 4] for at in range(4, len(cells), 4)]
        assert rows == [
            ["Owner", "payments", "± changed: mine", "payments"],
            ["Labels", kept, kept, "± changed: team=theirs"],
        ]
        assert await _owner(desk, name) == ("payments", {"team": "theirs"}), "nothing of mine is saved yet"
        done = await mine.submit(stale, address)
        assert done.status_code == 303
        assert await _owner(desk, name) == ("mine", {"team": "theirs"})


def _values(html: str) -> dict[str, str]:
    """The fields of the form as a browser would send them."""
    texts = dict(re.findall(r'<textarea id="f-[^"]*" name="([^"]*)"[^>]*>([^<]*)</textarea>', html))
    lines = dict(re.findall(r'<input type="text" id="f-[^"]*" name="([^"]*)" value="([^"]*)"', html))
    chosen = re.findall(r'<select id="f-[^"]*" name="([^"]*)".*?</select>', html, re.DOTALL)
    found = {
        name: (re.findall(rf'name="{name}".*?<option selected>([^<]*)', html, re.DOTALL) or [""])[0] for name in chosen
    }
    return {**texts, **lines, **found}


def _table(html: str) -> str:
    return str(re.findall(r"<table.*?</table>", html, re.DOTALL)[0])


def _plain(cell: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", cell).split())


async def test_the_role_of_a_person_is_edited_and_a_mistake_is_said_beside_its_field(
    db: Database, tmp_path: Path
) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        await desk.do("people.add", NewPerson(name="carol", role="viewer"))
        browser = await desk.logged_in()
        page = await browser.get(CAROL)
        wrong = await browser.submit(page, CAROL, role="operator", owners="not an owner!", labels="")
        assert wrong.status_code == 422
        assert 'id="e-owners"' in wrong.text
        assert "not an owner!" in wrong.text
        assert "<title>Error: Edit carol" in wrong.text
        done = await browser.submit(page, CAROL, role="operator", owners="payments", labels="")
        assert done.status_code == 303
        assert "operator" in (await browser.get("/settings/people")).text
        same = await browser.submit(await browser.get(CAROL), CAROL, role="operator", owners="payments")
        assert same.status_code == 303


async def test_a_viewer_cannot_edit(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        name = await _filled(desk)
        browser = await desk.logged_in("vera")
        await desk.set_role("vera", Role.VIEWER)
        page = await browser.get(f"/certificates/{name}/edit")
        answer = await browser.submit(page, f"/certificates/{name}/edit", **_values(page.text) | {"owner": "mine"})
        assert answer.status_code == 403
        assert (await _owner(desk, name))[0] == "payments"
