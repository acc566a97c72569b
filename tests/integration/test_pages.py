"""The pages in a real browser: no error, no violation, by keyboard alone, at every width, nothing from elsewhere."""

import hashlib
import json
from pathlib import Path

import pytest
from tests.support.chromium import Site, a_site, two_replicas

from holdfast import pages
from holdfast.operations.certificates.views import CertificateRef
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
PAGES = [
    "/", "/certificates", "/certificates?q=state:retrying", "/certificates/request", "/approvals", "/targets",
    "/agents", "/finds", "/notifications",
    "/notifications?tab=all", "/jobs", "/issuers", "/issuers/new", "/cas", "/cluster", "/forecast", "/audit",
    "/settings",
    "/settings/values", "/settings/channels", "/settings/tokens", "/settings/sessions", "/reasons", "/nothing-here",
]  # fmt: skip
OF_ONE = ["", "/explain", "/versions", "/served", "/raw", "/edit"]
ONE = "/certificates/api.shop.example"


async def _walk(site: Site, paths: list[str], **manner: object) -> list[str]:
    """What went wrong on these pages; a status of 404 is an answer, and Chromium calls it an error."""
    seen = await site.logged_in(**manner)
    for path in paths:
        answer = await seen.go(path)
        assert answer.status < 400 or path == "/nothing-here", (path, answer.status, await seen.page.inner_text("main"))
        wide = await seen.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{path} is {wide} px wider than the window"
    return [each for each in seen.wrong if "404 (Not Found)" not in each]


async def test_no_page_of_an_empty_installation_has_an_error(db: Database, tmp_path: Path) -> None:
    async with a_site(db, tmp_path) as site:
        assert await _walk(site, PAGES) == []


async def test_no_page_has_an_error_or_asks_another_host(db: Database, tmp_path: Path) -> None:
    async with a_site(db, tmp_path, demo=True) as site:
        assert await _walk(site, [*PAGES, *(ONE + each for each in OF_ONE)]) == []


async def test_every_page_fits_a_telephone(db: Database, tmp_path: Path) -> None:
    async with a_site(db, tmp_path, demo=True) as site:
        small = {"viewport": {"width": 360, "height": 780}}
        assert await _walk(site, [*PAGES, *(ONE + each for each in OF_ONE)], **small) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_no_violation(db: Database, tmp_path: Path, theme: str) -> None:
    async with a_site(db, tmp_path, demo=True) as site:
        seen = await site.logged_in(color_scheme=theme, bypass_csp=True)
        found = []
        for path in [*PAGES, *(ONE + each for each in OF_ONE)]:
            await seen.go(path)
            found += await seen.axe()
        assert found == []


async def test_the_keyboard_alone_renews_a_certificate(db: Database, tmp_path: Path) -> None:
    async with a_site(db, tmp_path, demo=True) as site:
        seen = await site.logged_in()
        await seen.go("/certificates?q=api.shop.example")
        for key in ("j", "Enter"):
            await seen.page.keyboard.press(key)
        await seen.page.wait_for_url("**/certificates/api.shop.example")
        await seen.page.keyboard.press("r")
        await seen.page.wait_for_selector("#toast :text('has begun')")
        assert seen.wrong == []


async def test_the_keyboard_alone_requeues_a_dead_letter(db: Database, tmp_path: Path) -> None:
    async with a_site(db, tmp_path, demo=True) as site:
        seen = await site.logged_in()
        await seen.go("/")
        for key in ("g", "n"):
            await seen.page.keyboard.press(key)
        await seen.page.wait_for_url("**/notifications")
        await seen.page.keyboard.press("j")
        await seen.page.keyboard.press("q")
        await seen.page.wait_for_selector("#toast :text('on its way again')")
        await seen.page.wait_for_selector("h1:has-text('16 notifications')")
        assert seen.wrong == []


async def test_the_keyboard_alone_snoozes_a_row_and_undoes_it(db: Database, tmp_path: Path) -> None:
    async with a_site(db, tmp_path, demo=True) as site:
        seen = await site.logged_in()
        await seen.go("/")
        first = await seen.page.inner_text("#needs li:first-child h3 .mono")
        for key in ("j", "s"):
            await seen.page.keyboard.press(key)
        await seen.page.wait_for_selector("dialog[open] #why")
        await seen.page.keyboard.type("the owner is on it")
        await seen.page.keyboard.press("Enter")
        await seen.page.wait_for_selector("#needs li.acted:first-child", state="attached")  # it keeps its place
        await seen.page.wait_for_selector("#snoozed summary:has-text('1 thing is snoozed')")
        await seen.page.reload()
        assert first not in await seen.page.inner_text("#needs")
        await seen.page.click("#snoozed summary")
        await seen.page.click("#snoozed button:has-text('Wake')")
        await seen.page.wait_for_selector("#toast :text('on your list again')")
        await seen.page.reload()
        assert await seen.page.inner_text("#needs li:first-child h3 .mono") == first
        assert seen.wrong == []


async def test_the_toast_of_a_pause_undoes_it(db: Database, tmp_path: Path) -> None:
    async with a_site(db, tmp_path, demo=True) as site:
        seen = await site.logged_in()
        await seen.go("/certificates/api.shop.example")
        await seen.page.click("button:has-text('Pause')")
        await seen.page.wait_for_selector("button:has-text('Resume')")
        await seen.page.click("#toast button:has-text('Undo')")
        await seen.page.wait_for_selector(".head-actions button:has-text('Pause')")
        assert seen.wrong == []


