"""Logging in by an OpenID provider: roles by groups, keys that change, log-out both ways, and attacks on all of it."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from tests.support.browser import ADDRESS, Browser, WebDesk, a_web_desk, form_of
from tests.support.openid_provider import OpenIdProvider, SigningKey, rsa_key

from holdfast.core.people import GroupRule, granted, group_rule
from holdfast.operations.people.accounts import NewPerson, PersonRef
from holdfast.operations.people.provider import Provider, ProviderSettings
from holdfast.secret import Secret
from holdfast.store.database import Database
from holdfast.world import HttpTransport, SystemClock

pytestmark = pytest.mark.anyio
RULES = ("pki-team=admin+export", "payments=operator:payments", "shop=operator:shop web", "staff=viewer")


def rules(*texts: str) -> tuple[GroupRule, ...]:
    return tuple(rule for text in texts if (rule := group_rule(text)) is not None)


@asynccontextmanager
async def a_provider(db: Database, folder: Path, **wishes: Any) -> AsyncIterator[tuple[WebDesk, OpenIdProvider]]:
    transport = HttpTransport()
    async with OpenIdProvider() as company:
        settings = ProviderSettings(
            issuer=company.issuer, client_id=company.client_id, client_secret=Secret(company.client_secret),
            name="Example AG", scopes=("openid", "profile"), name_claim="preferred_username", groups_claim="groups",
            rules=rules(*RULES),
        )  # fmt: skip
        provider = Provider(settings, transport, SystemClock())
        async with a_web_desk(db, folder, provider=provider, **wishes) as desk:
            yield desk, company
    await transport.close()


async def there(browser: Browser, back: str = "") -> str:
    """The address of the provider that the browser is sent to."""
    answer = await browser.get(f"/login/provider{back}")
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


async def back(browser: Browser, address: str) -> httpx2.Response:
    return await browser.get(address.removeprefix(ADDRESS.url), sec_fetch_site="cross-site")


async def log_in(browser: Browser, company: OpenIdProvider, where: str = "") -> httpx2.Response:
    return await back(browser, company.log_in(await there(browser, where)))


def is_in(browser: Browser) -> bool:
    return ADDRESS.cookie() in browser.cookies


async def test_the_provider_vouches_and_the_groups_give_the_role(db: Database, tmp_path: Path) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        browser = desk.browser()
        page = await browser.get("/login?next=/jobs")
        assert "Log in with Example AG" in page.text
        answer = await log_in(browser, company, "?next=/jobs?state=dead")
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=dead")
        person = await desk.do("people.get", PersonRef(name="carol"))
        assert (person.role, person.rights, person.logs_in_by) == ("admin", ["export"], ["provider"])
        [entry] = await desk.audited("person_logged_in")
        assert '"method":"provider"' in entry["details"]


async def test_a_log_in_may_begin_at_one_replica_and_end_at_another(db: Database, tmp_path: Path) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        one, other = desk.browser(), desk.replica().browser()
        address = company.log_in(await there(one))
        other.http.cookies = one.http.cookies
        assert (await back(other, address)).status_code == 303


async def test_groups_are_looked_at_again_at_each_log_in(db: Database, tmp_path: Path) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        await log_in(desk.browser(), company)
        company.groups, company.name = ["shop", "payments", "staff"], "renamed"
        await log_in(desk.browser(), company)
        person = await desk.do("people.get", PersonRef(name="carol"))
        assert (person.role, person.owners, person.rights) == ("operator", ["payments", "shop", "web"], [])
        company.groups = ["others"]
        browser = desk.browser()
        refused = await log_in(browser, company)
        assert refused.status_code == 401
        assert "None of your groups is let in" in refused.text
        assert not is_in(browser)


async def test_groups_and_name_may_come_from_userinfo_of_the_same_person(db: Database, tmp_path: Path) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        company.claims = {"groups": None, "preferred_username": None}
        company.userinfo = {"groups": ["staff"], "preferred_username": "dave"}
        assert (await log_in(desk.browser(), company)).status_code == 303
        company.userinfo["sub"] = "somebody else"
        assert (await log_in(desk.browser(), company)).status_code == 401


async def test_too_many_groups_are_refused_with_the_reason(db: Database, tmp_path: Path) -> None:
    """Entra sends a link in their place."""
    async with a_provider(db, tmp_path) as (desk, company):
        company.claims = {"groups": None, "_claim_names": {"groups": "src1"}}
        answer = await log_in(desk.browser(), company)
        assert answer.status_code == 401
        assert "too many groups" in answer.text


async def test_a_name_that_somebody_else_has_is_not_taken_over(db: Database, tmp_path: Path) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        await desk.do("people.add", NewPerson(name="carol", role="admin"))
        browser = desk.browser()
        assert "There is another account named carol" in (await log_in(browser, company)).text
        assert not is_in(browser)
        company.name, company.subject = "eve", "sub-2"
        await log_in(desk.browser(), company)
        company.subject = "sub-3"
        assert (await log_in(desk.browser(), company)).status_code == 401


async def test_who_comes_by_the_provider_gets_no_password_here(db: Database, tmp_path: Path) -> None:
    """They could come back with it after they were removed there."""
    async with a_provider(db, tmp_path) as (desk, company):
        browser = desk.browser()
        await log_in(browser, company)
        assert (await browser.get("/account/setup")).status_code == 403
        token = form_of((await browser.get("/")).text, "/logout").fields["csrf"]
        assert (await browser.post("/account/passkeys/begin", {"csrf": token})).status_code == 403


async def test_a_disabled_person_stays_out(db: Database, tmp_path: Path) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        await log_in(desk.browser(), company)
        await desk.do("people.disable", PersonRef(name="carol"))
        assert (await log_in(desk.browser(), company)).status_code == 401


async def test_new_keys_are_fetched_and_old_ones_are_not_believed(db: Database, tmp_path: Path) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        await log_in(desk.browser(), company)
        provider = desk.services.people.provider
        assert provider is not None
        assert provider._keys is not None
        provider._keys = (provider._keys[0] - 61, provider._keys[1])  # a minute later
        company.keys = [rsa_key("two")]
        assert (await log_in(desk.browser(), company)).status_code == 303


async def test_strangers_cannot_have_the_keys_fetched_again_and_again(db: Database, tmp_path: Path) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        await log_in(desk.browser(), company)
        asked = [each.line for each in company.requests].count("GET /keys")
        for number in range(5):
            company.header = {"kid": f"unknown-{number}"}
            assert (await log_in(desk.browser(), company)).status_code == 401
        assert [each.line for each in company.requests].count("GET /keys") == asked


async def test_a_provider_that_is_away_is_said_to_be(db: Database, tmp_path: Path) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        await company.__aexit__(None, None, None)
        answer = await desk.browser().get("/login/provider")
        assert answer.status_code == 401
        assert "does not answer" in answer.text
        await company.__aenter__()


# ── Attacks ──


async def _fails(desk: WebDesk, company: OpenIdProvider, says: str) -> None:
    browser = desk.browser()
    answer = await log_in(browser, company)
    assert answer.status_code == 401, answer.text
    assert says in answer.text
    assert not is_in(browser)


def _public_key_as_secret(company: OpenIdProvider) -> None:
    company.header = {"alg": "HS256"}
    company.sign = lambda data: hmac.new(company.keys[0].pem(), data, hashlib.sha256).digest()


def _none(company: OpenIdProvider) -> None:
    company.header, company.sign = {"alg": "none"}, lambda data: b""


def _foreign_key(company: OpenIdProvider) -> None:
    company.sign = SigningKey().sign


def _claims(**lies: Any) -> Any:
    def lie(company: OpenIdProvider) -> None:
        company.claims = lies

    return lie


@pytest.mark.parametrize(
    ("lie", "says"),
    [
        (_none, "is not accepted"),
        (_public_key_as_secret, "is not accepted"),
        (_foreign_key, "signature is wrong"),
        (_claims(aud="another"), "for another program"),
        (_claims(aud=["another", "more"]), "for another program"),
        (_claims(aud=["holdfast", "more"]), "given to another program"),
        (_claims(azp="another"), "given to another program"),
        (_claims(iss="https://evil.test"), "another provider issued it"),
        (_claims(exp=1), "has expired"),
        (_claims(exp=None), "has expired"),
        (_claims(iat=9999999999), "from the future"),
        (_claims(nonce="replayed"), "nonce differs"),
        (_claims(nonce=None), "nonce differs"),
    ],
)  # fmt: skip
async def test_a_token_that_is_not_for_this_log_in_is_refused(
    db: Database, tmp_path: Path, lie: Any, says: str
) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        lie(company)
        await _fails(desk, company, says)
        assert len(await desk.audited("person_login_failed")) == 1


async def test_a_header_cannot_choose_the_algorithm_of_a_key(db: Database, tmp_path: Path) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        company.header = {"alg": "RS256"}  # of a key for ES256
        await _fails(desk, company, "names no key")
        company.header = {"crit": ["b64"]}
        await _fails(desk, company, "is not accepted")


async def test_an_answer_of_another_provider_is_refused(db: Database, tmp_path: Path) -> None:
    """Mix-up: iss is wrong, or missing though this provider always sends it (RFC 9207)."""
    async with a_provider(db, tmp_path) as (desk, company):
        browser = desk.browser()
        address = company.log_in(await there(browser))
        for lie in (address.replace("iss=http", "iss=https"), address.partition("&iss=")[0]):
            answer = await back(browser, lie)
            assert answer.status_code == 401
            assert "its iss differs" in answer.text
            assert not is_in(browser)
        assert not [each for each in company.requests if each.line == "POST /token"]  # the code went nowhere


async def test_discovery_that_names_another_issuer_is_refused(db: Database, tmp_path: Path) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        company.metadata = {"issuer": "https://evil.test"}
        answer = await desk.browser().get("/login/provider")
        assert answer.status_code == 401
        assert "calls itself https://evil.test" in answer.text


async def test_an_answer_is_of_no_use_in_another_browser(db: Database, tmp_path: Path) -> None:
    """A code of the attacker's log-in that is slipped to a victim, and a victim's that the attacker caught."""
    async with a_provider(db, tmp_path) as (desk, company):
        attacker, victim = desk.browser(), desk.browser()
        theirs = company.log_in(await there(attacker))
        mine = company.log_in(await there(victim))
        assert (await back(victim, theirs)).status_code == 401
        assert (await back(attacker, mine)).status_code == 401
        assert (await back(desk.browser(), theirs)).status_code == 401
        assert not [each for each in company.requests if each.line == "POST /token"]  # the state tells them apart
        assert not is_in(victim)
        assert not is_in(attacker)


async def test_a_code_that_is_put_into_another_log_in_is_refused(db: Database, tmp_path: Path) -> None:
    """Code injection: state of the victim's browser, code of the attacker's; PKCE tells them apart."""
    async with a_provider(db, tmp_path) as (desk, company):
        attacker, victim = desk.browser(), desk.browser()
        code = dict(parse_qsl(urlsplit(company.log_in(await there(attacker))).query))["code"]
        mine = dict(parse_qsl(urlsplit(company.log_in(await there(victim))).query))
        answer = await victim.http.get("/login/provider/back", params={**mine, "code": code})
        assert answer.status_code == 401
        assert not is_in(victim)


async def test_a_state_is_good_once_and_for_a_while(db: Database, tmp_path: Path) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        browser = desk.browser()
        address = await there(browser)
        first = company.log_in(address)
        held = browser.cookies
        assert (await back(browser, first)).status_code == 303
        again = desk.browser()
        again.http.cookies.update({name: value for name, value in held.items() if name != ADDRESS.cookie()})
        assert (await back(again, company.log_in(address))).status_code == 401
        assert not is_in(again)


@pytest.mark.parametrize("state", ["", "x", "1-x", "99999999999999-0", "é", "-", "1700000000-" + "0" * 64])
async def test_a_state_of_nobody_is_refused(db: Database, tmp_path: Path, state: str) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        browser = desk.browser()
        await there(browser)
        answer = await browser.http.get("/login/provider/back", params={"state": state, "code": "x"})
        assert answer.status_code == 401
        assert "begun in another browser" in answer.text
        assert not [each for each in company.requests if each.line == "POST /token"]


async def test_an_error_of_the_provider_is_told_and_is_no_markup(db: Database, tmp_path: Path) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        browser = desk.browser()
        asked = dict(parse_qsl(urlsplit(await there(browser)).query))
        given = {"state": asked["state"], "error": "<script>alert(1)</script>", "iss": company.issuer}
        answer = await browser.http.get("/login/provider/back", params=given)
        assert answer.status_code == 401
        assert "<script>alert" not in answer.text


@pytest.mark.parametrize("path", ["//evil.test", "https://evil.test", "/\\evil.test"])
async def test_a_log_in_leads_to_no_other_site(db: Database, tmp_path: Path, path: str) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        answer = await log_in(desk.browser(), company, f"?next={path}")
        assert answer.headers["location"] == "/"


async def test_the_cookie_of_a_log_in_is_no_session(db: Database, tmp_path: Path) -> None:
    """And the session is a new one, whatever cookies an attacker planted before."""
    async with a_provider(db, tmp_path) as (desk, company):
        browser = desk.browser()
        browser.http.cookies.set(ADDRESS.cookie(), "planted", domain="holdfast.test", path="/")
        address = await there(browser)
        before = browser.cookies
        await back(browser, company.log_in(address))
        assert browser.cookies[ADDRESS.cookie()] not in before.values()


async def test_waiting_log_ins_leave_nothing_in_the_store(db: Database, tmp_path: Path) -> None:
    async with a_provider(db, tmp_path) as (desk, _):
        for _ in range(3):
            await there(desk.browser())
        assert await db.read(lambda tx: tx.rows("SELECT * FROM tickets")) == []


# ── Logging out ──


async def test_logging_out_offers_to_log_out_of_the_provider(db: Database, tmp_path: Path) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        browser = desk.browser()
        await log_in(browser, company)
        answer = await browser.submit(await browser.get("/"), "/logout")
        assert answer.status_code == 200
        assert f"{company.origin}/logout?client_id=holdfast" in answer.text
        assert not is_in(browser)


async def test_a_log_out_at_the_provider_ends_the_session_here(db: Database, tmp_path: Path) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        one, other = desk.browser(), desk.browser()
        await log_in(one, company)
        company.session = "sid-2"
        await log_in(other, company)
        told = await desk.browser().http.post(
            "/login/provider/logout", data={"logout_token": company.logout_token(sid="sid-1", sub=None)}
        )
        assert told.status_code == 200
        assert [(await each.get("/")).status_code for each in (one, other)] == [303, 200]
        await desk.browser().http.post("/login/provider/logout", data={"logout_token": company.logout_token(sid=None)})
        assert (await other.get("/")).status_code == 303


@pytest.mark.parametrize(
    "lie",
    [{"nonce": "x"}, {"events": None}, {"events": {"other": {}}}, {"jti": None}, {"sub": None, "sid": None},
     {"aud": "another"}, {"exp": 1}],
)  # fmt: skip
async def test_a_message_that_is_no_log_out_ends_nothing(db: Database, tmp_path: Path, lie: dict[str, Any]) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        browser = desk.browser()
        await log_in(browser, company)
        told = await desk.browser().http.post(
            "/login/provider/logout", data={"logout_token": company.logout_token(**lie)}
        )
        assert told.status_code == 400
        assert (await browser.get("/")).status_code == 200


async def test_an_id_token_is_no_log_out(db: Database, tmp_path: Path) -> None:
    async with a_provider(db, tmp_path) as (desk, company):
        for text in (company.token("x"), "", "a.b.c", "x" * 40_000):
            told = await desk.browser().http.post("/login/provider/logout", data={"logout_token": text})
            assert told.status_code == 400


# ── Rules ──


def test_the_first_rule_decides_about_the_role_and_all_of_that_role_give_owners() -> None:
    known = rules("a=operator:x", "b=operator:y z", "c=operator", "d=admin", "e=viewer+export")
    seen = {groups: granted(known, tuple(groups)) for groups in ("", "q", "a", "ab", "abc", "da", "eb")}
    shown = {groups: found and (found.role.value, found.owners, sorted(found.rights)) for groups, found in seen.items()}
    assert shown == {
        "": None, "q": None, "a": ("operator", ("x",), []), "ab": ("operator", ("x", "y", "z"), []),
        "abc": ("operator", (), []), "da": ("operator", ("x",), []), "eb": ("operator", ("y", "z"), []),
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "a", "a=", "a=root", "=admin", "a=admin:", "a=agent", "a=admin+all", "a=b=admin"])
def test_a_rule_that_cannot_be_read_is_refused(text: str) -> None:
    assert group_rule(text) is None
