"""RFC 8555 §7.1, §7.4, §7.5, §8, RFC 8738, profiles over HTTP: orders, authorizations, challenges; on both stores."""

import asyncio
import base64
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.acme_client import ERROR, b64, es256, links, problem
from tests.support.acme_desk import a_csr, limits
from tests.support.acme_face import LOCAL, Front, csr_for, open_front
from tests.support.engine import eventually

from holdfast.core.own_ca.acme import Identifier
from holdfast.core.own_ca.ca import CaMode, CaOptions, ProfileOptions, RateLimit
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
TOKEN = re.compile(r"[A-Za-z0-9_-]{22,}")  # §8.3: at least 128 bits, base64url without padding


@pytest.fixture
async def front(db: Database, tmp_path: Path) -> AsyncIterator[Front]:
    async with open_front(db, tmp_path) as opened:
        yield opened


@pytest.fixture
async def busy(db: Database, tmp_path: Path) -> AsyncIterator[Front]:
    """With a worker that tests challenges and signs."""
    async with open_front(db, tmp_path) as opened, opened.office.working():
        yield opened


# ── newOrder ──


async def test_a_new_order_shows_what_was_asked_and_what_is_owed(front: Front) -> None:
    client = await front.client()
    reply = await client.order("b.example", "a.example")
    assert reply.status_code == 201
    where = reply.headers["location"]
    assert where.startswith("https://localhost:8631/acme/ca1/order/")
    content = reply.json()
    assert RFC3339.fullmatch(content.pop("expires"))
    assert len(set(content["authorizations"])) == 2
    assert all(url.startswith("https://localhost:8631/acme/ca1/authz/") for url in content.pop("authorizations"))
    assert content == {
        "status": "pending",
        "identifiers": [{"type": "dns", "value": "b.example"}, {"type": "dns", "value": "a.example"}],
        "profile": "default",
        "finalize": f"{where}/finalize",
    }
    shown = await client.get(where)
    assert (shown.status_code, shown.json()) == (200, reply.json())


async def test_names_are_folded_to_one_spelling_each(front: Front) -> None:
    client = await front.client()
    reply = await client.order("A.Example", "a.example", "*.EXAMPLE", "xn--mnchen-3ya.example")
    values = [each["value"] for each in reply.json()["identifiers"]]
    assert values == ["a.example", "*.example", "xn--mnchen-3ya.example"]


async def test_the_same_order_placed_twice_is_one_order(front: Front) -> None:
    client = await front.client()
    first, second = await client.order("a.example", "b.example"), await client.order("b.example", "a.example")
    assert (second.status_code, second.headers["location"]) == (201, first.headers["location"])


async def test_fields_of_an_order_that_we_do_not_know_are_ignored(front: Front) -> None:
    client = await front.client()
    reply = await client.order("a.example", status="valid", certificate="https://x.example/", colour="blue", error={})
    assert reply.status_code == 201
    assert "x.example" not in reply.text
    assert "blue" not in reply.text