async def test_a_saved_view_is_there_in_another_browser(db: Database, tmp_path: Path) -> None:
    async with a_site(db, tmp_path, demo=True) as site:
        seen = await site.logged_in()
        await seen.go("/certificates?q=owner:payments")
        await seen.page.click("button:has-text('Save view')")
        await seen.page.fill("#view-name", "Ours")
        await seen.page.keyboard.press("Enter")
        await seen.page.wait_for_selector("nav[aria-label=Views] a:has-text('Ours')")
        other = await site.logged_in()
        await other.go("/certificates?q=owner:payments")
        await other.page.wait_for_selector("nav[aria-label=Views] a[aria-current=page]:has-text('Ours')")
        await other.page.click("button:has-text('Remove view')")
        await other.page.wait_for_selector("nav[aria-label=Views] a:has-text('Ours')", state="detached")
        assert seen.wrong + other.wrong == []


async def test_the_forecast_follows_a_slider_that_the_keyboard_moves(db: Database, tmp_path: Path) -> None:
    async with a_site(db, tmp_path, demo=True) as site:
        seen = await site.logged_in()
        await seen.go("/forecast")
        await seen.page.wait_for_selector("#outlook h1:has-text('298 certificates counted')")
        await seen.page.evaluate("window.same = true")
        await seen.page.focus("[data-slides=f-more]")
        for _ in range(100):
            await seen.page.keyboard.press("ArrowRight")
        await seen.page.wait_for_url("**/forecast?more=1200")
        assert await seen.page.input_value("#f-more") == "1200"
        await seen.page.fill("#f-life", "6")
        await seen.page.wait_for_url("**/forecast?*lifetime_days=6*")
        await seen.page.wait_for_selector("#outlook h1:has-text('too small')")
        assert await seen.page.evaluate("window.same"), "the page was not loaded again"
        assert seen.wrong == []


async def test_the_palette_finds_a_certificate(db: Database, tmp_path: Path) -> None:
    async with a_site(db, tmp_path, demo=True) as site:
        seen = await site.logged_in()
        await seen.go("/")
        await seen.page.keyboard.press("Control+k")
        await seen.page.keyboard.type("api.sh")
        await seen.page.wait_for_selector("#palette [role=option][aria-selected=true] :text('api.shop.example')")
        await seen.page.keyboard.press("Enter")
        await seen.page.wait_for_url("**/certificates/api.shop.example")
        assert seen.wrong == []


async def test_a_change_elsewhere_appears_without_a_reload(db: Database, tmp_path: Path) -> None:
    async with a_site(db, tmp_path, demo=True) as site:
        seen, other = await site.logged_in(), await site.logged_in("bob")
        await seen.go("/certificates/api.shop.example")
        await other.go("/certificates/api.shop.example")
        await seen.page.wait_for_selector("#live[data-state=live]")
        await other.page.click("button:has-text('Pause')")
        await seen.page.wait_for_selector("h1 .badge:has-text('Retrying'), h1 .badge:has-text('Paused')")
        await seen.page.wait_for_selector("button:has-text('Resume')")
        assert seen.wrong == []


async def test_a_page_goes_on_at_another_replica_and_misses_nothing(db: Database, tmp_path: Path) -> None:
    async with two_replicas(db, tmp_path) as (site, relay, ports):
        seen = await site.logged_in()
        await seen.go("/certificates/api.shop.example")
        await seen.page.wait_for_selector("#live[data-state=live]")
        relay.to = None  # the replica is gone, and no other answers yet
        relay.cut()
        await seen.page.wait_for_selector("#live[data-state=reconnecting]:has-text('as of')")
        await site.desk.do("certificates.pause", CertificateRef(ref="api.shop.example"))
        relay.to = ports[1]
        await seen.page.wait_for_selector("#live[data-state=live]")
        await seen.page.wait_for_selector("button:has-text('Resume')")


async def test_eight_tabs_of_one_browser_share_one_stream(db: Database, tmp_path: Path) -> None:
    """A browser opens six connections to a host: a stream for each tab would leave none for the seventh page."""
    async with a_site(db, tmp_path, demo=True) as site:
        seen = await site.logged_in()
        for _ in range(8):
            tab = await seen.page.context.new_page()
            await tab.goto(site.home + "/cluster")
            await tab.wait_for_selector("#live[data-state=live]")


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}",
    "javascript:alert(1)",
    "\u202egnp.exe",
]


@pytest.mark.parametrize("text", HOSTILE)
async def test_what_is_typed_is_shown_and_never_run(db: Database, tmp_path: Path, text: str) -> None:
    async with a_site(db, tmp_path, demo=True) as site:
        seen = await site.logged_in()
        alerts: list[str] = []
        seen.page.on("dialog", lambda dialog: alerts.append(dialog.message))
        await seen.go("/certificates")
        await seen.page.fill("[data-filter]", text)
        await seen.page.keyboard.press("Enter")
        await seen.page.wait_for_selector(".empty, tbody")
        await seen.go("/certificates/request")
        await seen.page.fill("#f-names", text)
        await seen.page.click("button:has-text('Request certificate')")
        await seen.page.wait_for_selector("[aria-invalid=true], .error")
        typed = await seen.page.input_value("#f-names")
        assert (typed, alerts) == (text, [])
        assert await seen.page.title() == "Error: Request a certificate · Holdfast"


def test_vendored_files_are_those_of_their_manifests() -> None:
    for folder in (Path(pages.__file__).parent / "static" / "vendor", Path(__file__).parent.parent / "assets"):
        for name, facts in json.loads((folder / "manifest.json").read_text()).items():
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == facts["sha256"]
            assert (folder / facts["licence_file"]).read_text()
