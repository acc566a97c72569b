"""Who a browser is: sessions, cookies, forged requests, headers, and where a log-in leads to."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from tests.support.browser import ADDRESS, Browser, a_web_desk, form_of
from tests.support.secrets_watch import WatchedLog

from holdfast.core.access import Role
from holdfast.core.public_address import PublicAddress
from holdfast.operations.access import local
from holdfast.operations.catalog import named
from holdfast.operations.certificates.lifecycle import NewCertificate
from holdfast.operations.installation.tokens import Unauthenticated
from holdfast.operations.people import sessions
from holdfast.operations.people.accounts import NotHere, PersonRef
from holdfast.operations.runner import run
from holdfast.store.database import Database
from holdfast.web import face
from holdfast.web.browser import CSRF_FIELD, CSRF_HEADER, caller_of, principal_of
from holdfast.web.guard import HEADERS

pytestmark = pytest.mark.anyio
COOKIE = "__Host-holdfast"


async def _whoami(request: Request) -> Response:
    who = await caller_of(request)
    return PlainTextResponse(f"{who.principal.actor} {who.principal.role} {who.csrf}")


async def _live(request: Request) -> Response:
    return PlainTextResponse((await principal_of(request, counts=False)).name)


async def _bug(request: Request) -> Response:
    raise RuntimeError("a bug")


PAGES = [Route("/", _whoami, methods=["GET", "POST"]), Route("/live", _live), Route("/bug", _bug)]


# ── Sessions ──


async def test_a_link_logs_in_once_and_leads_to_the_first_page(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path, pages=PAGES) as desk:
        link, browser = await desk.link(), desk.browser()
        answer = await browser.get(link)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert (await browser.get("/")).text.startswith("human:alice admin ")
        assert (await desk.browser().get(link)).status_code == 410


async def test_of_two_who_follow_a_link_at_once_one_is_logged_in(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path, pages=PAGES) as desk:
        link = await desk.link()
        answers = await asyncio.gather(*(desk.browser().get(link) for _ in range(5)))
        assert sorted(each.status_code for each in answers) == [303, 410, 410, 410, 410]


async def test_a_link_that_another_site_leads_to_asks_first(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path, pages=PAGES) as desk:
        browser, link = desk.browser(), await desk.link()
        asked = await browser.get(link, sec_fetch_site="cross-site")
        assert asked.status_code == 200
        assert browser.cookies == {}
        assert (await browser.submit(asked)).status_code == 303


async def test_the_cookie_is_for_this_host_alone_and_no_script(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path, pages=PAGES) as desk:
        [cookie] = (await desk.browser().get(await desk.link())).headers.get_list("set-cookie")
        name, *flags = [each.strip() for each in cookie.split(";")]
        assert name.startswith(f"{COOKIE}=")
        assert {each.lower() for each in flags} == {"httponly", "secure", "path=/", "samesite=lax"}


async def test_without_tls_on_this_machine_the_cookie_has_another_name(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path, pages=PAGES, address=PublicAddress("http://localhost:8630")) as desk:
        [cookie] = (await desk.browser().get(await desk.link())).headers.get_list("set-cookie")
        assert cookie.startswith("holdfast-8630=")
        assert "secure" not in cookie.lower()


async def test_the_store_has_only_the_hash_of_a_session_and_of_a_link(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path, pages=PAGES) as desk:
        kept = await desk.link("bob")
        browser = await desk.logged_in()
        rows = await db.read(lambda tx: [*tx.rows("SELECT * FROM sessions"), *tx.rows("SELECT * FROM tickets")])
        token = browser.cookies[COOKIE]
        assert hashlib.sha256(token.encode()).hexdigest() in str(rows)
        assert token not in str(rows)
        assert kept.rsplit("/", 1)[1] not in str(rows)


async def test_a_session_that_was_planted_never_becomes_good(db: Database, tmp_path: Path) -> None:
    """Session fixation: the cookie that an attacker put into the browser is not the one of the log-in."""
    async with a_web_desk(db, tmp_path, pages=PAGES) as desk:
        browser = desk.browser()
        browser.http.cookies.set(COOKIE, "planted", domain="holdfast.test", path="/")
        await browser.get(await desk.link())
        attacker = desk.browser()
        attacker.http.cookies.set(COOKIE, "planted", domain="holdfast.test", path="/")
        assert (await attacker.get("/")).status_code == 303
        assert "planted" not in browser.cookies.values()


@pytest.mark.parametrize(
    ("changed", "good"),
    [
        ("used_at = used_at - 3540000000", True),
        ("used_at = used_at - 3700000000", False),  # idle for more than an hour
        ("expires_at = now_us() - 1", False),
        ("ended_at = now_us()", False),
    ],
)
async def test_a_session_ends_by_idling_by_age_and_by_hand(
    db: Database, tmp_path: Path, changed: str, *, good: bool
) -> None:
    async with a_web_desk(db, tmp_path, pages=PAGES) as desk:
        browser = await desk.logged_in()
        await db.write(lambda tx: tx.run(f"UPDATE sessions SET {changed}"))
        assert (await browser.get("/")).status_code == (200 if good else 303)


async def test_use_keeps_a_session_alive_and_what_a_page_does_by_itself_does_not(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path, pages=PAGES) as desk:
        browser = await desk.logged_in()
        await db.write(lambda tx: tx.run("UPDATE sessions SET used_at = used_at - 600000000"))
        used = lambda tx: tx.rows("SELECT used_at FROM sessions")[0]["used_at"]  # noqa: E731
        before = await db.read(used)
        await browser.get("/live")
        assert await db.read(used) == before
        await browser.get("/")
        assert await db.read(used) > before


async def test_disabling_and_removing_a_person_ends_what_they_are_logged_in_to(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path, pages=PAGES) as desk:
        alice, bob = await desk.logged_in("alice"), await desk.logged_in("bob")
        await db.write(lambda tx: tx.run("UPDATE people SET disabled_at = now_us() WHERE name = 'alice'"))
        await db.write(lambda tx: tx.run("DELETE FROM people WHERE name = 'bob'"))
        assert [(await each.get("/")).status_code for each in (alice, bob)] == [303, 303]


async def test_a_changed_role_holds_from_the_next_request_on(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path, pages=PAGES) as desk:
        browser = await desk.logged_in()
        await desk.set_role("alice", Role.VIEWER)
        assert (await browser.get("/")).text.startswith("human:alice viewer ")


async def test_a_session_holds_at_every_replica(db: Database, tmp_path: Path) -> None:
    """Nothing about a session is in the memory of a process: another one, on the same store, knows it."""
    async with a_web_desk(db, tmp_path, pages=PAGES) as desk:
        browser, elsewhere = await desk.logged_in(), desk.replica(PAGES).browser()
        elsewhere.http.cookies = browser.http.cookies
        assert (await elsewhere.get("/")).status_code == 200


async def test_logging_out_ends_the_session_in_the_store(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        browser = await desk.logged_in()
        token = browser.cookies[COOKIE]
        answer = await browser.submit(await browser.get("/"), "/logout")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert COOKIE not in browser.cookies
        browser.http.cookies.set(COOKIE, token, domain="holdfast.test", path="/")
        assert (await browser.get("/")).status_code == 303
        assert len(await desk.audited("session_ended")) == 1


async def test_logging_in_is_audited_with_its_origin(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        await desk.logged_in(client="198.51.100.4")
        [entry] = await desk.audited("person_logged_in")
        assert entry["actor"] == "human:alice"
        assert '"address":"198.51.100.4"' in entry["details"]
        assert '"face":"web"' in entry["details"]


async def test_a_stream_of_events_ends_with_the_session(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path, idle_for=timedelta(hours=1)) as desk:
        await desk.logged_in()
        session = await db.read(lambda tx: tx.rows("SELECT id, person FROM sessions")[0])
        person = await db.read(lambda tx: sessions.people.get(tx, session["person"]))
        assert person is not None
        who = sessions.principal_of(person, session["id"])
        known = desk.services.people
        await db.read(lambda tx: sessions.check_still_good(tx, who, known))
        await db.write(lambda tx: tx.run("UPDATE sessions SET ended_at = now_us()"))
        with pytest.raises(Unauthenticated):
            await db.read(lambda tx: sessions.check_still_good(tx, who, known))


async def test_only_on_the_servers_machine_can_an_account_be_recovered(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        admin = replace(local("x"), kind="human")
        with pytest.raises(NotHere):
            await run(desk.services, named("people.recover"), admin, PersonRef(name="alice"))


async def test_what_is_over_is_forgotten_and_what_is_not_stays(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        browser = await desk.logged_in()
        await desk.link("bob")
        assert await sessions.forget_old(db) == 0
        await db.write(lambda tx: tx.run("UPDATE tickets SET expires_at = now_us() - 1"))
        assert await sessions.forget_old(db) == 1
        assert (await browser.get("/settings/sessions")).status_code == 200
        await db.write(lambda tx: tx.run("UPDATE sessions SET expires_at = now_us() - 90000000000"))
        assert await sessions.forget_old(db) == 1


# ── Forged requests ──


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.test"},
        {"Origin": "null"},
        {"Origin": "http://holdfast.test"},  # not TLS
        {"Origin": "https://holdfast.test.evil.test"},
        {"Origin": "https://holdfast.test:8443"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "", "Sec-Fetch-Site": ""},
    ],
)
async def test_a_form_of_another_site_changes_nothing(db: Database, tmp_path: Path, headers: dict[str, str]) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        browser = await desk.logged_in()
        form = form_of((await browser.get("/")).text, "/logout")
        answer = await browser.post("/logout", form.fields, **headers)
        assert answer.status_code == 403
        assert (await browser.get("/")).status_code == 200


@pytest.mark.parametrize("token", ["", "0" * 64, "of another session"])
async def test_a_form_without_the_sessions_token_changes_nothing(db: Database, tmp_path: Path, token: str) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        browser, other = await desk.logged_in(), await desk.logged_in("bob")
        if token.startswith("of"):
            token = form_of((await other.get("/")).text, "/logout").fields[CSRF_FIELD]
        answer = await browser.post("/logout", {CSRF_FIELD: token})
        assert answer.status_code == 403
        assert (await browser.get("/")).status_code == 200


async def test_a_script_sends_the_token_in_a_header(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path, pages=PAGES) as desk:
        browser = await desk.logged_in()
        token = (await browser.get("/")).text.split()[-1]
        assert (await browser.post("/", **{CSRF_HEADER: token})).status_code == 200
        assert (await browser.post("/", **{CSRF_HEADER: token[:-1]})).status_code == 403


# ── Headers ──


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200), ("GET", "/nowhere", 404), ("DELETE", "/", 405), ("GET", "/bug", 500), ("GET", "/login", 200),
        ("GET", "/login/link/x", 410), ("POST", "/", 403), ("GET", "/live", 200),
    ],
)  # fmt: skip
async def test_every_answer_has_the_security_headers(
    db: Database, tmp_path: Path, method: str, path: str, status: int
) -> None:
    async with a_web_desk(db, tmp_path, pages=PAGES) as desk:
        browser = await desk.logged_in()
        answer = await browser.http.request(method, path, headers={"Origin": ADDRESS.url})
        assert answer.status_code == status
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["strict-transport-security"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-request-id"].startswith("req_")


async def test_while_the_server_starts_the_answer_has_them_too(db: Database, tmp_path: Path) -> None:
    mounted = face.mount(lambda: None, WatchedLog(), address=ADDRESS, new_id=lambda: "req_1", pages=PAGES)
    answer = await Browser(Starlette(routes=[mounted])).get("/")
    assert answer.status_code == 503
    assert answer.headers["x-frame-options"] == "DENY"


async def test_a_body_without_an_end_is_refused(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path, pages=PAGES) as desk:
        browser = await desk.logged_in()
        assert (await browser.post("/", {"x": "y" * 300_000})).status_code == 413


# ── To the log-in, and back ──


async def test_who_is_not_logged_in_is_led_to_the_log_in_and_back_again(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path, pages=PAGES) as desk:
        browser = desk.browser()
        assert (await browser.get("/live?a=1&b=2")).headers["location"] == "/login?next=%2Flive%3Fa%3D1%26b%3D2"
        sent = await browser.post("/", {}, Referer="https://holdfast.test/live?a=1")
        assert sent.headers["location"] == "/login?next=%2Flive%3Fa%3D1"
        foreign = await browser.post("/", {}, Referer="https://evil.test/live")
        assert foreign.headers["location"] == "/login"
        part = await browser.get("/", HX_Request="true", HX_Current_URL="https://holdfast.test/live")
        assert (part.status_code, part.headers["hx-redirect"]) == (401, "/login?next=%2Flive")


async def test_pages_of_another_owner_are_refused_as_for_a_token(db: Database, tmp_path: Path) -> None:
    async def shown(request: Request) -> Response:
        who = await caller_of(request)
        got = named("certificates.get")
        found = await run(who.services, got, who.principal, got.input_model(ref=request.path_params["ref"]))
        return PlainTextResponse(found.result.name)

    async with a_web_desk(db, tmp_path, pages=[Route("/certificates/{ref}", shown)]) as desk:
        for owner in ("mine", "theirs"):
            await desk.do("certificates.request", NewCertificate(names=[f"{owner}.example.com"], owner=owner))
        browser = await desk.logged_in()
        await desk.set_role("alice", Role.OPERATOR, "mine")
        assert (await browser.get("/certificates/mine.example.com")).status_code == 200
        assert (await browser.get("/certificates/theirs.example.com")).status_code == 404