@pytest.mark.parametrize(
    ("identifiers", "status", "error"),
    [
        (None, 400, "malformed"),
        ([], 400, "malformed"),
        ({}, 400, "malformed"),
        ("a.example", 400, "malformed"),
        (["a.example"], 400, "malformed"),
        ([{}], 400, "malformed"),
        ([{"type": "dns"}], 400, "malformed"),
        ([{"value": "a.example"}], 400, "malformed"),
        ([{"type": "dns", "value": 7}], 400, "malformed"),
        ([{"type": "email", "value": "a@example.com"}], 400, "unsupportedIdentifier"),
        ([{"type": "DNS", "value": "a.example"}], 400, "unsupportedIdentifier"),
        ([{"type": "dns", "value": ""}], 400, "rejectedIdentifier"),
        ([{"type": "dns", "value": "a_b.example"}], 400, "rejectedIdentifier"),
        ([{"type": "dns", "value": "a.*.example"}], 400, "rejectedIdentifier"),
        ([{"type": "dns", "value": "*"}], 400, "rejectedIdentifier"),
        ([{"type": "dns", "value": "xn--0.example"}], 400, "rejectedIdentifier"),
        ([{"type": "dns", "value": "münchen.example"}], 400, "rejectedIdentifier"),
        ([{"type": "dns", "value": "a.example."}], 400, "rejectedIdentifier"),
        ([{"type": "dns", "value": "192.0.2.1"}], 400, "rejectedIdentifier"),
        ([{"type": "ip", "value": "a.example"}], 400, "rejectedIdentifier"),
        ([{"type": "ip", "value": "192.0.2.1/32"}], 400, "rejectedIdentifier"),
        ([{"type": "ip", "value": "192.0.2.01"}], 400, "rejectedIdentifier"),
        ([{"type": "ip", "value": "2001:DB8::1"}], 400, "rejectedIdentifier"),
        ([{"type": "ip", "value": "2001:db8:0:0:0:0:0:1"}], 400, "rejectedIdentifier"),
        ([{"type": "ip", "value": "[2001:db8::1]"}], 400, "rejectedIdentifier"),
        ([{"type": "dns", "value": f"n{n}.example"} for n in range(101)], 400, "malformed"),
    ],
)
async def test_identifiers_that_cannot_be_are_refused(
    front: Front, identifiers: Any, status: int, error: str
) -> None:  # fmt: skip
    client = await front.client()
    reply = await client.post(client.urls["newOrder"], {"identifiers": identifiers})
    assert problem(reply) == (status, error)


async def test_a_hundred_names_are_not_too_many(front: Front) -> None:
    client = await front.client()
    reply = await client.order(*(f"n{n}.example" for n in range(100)))
    assert (reply.status_code, len(reply.json()["authorizations"])) == (201, 100)


async def test_each_bad_name_has_a_subproblem_of_its_own(front: Front) -> None:
    client = await front.client()
    reply = await client.order("good.example", "bad_one.example", "-bad.example")
    assert problem(reply) == (400, "rejectedIdentifier")
    found = [(each["type"], each["identifier"]) for each in reply.json()["subproblems"]]
    assert found == [
        (f"{ERROR}rejectedIdentifier", {"type": "dns", "value": "bad_one.example"}),
        (f"{ERROR}rejectedIdentifier", {"type": "dns", "value": "-bad.example"}),
    ]
    mixed = [{"type": "dns", "value": "a_b.example"}, {"type": "email", "value": "a@b.example"}]
    reply = await client.post(client.urls["newOrder"], {"identifiers": mixed})
    assert problem(reply) == (400, "compound")
    types = [each["type"].removeprefix(ERROR) for each in reply.json()["subproblems"]]
    assert types == ["rejectedIdentifier", "unsupportedIdentifier"]


async def test_names_outside_the_policy_of_the_ca_are_rejected(db: Database, tmp_path: Path) -> None:
    async with open_front(db, tmp_path, options=CaOptions(permitted=("*.corp.example",))) as front:
        client = await front.client()
        assert (await client.order("a.corp.example")).status_code == 201
        reply = await client.order("a.corp.example", "b.example", "c.example")
        assert problem(reply)[1] == "rejectedIdentifier"
        assert [each["identifier"]["value"] for each in reply.json()["subproblems"]] == ["b.example", "c.example"]


async def test_requested_dates_are_kept_and_shown(front: Front) -> None:
    client = await front.client()
    begins = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    ends = begins + timedelta(days=10)
    zone = begins.astimezone(tz=None).isoformat()
    reply = await client.order("a.example", notBefore=zone, notAfter=ends.strftime("%Y-%m-%dt%H:%M:%S.000z"))
    assert reply.status_code == 201, reply.text
    shown = (await client.get(reply.headers["location"])).json()
    assert shown["notBefore"] == begins.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert shown["notAfter"] == ends.strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    "fields",
    [
        {"notBefore": "tomorrow"},
        {"notBefore": 1893456000},
        {"notBefore": "2030-01-01"},
        {"notBefore": "2030-01-01T00:00:00"},
        {"notBefore": "2030-13-01T00:00:00Z"},
        {"notBefore": "20300101T000000Z"},
        {"notBefore": "2030-01-01 00:00:00Z"},
        {"notBefore": "2000-01-01T00:00:00Z"},
        {"notAfter": "2000-01-01T00:00:00Z"},
        {"notAfter": "9999-12-31T23:59:59-23:59"},
        {"notAfter": "2099-01-01T00:00:00Z"},
        {"notAfter": ["2030-01-01T00:00:00Z"]},
        {"notBefore": "2030-01-02T00:00:00Z", "notAfter": "2030-01-01T00:00:00Z"},
        {"profile": 7},
        {"replaces": 7},
        {"replaces": "nonsense"},
        {"replaces": "AAAA.AAAA.AAAA"},
        {"replaces": "aYhba4dGQEHhs3uEe6CuLN4ByNQ.AIdlQyE"},
    ],
)
async def test_a_wish_that_cannot_be_read_or_granted_is_malformed(front: Front, fields: dict[str, Any]) -> None:
    client = await front.client()
    assert problem(await client.order("a.example", **fields)) == (400, "malformed")


