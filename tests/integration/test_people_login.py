"""Local accounts: the set-up by a link, passwords with codes, recovery codes, passkeys, and guesses that are slowed."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.authenticator import Authenticator
from tests.support.browser import ADDRESS, Browser, WebDesk, a_web_desk, form_of

from holdfast.core import totp
from holdfast.operations.people.accounts import NewPerson, PersonRef
from holdfast.store.database import Database
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio
PASSWORD = "correct horse battery staple"
CSRF = "X-CSRF-Token"


async def invited(desk: WebDesk, name: str = "alice", **wishes: Any) -> Browser:
    """A browser that followed a set-up link."""
    made = await desk.do("people.add", NewPerson(name=name, **wishes))
    browser = desk.browser()
    answer = await browser.get(made.link.removeprefix(desk.address.url))
    assert answer.headers["location"] == "/account/setup"
    return browser


def code(secret: str) -> str:
    key = totp.of_text(secret)
    assert key is not None
    return totp.code_at(key, totp.step_of(SystemClock().now()))


async def account(desk: WebDesk, name: str = "alice", **wishes: Any) -> tuple[str, list[str]]:
    """Set an account up with a password and an app; the key of the app, and the recovery codes.

    The use of its code is forgotten, so that a test can use one in the same half minute.
    """
    browser = await invited(desk, name, **wishes)
    page = await browser.get("/account/setup")
    secret = form_of(page.text, "/account/setup").fields["secret"]
    done = await browser.submit(page, "/account/setup", password=PASSWORD, code=code(secret))
    assert done.status_code == 200, done.text
    assert (await browser.get("/account/setup")).status_code == 200
    await desk.db.write(lambda tx: tx.run("UPDATE people SET totp_step = 0 WHERE name = :name", name=name))
    return secret, [each.replace(" ", "") for each in re.findall(r"<li>([A-Z2-7 ]{19})</li>", done.text)]


async def first_step(
    browser: Browser, name: str = "alice", password: str = PASSWORD, back: str = "/"
) -> httpx2.Response:
    page = await browser.get(f"/login?next={back}")
    return await browser.submit(page, "/login", name=name, password=password)


async def second_step(browser: Browser, given: str) -> httpx2.Response:
    return await browser.submit(await browser.get("/login/code?next=/live"), "/login/code", code=given)


# ── The set-up ──


async def test_a_set_up_link_leads_to_the_set_up_and_nowhere_else(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        browser = await invited(desk)
        for path in ("/", "/certificates", "/settings/people"):
            assert (await browser.get(path)).headers["location"] == "/account/setup"


async def test_an_account_is_set_up_with_a_password_and_an_app_and_then_logs_in(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        secret, codes = await account(desk)
        assert len(set(codes)) == 10
        browser = desk.browser()
        asked = await first_step(browser, back="/live")
        assert asked.headers["location"] == "/login/code?next=%2Flive"
        done = await second_step(browser, code(secret))
        assert (done.status_code, done.headers["location"]) == (303, "/live")
        assert (await browser.get("/account/setup")).status_code == 200
        methods = await db.read(lambda tx: [row["method"] for row in tx.rows("SELECT method FROM sessions")])
        assert methods.count("password") == 2


async def test_the_set_up_ends_the_links_session(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        browser = await invited(desk)
        before = dict(browser.cookies)
        page = await browser.get("/account/setup")
        secret = form_of(page.text, "/account/setup").fields["secret"]
        await browser.submit(page, "/account/setup", password=PASSWORD, code=code(secret))
        assert browser.cookies != before
        stale = desk.browser()
        stale.http.cookies.update(before)
        assert (await stale.get("/account/setup")).headers["location"].startswith("/login")


@pytest.mark.parametrize(
    ("password", "given", "beside", "says"),
    [
        ("short", "", "e-password", "at least 12"),
        ("alice alice alice", "", "e-password", "easy to guess"),
        ("x" * 300, "", "e-password", "at most 256"),
        (PASSWORD, "000000", "e-code", "not the one that the app shows"),
    ],
)
async def test_a_set_up_that_is_refused_says_why_beside_the_field_and_keeps_the_key(
    db: Database, tmp_path: Path, password: str, given: str, beside: str, says: str
) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        browser = await invited(desk)
        page = await browser.get("/account/setup")
        secret = form_of(page.text, "/account/setup").fields["secret"]
        answer = await browser.submit(page, "/account/setup", password=password, code=given or code(secret))
        assert answer.status_code == 422
        assert re.search(f'id="{beside}".*?{says}', answer.text, re.DOTALL)
        assert answer.text.count("<title>Error:") == 1
        assert form_of(answer.text, "/account/setup").fields["secret"] == secret
        assert password not in answer.text
        assert await db.read(lambda tx: tx.rows("SELECT password FROM people")[0]["password"]) is None


async def test_the_store_has_no_password_no_key_and_no_code(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        secret, codes = await account(desk)
        tables = ("people", "recovery_codes", "secrets", "audit", "tickets", "login_failures", "sessions")
        kept = await db.read(lambda tx: str([tx.rows(f"SELECT * FROM {each}") for each in tables]))
        assert "$argon2id$" in kept
        for each in (PASSWORD, secret, str(totp.of_text(secret)), *codes):
            assert each not in kept


async def test_how_one_logs_in_is_changed_only_shortly_after_a_log_in(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        browser = await desk.logged_in()
        page = await browser.get("/account/setup")
        await db.write(lambda tx: tx.run("UPDATE sessions SET created_at = created_at - 700000000"))
        secret = form_of(page.text, "/account/setup").fields["secret"]
        answer = await browser.submit(page, "/account/setup", password=PASSWORD, code=code(secret))
        assert answer.status_code == 403
        assert "too long ago" in answer.text


# ── Logging in ──


@pytest.mark.parametrize(
    ("name", "password"), [("alice", "wrong password"), ("nobody", PASSWORD), ("", ""), ("alice", "")]
)
async def test_a_wrong_name_and_a_wrong_password_are_answered_alike(
    db: Database, tmp_path: Path, name: str, password: str
) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        await account(desk)
        answer = await first_step(desk.browser(), name, password)
        assert answer.status_code == 401
        assert "The name or the password is wrong." in answer.text
        assert f'value="{name}"' in answer.text
        [entry] = await desk.audited("person_login_failed")
        assert ("alice" in entry["details"]) == (name == "alice")


async def test_without_the_password_no_code_is_asked_for(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        secret, _ = await account(desk)
        browser = desk.browser()
        answer = await second_step(browser, code(secret))
        assert answer.status_code == 401
        assert "took too long" in answer.text


async def test_the_second_step_is_possible_only_in_the_browser_of_the_first(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        secret, _ = await account(desk)
        await first_step(desk.browser())
        assert (await second_step(desk.browser(), code(secret))).status_code == 401


async def test_a_code_is_good_once(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        secret, _ = await account(desk)
        one, other = desk.browser(), desk.browser()
        now = code(secret)
        assert (await first_step(one)).status_code == (await first_step(other)).status_code == 303
        answers = await asyncio.gather(second_step(one, now), second_step(other, now))
        assert sorted(each.status_code for each in answers) == [303, 401]


async def test_a_recovery_code_is_good_once_and_its_use_is_audited(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        _, codes = await account(desk)
        one, other = desk.browser(), desk.browser()
        await first_step(one)
        assert (await second_step(one, codes[0].lower())).status_code == 303
        await first_step(other)
        assert (await second_step(other, codes[0])).status_code == 401
        [entry] = await desk.audited("recovery_code_used")
        assert '"left":9' in entry["details"]


async def test_a_disabled_person_cannot_log_in_and_a_reset_one_needs_the_new_link(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        await account(desk)
        await desk.do("people.disable", PersonRef(name="alice"))
        assert (await first_step(desk.browser())).status_code == 401
        await desk.do("people.enable", PersonRef(name="alice"))
        assert (await first_step(desk.browser())).status_code == 303
        await desk.do("people.reset", PersonRef(name="alice"))
        assert (await first_step(desk.browser())).status_code == 401


async def test_a_log_in_form_without_its_token_is_refused(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        await account(desk)
        browser = desk.browser()
        await browser.get("/login")
        answer = await browser.post("/login", {"name": "alice", "password": PASSWORD, "csrf": "0" * 64})
        assert answer.status_code == 403
        assert "does not carry the token" in answer.text


# ── Guessing ──


async def test_guesses_are_slowed_by_name_whatever_their_address(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        await account(desk)
        seen = []
        for number in range(7):
            browser = desk.replica().browser(client=f"192.0.2.{number}")
            seen.append((await first_step(browser, "ALICE" if number % 2 else "alice", "wrong password")).status_code)
        assert seen == [401] * 6 + [429]
        assert (await first_step(desk.browser(client="192.0.2.99"))).status_code == 429  # the right one waits, too


async def test_guesses_are_slowed_by_address_whatever_their_names(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        browser = desk.browser()
        seen = [(await first_step(browser, f"name{number}", "wrong password")).status_code for number in range(22)]
        assert seen == [401] * 21 + [429]
        assert (await first_step(desk.browser(client="192.0.2.99"), "name", "wrong password")).status_code == 401


async def test_guesses_at_once_are_each_counted(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        await account(desk)
        browsers = [desk.browser(client=f"192.0.2.{number}") for number in range(12)]
        answers = await asyncio.gather(*(first_step(each, password="wrong password") for each in browsers))
        assert sum(each.status_code == 401 for each in answers) <= 6


async def test_codes_cannot_be_guessed_either(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        await account(desk)
        browser = desk.browser()
        await first_step(browser)
        seen = [(await second_step(browser, f"{number:06d}")).status_code for number in range(7)]
        assert set(seen[:5]) == {401}
        assert seen[-1] == 429


async def test_after_a_log_in_the_name_is_free_again(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        secret, _ = await account(desk)
        for _ in range(3):
            await first_step(desk.browser(), password="wrong password")
        browser = desk.browser()
        await first_step(browser)
        assert (await second_step(browser, code(secret))).status_code == 303
        rows = await db.read(lambda tx: tx.rows("SELECT key, failures FROM login_failures"))
        assert [row["key"].partition(":")[0] for row in rows] == ["address"]


# ── Passkeys ──


def phone(**lies: Any) -> Authenticator:
    return Authenticator(origin=ADDRESS.url, rp=ADDRESS.host, **lies)


async def enrolled(desk: WebDesk, authenticator: Authenticator, name: str = "alice") -> httpx2.Response:
    browser = await invited(desk, name)
    token = re.findall(r'data-csrf="(\w+)"', (await browser.get("/account/setup")).text)[0]
    options = (await browser.post("/account/passkeys/begin", **{CSRF: token})).json()
    return await browser.post(
        "/account/passkeys", {"answer": authenticator.create(options), "name": "phone"}, **{CSRF: token}
    )


async def by_passkey(browser: Browser, authenticator: Authenticator, back: str = "/live") -> httpx2.Response:
    token = re.findall(r'data-csrf="(\w+)"', (await browser.get("/login")).text)[0]
    options = (await browser.post("/login/passkey/begin", **{CSRF: token})).json()
    answer = {"answer": authenticator.get(options), "next": back}
    return await browser.post("/login/passkey", answer, **{CSRF: token})


async def test_a_passkey_is_enough_to_log_in(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        key = phone()
        assert (await enrolled(desk, key)).json() == {"to": "/"}
        browser = desk.browser()
        answer = await by_passkey(browser, key)
        assert answer.json() == {"to": "/live"}
        assert (await browser.get("/account/setup")).status_code == 200
        assert len(await desk.audited("passkey_added")) == 1


@pytest.mark.parametrize(
    "lie",
    [
        {"origin": "https://evil.test"},
        {"rp": "evil.test"},
        {"flags": 0x01},  # nobody checked who it is
        {"flags": 0x00},
        {"id": b"of nobody at all"},
        {"key": None},  # signed with another key
    ],
)
async def test_a_passkey_that_lies_is_refused(db: Database, tmp_path: Path, lie: dict[str, Any]) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        key = phone()
        await enrolled(desk, key)
        for name, value in lie.items():
            setattr(key, name, value if value is not None else phone().key)
        browser = desk.browser()
        answer = await by_passkey(browser, key)
        assert (answer.status_code, answer.json()["says"]) == (401, "The passkey was not accepted.")
        assert ADDRESS.cookie() not in browser.cookies


async def test_an_answer_of_a_passkey_is_good_once_in_its_browser_and_for_a_while(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path, step_for=timedelta(minutes=10)) as desk:
        key, browser, other = phone(), desk.browser(), desk.browser()
        await enrolled(desk, key)
        token = re.findall(r'data-csrf="(\w+)"', (await browser.get("/login")).text)[0]
        theirs = re.findall(r'data-csrf="(\w+)"', (await other.get("/login")).text)[0]
        answer = key.get((await browser.post("/login/passkey/begin", **{CSRF: token})).json())
        assert (await other.post("/login/passkey", {"answer": answer}, **{CSRF: theirs})).status_code == 401
        held = browser.cookies
        assert (await browser.post("/login/passkey", {"answer": answer}, **{CSRF: token})).status_code == 200
        again = desk.browser()
        again.http.cookies.update(held)
        assert (await again.post("/login/passkey", {"answer": answer}, **{CSRF: token})).status_code == 401


async def test_a_passkey_whose_counter_goes_back_is_a_copy(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        key = phone(count=5)
        await enrolled(desk, key)
        key.count = 6
        assert (await by_passkey(desk.browser(), key)).status_code == 200
        assert (await by_passkey(desk.browser(), key)).status_code == 401
        assert len(await desk.audited("person_login_failed")) == 1


@pytest.mark.parametrize("answer", ["", "{}", "[]", "null", '{"id": 1}', "x" * 30_000, '{"a":' * 5000])
async def test_rubbish_in_place_of_a_passkey_is_refused(db: Database, tmp_path: Path, answer: str) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        browser = desk.browser()
        token = re.findall(r'data-csrf="(\w+)"', (await browser.get("/login")).text)[0]
        assert (await browser.post("/login/passkey", {"answer": answer}, **{CSRF: token})).status_code == 401


async def test_asking_for_challenges_leaves_nothing_in_the_store(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        browser = desk.browser()
        token = re.findall(r'data-csrf="(\w+)"', (await browser.get("/login")).text)[0]
        for _ in range(5):
            await browser.post("/login/passkey/begin", **{CSRF: token})
        assert await db.read(lambda tx: tx.rows("SELECT * FROM tickets")) == []


# ── Links ──


async def test_links_of_an_account_that_is_disabled_or_reset_are_void(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        made = await desk.do("people.add", NewPerson(name="alice"))
        await desk.do("people.reset", PersonRef(name="alice"))
        assert (await desk.browser().get(made.link.removeprefix(ADDRESS.url))).status_code == 410
        other = await desk.do("people.reset", PersonRef(name="alice"))
        await desk.do("people.disable", PersonRef(name="alice"))
        assert (await desk.browser().get(other.link.removeprefix(ADDRESS.url))).status_code == 410


async def test_a_link_expires(db: Database, tmp_path: Path) -> None:
    async with a_web_desk(db, tmp_path) as desk:
        link = await desk.link()
        await db.write(lambda tx: tx.run("UPDATE tickets SET expires_at = now_us() - 1"))
        assert (await desk.browser().get(link)).status_code == 410
