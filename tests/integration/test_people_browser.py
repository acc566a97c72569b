"""People in a real browser: a passkey from enrolment to log-in, a password with an app, and buttons that ask first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.chromium import Site, Watched, a_site

from holdfast.core import totp
from holdfast.operations.people.accounts import NewPerson
from holdfast.store.database import Database
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio
ENTRY = ["/login", "/login/code", "/login/link/x"]
PHONE = {
    "protocol": "ctap2", "transport": "internal", "hasResidentKey": True, "hasUserVerification": True,
    "isUserVerified": True, "automaticPresenceSimulation": True,
}  # fmt: skip


async def _with_phone(seen: Watched) -> None:
    """An authenticator of Chromium's own, which says yes."""
    line = await seen.page.context.new_cdp_session(seen.page)
    await line.send("WebAuthn.enable")
    await line.send("WebAuthn.addVirtualAuthenticator", {"options": PHONE})


async def _invited(site: Site, **manner: Any) -> Watched:
    made = await site.desk.do("people.add", NewPerson(name="bob", role="admin"))
    seen = await site.visitor(**manner)
    await seen.go(made.link.removeprefix(site.home))
    return seen


async def test_a_passkey_sets_an_account_up_and_leads_back_to_the_page_that_was_asked_for(
    db: Database, tmp_path: Path
) -> None:
    async with a_site(db, tmp_path) as site:
        seen = await _invited(site)
        await _with_phone(seen)
        await seen.page.click("text=Use a passkey")
        await seen.page.wait_for_url(f"{site.home}/")
        await seen.page.click('[aria-label="Log out"]')
        await seen.page.wait_for_url("**/login")
        await seen.go("/settings/sessions?x=1")
        await seen.page.click("text=Log in with a passkey")
        await seen.page.wait_for_url("**/settings/sessions?x=1")
        assert "passkey" in await seen.page.inner_text("main")
        assert seen.wrong == []


async def test_a_password_and_an_app_set_an_account_up_by_the_keyboard(db: Database, tmp_path: Path) -> None:
    async with a_site(db, tmp_path) as site:
        seen = await _invited(site)
        key = totp.of_text(await seen.page.inner_text(".key"))
        assert key is not None
        await seen.page.focus("#f-password")
        await seen.page.keyboard.type("correct horse battery staple")
        await seen.page.keyboard.press("Tab")
        await seen.page.keyboard.type(totp.code_at(key, totp.step_of(SystemClock().now())))
        await seen.page.keyboard.press("Enter")
        await seen.page.wait_for_selector("text=Keep these recovery codes")
        assert seen.wrong == []


async def test_a_button_that_harms_asks_first(db: Database, tmp_path: Path) -> None:
    async with a_site(db, tmp_path) as site:
        await site.desk.do("people.add", NewPerson(name="bob"))
        seen = await site.logged_in()
        await seen.go("/settings/people")
        row = seen.page.locator("tr", has_text="bob")
        await row.get_by_role("button", name="Disable…").click()
        await seen.page.click("#ask button:has-text('Cancel')")
        assert "not set up yet" in await row.inner_text()
        await row.get_by_role("button", name="Disable…").click()
        await seen.page.click("#ask button:has-text('Disable')")
        await row.get_by_text("disabled").wait_for()
        assert seen.wrong == []


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_no_violation_before_a_log_in(db: Database, tmp_path: Path, theme: str) -> None:
    async with a_site(db, tmp_path) as site:
        seen, found = await _invited(site, color_scheme=theme, bypass_csp=True), []
        for path in ["/account/setup", *ENTRY]:
            await seen.go(path)
            found += await seen.axe()
        admin = await site.logged_in(color_scheme=theme, bypass_csp=True)
        for path in ("people", "tokens", "sessions"):
            await admin.go(f"/settings/{path}")
            found += await admin.axe()
        assert found == []


async def test_pages_before_a_log_in_fit_a_telephone(db: Database, tmp_path: Path) -> None:
    async with a_site(db, tmp_path) as site:
        seen = await _invited(site, viewport={"width": 360, "height": 780})
        for path in ["/account/setup", *ENTRY]:
            await seen.go(path)
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert await seen.page.evaluate(wide) <= 0, path