async def test_a_profile_is_chosen_by_name_and_shown(db: Database, tmp_path: Path) -> None:
    profiles = (ProfileOptions(), ProfileOptions(name="short", description="Six days.", lifetime_s=6 * 86400))
    async with open_front(db, tmp_path, options=CaOptions(profiles=profiles)) as front:
        client = await front.client()
        assert client.urls["meta"]["profiles"] == {"default": "TLS server certificates.", "short": "Six days."}
        assert (await client.order("a.example", profile="short")).json()["profile"] == "short"
        assert (await client.order("a.example")).json()["profile"] == "default"
        assert problem(await client.order("a.example", profile="long")) == (400, "invalidProfile")
        assert problem(await client.order("a.example", profile="")) == (400, "invalidProfile")


async def test_orders_are_limited_and_the_answer_says_for_how_long(db: Database, tmp_path: Path) -> None:
    rate = RateLimit(count=2, span=timedelta(hours=1))
    async with open_front(db, tmp_path, policy=limits(orders_per_account=rate)) as front:
        client = await front.client()
        for n in range(2):
            assert (await client.order(f"n{n}.example")).status_code == 201
        reply = await client.order("n3.example")
        assert problem(reply) == (429, "rateLimited")
        assert 1 <= int(reply.headers["retry-after"]) <= 3600


# ── Authorizations and challenges ──


async def test_an_authorization_offers_challenges(front: Front) -> None:
    client = await front.client()
    order = (await client.order("a.example")).json()
    reply = await client.get(order["authorizations"][0])
    content = reply.json()
    assert reply.status_code == 200
    assert (content["status"], content["identifier"]) == ("pending", {"type": "dns", "value": "a.example"})
    assert RFC3339.fullmatch(content["expires"])
    assert "wildcard" not in content
    assert [each["type"] for each in content["challenges"]] == ["http-01", "dns-01", "tls-alpn-01"]
    for each in content["challenges"]:
        assert set(each) == {"type", "url", "status", "token"}
        assert each["status"] == "pending"
        assert TOKEN.fullmatch(each["token"])
    assert "retry-after" not in reply.headers


async def test_a_wildcard_is_proved_by_dns_alone_and_says_so(front: Front) -> None:
    client = await front.client()
    order = (await client.order("*.a.example", "a.example")).json()
    wild, plain = [(await client.get(url)).json() for url in order["authorizations"]]
    assert (wild["wildcard"], wild["identifier"]) == (True, {"type": "dns", "value": "a.example"})
    assert [each["type"] for each in wild["challenges"]] == ["dns-01"]
    assert "wildcard" not in plain


async def test_an_address_is_never_proved_by_dns(front: Front) -> None:
    client = await front.client()
    order = (await client.order("192.0.2.1", "2001:db8::1")).json()
    for url, value in zip(order["authorizations"], ("192.0.2.1", "2001:db8::1"), strict=True):
        authz = (await client.get(url)).json()
        assert authz["identifier"] == {"type": "ip", "value": value}
        assert [each["type"] for each in authz["challenges"]] == ["http-01", "tls-alpn-01"]


async def test_what_belongs_to_another_account_is_unauthorized(busy: Front) -> None:
    client, other = await busy.client(), await busy.client()
    order = await busy.issued(client)
    authz = (await client.get(order["authorizations"][0])).json()
    for url in (order["url"], order["authorizations"][0], authz["challenges"][0]["url"], order["certificate"]):
        assert problem(await other.get(url)) == (403, "unauthorized")
    assert problem(await other.post(authz["challenges"][0]["url"], {})) == (403, "unauthorized")
    assert problem(await other.post(order["authorizations"][0], {"status": "deactivated"})) == (403, "unauthorized")
    assert problem(await other.post(order["finalize"], {"csr": csr_for(order)})) == (403, "unauthorized")


@pytest.mark.parametrize("kind", ["order", "authz", "challenge", "certificate"])
async def test_what_does_not_exist_is_not_found(front: Front, kind: str) -> None:
    client = await front.client()
    assert problem(await client.get(f"https://localhost:8631/acme/ca1/{kind}/{kind}_x")) == (404, "malformed")


async def test_a_challenge_is_answered_and_linked_to_its_authorization(front: Front) -> None:
    client = await front.client()
    url = (await client.order("a.example")).json()["authorizations"][0]
    challenge = (await client.get(url)).json()["challenges"][0]
    shown = await client.get(challenge["url"])
    assert (shown.status_code, shown.json()) == (200, challenge)
    assert links(shown, "up") == [url]
    reply = await client.post(challenge["url"], {"keyAuthorization": "x", "status": "valid", "anything": [1]})
    assert reply.status_code == 200
    assert reply.json() == challenge | {"status": "processing"}
    assert links(reply, "up") == [url]
    assert int(reply.headers["retry-after"]) >= 1
    again = await client.post(challenge["url"], {})
    assert (again.status_code, again.json()["status"]) == (200, "processing")
    polled = await client.get(url)
    assert (polled.status_code, polled.json()["status"]) == (200, "pending")
    assert int(polled.headers["retry-after"]) >= 1


@pytest.mark.parametrize("payload", [b"[]", b"null", b'"x"', b"7", b"{", b"\xff"])
async def test_an_answer_to_a_challenge_is_an_object(front: Front, payload: bytes) -> None:
    client = await front.client()
    url = (await client.order("a.example")).json()["authorizations"][0]
    challenge = (await client.get(url)).json()["challenges"][0]
    assert problem(await client.post(challenge["url"], payload)) == (400, "malformed")
    assert (await client.get(challenge["url"])).json()["status"] == "pending"


async def test_a_proof_makes_the_authorization_valid_and_the_order_ready(busy: Front) -> None:
    client = await busy.client()
    order = await client.order(LOCAL)
    [url] = order.json()["authorizations"]
    authz = await busy.prove(client, url)
    assert authz["status"] == "valid"
    assert RFC3339.fullmatch(authz["expires"])
    [challenge] = authz["challenges"]  # the one that was validated
    assert (challenge["type"], challenge["status"]) == ("http-01", "valid")
    assert RFC3339.fullmatch(challenge["validated"])
    assert "error" not in challenge
    shown = await client.get(order.headers["location"])
    assert shown.json()["status"] == "ready"
    assert shown.json()["authorizations"] == [url]
    assert "certificate" not in shown.json()


async def test_a_wrong_proof_makes_everything_invalid_and_says_why(busy: Front) -> None:
    client = await busy.client()
    order = await client.order(LOCAL)
    authz = await busy.prove(client, order.json()["authorizations"][0], right=False)
    assert authz["status"] == "invalid"
    [challenge] = authz["challenges"]  # the one that failed
    assert (challenge["type"], challenge["status"]) == ("http-01", "invalid")
    assert challenge["error"]["type"].startswith(ERROR)
    assert challenge["error"]["detail"]
    assert "validated" not in challenge
    shown = (await client.get(order.headers["location"])).json()
    assert shown["status"] == "invalid"
    assert shown["error"]["type"].startswith(ERROR)
    assert problem(await client.post(shown["finalize"], {"csr": csr_for(shown)})) == (403, "orderNotReady")


async def test_a_key_change_in_between_does_not_break_a_challenge(busy: Front) -> None:
    client = await busy.client()
    order = await client.order(LOCAL)
    [url] = order.json()["authorizations"]
    assert (await client.change_key(es256())).status_code == 200
    assert (await busy.prove(client, url))["status"] == "valid"
    assert (await client.get(order.headers["location"])).json()["status"] == "ready"


async def test_an_authorization_is_deactivated_and_its_orders_end(busy: Front) -> None:
    client = await busy.client()
    order = await busy.ready(client)
    [url] = order["authorizations"]
    for payload in ({}, {"status": "valid"}, {"status": ["deactivated"]}, b"[]"):
        assert problem(await client.post(url, payload)) == (400, "malformed")
    reply = await client.post(url, {"status": "deactivated"})
    assert (reply.status_code, reply.json()["status"]) == (200, "deactivated")
    shown = (await client.get(order["url"])).json()
    assert (shown["status"], shown["error"]["type"]) == ("invalid", f"{ERROR}unauthorized")
    assert problem(await client.post(order["finalize"], {"csr": csr_for(order)})) == (403, "orderNotReady")
    again = await client.order(LOCAL)
    assert again.json()["status"] == "pending"  # it is no proof any more
    assert again.json()["authorizations"] != order["authorizations"]


async def test_a_valid_authorization_serves_the_next_order(busy: Front) -> None:
    client = await busy.client()
    first = await busy.issued(client)
    second = await client.order(LOCAL)
    assert second.json()["status"] == "ready"
    assert second.json()["authorizations"] == first["authorizations"]


async def test_a_trusting_ca_needs_no_challenge(db: Database, tmp_path: Path) -> None:
    from tests.integration.test_acme_accounts import MAC, binding, eab_key

    options = CaOptions(mode=CaMode.TRUST, eab_required=True)
    async with open_front(db, tmp_path, options=options) as front, front.office.working():
        kid = await eab_key(front, names=("*.corp.example",))
        client = await front.stranger()
        bound = binding(kid, MAC, client.urls["newAccount"], client.signer.jwk)
        assert (await client.register(externalAccountBinding=bound)).status_code == 201
        order = await client.order("a.corp.example", "*.corp.example")
        assert order.json()["status"] == "ready"
        authz = (await client.get(order.json()["authorizations"][0])).json()
        assert (authz["status"], authz["challenges"]) == ("valid", [])
        await front.issued(client, "a.corp.example", "*.corp.example")
        assert problem(await client.order("a.example"))[1] == "rejectedIdentifier"


async def test_challenges_of_drafts_are_offered_where_an_operator_wants_them(db: Database, tmp_path: Path) -> None:
    options = CaOptions(challenges=("dns-account-01", "dns-persist-01"))
    async with open_front(db, tmp_path, options=options, policy=limits(caa_identities=("ca.example",))) as front:
        client = await front.client()
        order = (await client.order("*.a.example")).json()
        by_account, for_good = (await client.get(order["authorizations"][0])).json()["challenges"]
        assert (by_account["type"], set(by_account)) == ("dns-account-01", {"type", "url", "status", "token"})
        assert for_good["type"] == "dns-persist-01"
        assert (for_good["issuer-domain-names"], for_good["accounturi"]) == (["ca.example"], client.kid)
        assert "token" not in for_good
        reply = await client.order("192.0.2.1")  # nothing could prove it
        assert problem(reply) == (400, "rejectedIdentifier")


# ── Finalize ──


async def test_an_order_is_finalized_and_becomes_valid(busy: Front) -> None:
    client = await busy.client()
    order = await busy.ready(client)
    reply = await client.post(order["finalize"], {"csr": csr_for(order)})
    assert reply.status_code == 200
    assert reply.headers["location"] == order["url"]
    assert reply.json()["status"] == "valid"  # a signature takes milliseconds: the answer waits for it
    assert "retry-after" not in reply.headers
    done = await busy.until(client, order["url"], "valid")
    assert done["certificate"].startswith("https://localhost:8631/acme/ca1/certificate/")
    assert (done["authorizations"], done["identifiers"]) == (order["authorizations"], order["identifiers"])
    assert RFC3339.fullmatch(done["expires"])
    assert "retry-after" not in (await client.get(order["url"])).headers


async def test_a_poll_is_held_until_the_order_has_moved_on(front: Front) -> None:
    client = await front.client()
    async with front.office.working():
        order = await front.ready(client)
    reply = await client.post(order["finalize"], {"csr": csr_for(order)})
    assert reply.json()["status"] == "processing"
    assert int(reply.headers["retry-after"]) >= 1
    assert "certificate" not in reply.json()
    held = await client.get(order["url"])
    assert (held.json()["status"], held.headers["retry-after"]) == ("processing", "1")
    poll = asyncio.create_task(client.get(order["url"]))
    await eventually(lambda: front.office.acme_context.changes._waiting)
    async with front.office.working():
        assert (await poll).json()["status"] == "valid"


async def test_an_order_that_is_not_ready_is_not_finalized(busy: Front) -> None:
    client = await busy.client()
    pending = (await client.order("a.example")).json()
    assert problem(await client.post(pending["finalize"], {"csr": csr_for(pending)})) == (403, "orderNotReady")
    done = await busy.issued(client)
    assert problem(await client.post(done["finalize"], {"csr": csr_for(done)})) == (403, "orderNotReady")


async def test_of_many_who_finalize_at_once_one_succeeds(busy: Front) -> None:
    client = await busy.client()
    order = await busy.ready(client)
    csr = csr_for(order)
    replies = await asyncio.gather(*(client.post(order["finalize"], {"csr": csr}) for _ in range(20)))
    assert sorted(reply.status_code for reply in replies) == [200] + [403] * 19
    assert (await busy.until(client, order["url"], "valid", "invalid"))["status"] == "valid"


async def test_a_bad_csr_leaves_the_order_ready(busy: Front) -> None:
    client = await busy.client()
    order = await busy.ready(client)
    good = a_csr(Identifier("ip", LOCAL))
    for content, error in [
        ({}, "malformed"),
        ({"csr": 7}, "malformed"),
        ({"csr": b64(good) + "="}, "malformed"),
        ({"csr": "a b"}, "malformed"),
        ({"csr": ""}, "badCSR"),
        ({"csr": b64(b"nonsense")}, "badCSR"),
        ({"csr": b64(b"-----BEGIN CERTIFICATE REQUEST-----\n")}, "badCSR"),
        ({"csr": b64(good + b"\0")}, "badCSR"),
        ({"csr": b64(good[:-1] + bytes([good[-1] ^ 1]))}, "badCSR"),
        ({"csr": b64(a_csr(Identifier("ip", "127.0.0.2")))}, "badCSR"),
        ({"csr": b64(a_csr(Identifier("ip", LOCAL), Identifier("dns", "a.example")))}, "badCSR"),
        ({"csr": b64(a_csr(Identifier("ip", LOCAL), key=client.signer.private))}, "badCSR"),  # type: ignore[arg-type]
    ]:
        assert problem(await client.post(order["finalize"], content)) == (400, error)
    assert (await client.get(order["url"])).json()["status"] == "ready"
    assert (await client.post(order["finalize"], {"csr": b64(good)})).status_code == 200


async def test_a_pem_request_is_not_what_the_rfc_asks_for(busy: Front) -> None:
    client = await busy.client()
    order = await busy.ready(client)
    text = base64.encodebytes(a_csr(Identifier("ip", LOCAL)))
    pem = b"-----BEGIN CERTIFICATE REQUEST-----\n" + text + b"-----END CERTIFICATE REQUEST-----\n"
    assert problem(await client.post(order["finalize"], {"csr": b64(pem)})) == (400, "badCSR")


async def test_an_order_expires_and_says_so(db: Database, tmp_path: Path) -> None:
    async with open_front(db, tmp_path, policy=limits(order_for=timedelta(milliseconds=1))) as front:
        client = await front.client()
        reply = await client.order("a.example")
        shown = await front.until(client, reply.headers["location"], "invalid")
        assert "expired" in shown["error"]["detail"]
        authz = (await client.get(shown["authorizations"][0])).json()
        assert authz["status"] == "expired"
        assert problem(await client.post(shown["finalize"], {"csr": csr_for(shown)})) == (403, "orderNotReady")
        assert problem(await client.post(authz["challenges"][0]["url"], {})) == (400, "malformed")
