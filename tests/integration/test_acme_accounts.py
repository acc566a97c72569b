"""RFC 8555 §7.3 over HTTP: accounts, external bindings, key changes, the list of orders; on both stores."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.acme_client import UNSET, AcmeClient, b64, binding, eddsa, es256, es384, links, problem, rs256
from tests.support.acme_desk import limits
from tests.support.acme_face import Front, open_front
from tests.support.secrets_planted import OWN_EAB_MAC as MAC

from holdfast.acme import accounts
from holdfast.core.own_ca.acme import EabKey
from holdfast.core.own_ca.ca import CaOptions, CaState, RateLimit
from holdfast.operations.installation.secret_store import eab_mac
from holdfast.secret import Secret
from holdfast.store import journal
from holdfast.store.acme import accounts as account_rows
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
TERMS = "https://ca.example/terms/1"


@pytest.fixture
async def front(db: Database, tmp_path: Path) -> AsyncIterator[Front]:
    async with open_front(db, tmp_path) as opened:
        yield opened


async def count(db: Database, table: str) -> int:
    rows = await db.read(lambda tx: tx.rows(f"SELECT COUNT(*) AS n FROM {table}"))
    return int(rows[0]["n"])


# ── The directory (§7.1.1) ──


async def test_the_directory_lists_every_resource_and_no_pre_authorization(front: Front) -> None:
    reply = await front.http.get(front.directory)
    assert reply.headers["content-type"] == "application/json"
    content = reply.json()
    meta = content.pop("meta")
    assert set(content) == {"newNonce", "newAccount", "newOrder", "revokeCert", "keyChange", "renewalInfo"}
    assert all(url.startswith("https://localhost:8631/acme/ca1/") for url in content.values())
    assert meta == {"profiles": {"default": "TLS server certificates."}}
    assert (await front.http.head(front.directory)).status_code == 200


async def test_the_directory_says_what_clients_must_know_beforehand(db: Database, tmp_path: Path) -> None:
    policy = limits(terms_url=TERMS, website="https://ca.example/", caa_identities=("ca.example",))
    async with open_front(db, tmp_path, policy=policy, options=CaOptions(eab_required=True)) as front:
        meta = (await front.http.get(front.directory)).json()["meta"]
        assert meta == {
            "profiles": {"default": "TLS server certificates."},
            "termsOfService": TERMS,
            "website": "https://ca.example/",
            "caaIdentities": ["ca.example"],
            "externalAccountRequired": True,
        }


# ── newAccount (§7.3, §7.3.1) ──


async def test_a_new_account_is_created_with_its_url_in_location(front: Front) -> None:
    client = await front.stranger()
    contacts = ["mailto:admin@example.com", "mailto:a.b+c@mail.example.com"]
    reply = await client.register(contact=contacts)
    assert reply.status_code == 201
    where = reply.headers["location"]
    assert where.startswith("https://localhost:8631/acme/ca1/account/")
    assert reply.headers["content-type"] == "application/json"
    assert reply.json() == {
        "status": "valid",
        "contact": contacts,
        "termsOfServiceAgreed": True,
        "orders": f"{where}/orders",
    }


async def test_fields_that_we_do_not_know_are_ignored_and_not_reflected(front: Front) -> None:
    client = await front.stranger()
    reply = await client.register(orders="https://x.example/", status="revoked", favourite="blue", id=7)
    assert reply.status_code == 201
    assert set(reply.json()) == {"status", "termsOfServiceAgreed", "orders"}
    assert reply.json()["status"] == "valid"
    assert "x.example" not in reply.text


async def test_a_known_key_gets_its_account_with_200_and_every_field_is_ignored(front: Front) -> None:
    client = await front.stranger()
    first = await client.register(contact=["mailto:a@example.com"])
    fields: list[dict[str, Any]] = [
        {"contact": ["mailto:b@example.com"]},
        {"contact": ["tel:123"]},
        {"contact": 7},
        {"termsOfServiceAgreed": False},
        {"onlyReturnExisting": True},
        {"externalAccountBinding": "nonsense"},
    ]
    for each in fields:
        again = await client.register(**each)
        assert (again.status_code, again.json()) == (200, first.json())
        assert again.headers["location"] == first.headers["location"]


async def test_many_registrations_of_one_key_at_once_make_one_account(front: Front) -> None:
    clients = [await front.stranger(es256()) for _ in range(8)]
    for client in clients:
        client.signer = clients[0].signer
    replies = await asyncio.gather(*(client.register() for client in clients))
    assert sorted(reply.status_code for reply in replies) == [200] * 7 + [201]
    assert len({reply.headers["location"] for reply in replies}) == 1


async def test_only_return_existing_makes_no_account(front: Front) -> None:
    client = await front.stranger()
    reply = await client.register(onlyReturnExisting=True)
    assert problem(reply) == (400, "accountDoesNotExist")
    assert await count(front.office.db, "acme_accounts") == 0
    assert problem(await client.register(onlyReturnExisting="yes")) == (400, "malformed")
    assert (await client.register(onlyReturnExisting=False)).status_code == 201
    assert (await client.register(onlyReturnExisting=True)).status_code == 200


async def test_each_ca_has_accounts_of_its_own(front: Front, tmp_path: Path) -> None:
    from holdfast.operations.own_ca import manage as cas
    from holdfast.pki.ceremony import CeremonyPlan

    acme_context = front.office.acme_context
    await cas.create(
        acme_context.authorities.secret_store,
        ca="second",
        plan=CeremonyPlan(name="Second"),
        options=CaOptions(),
        actor="local:test",
    )
    await acme_context.authorities.refresh()
    client = await front.client()
    other = AcmeClient(front.http, front.directory.replace("ca1", "second"), client.signer)
    await other.start()
    reply = await other.register()
    assert reply.status_code == 201
    assert "/second/" in reply.headers["location"]
    stray = await other.post(other.urls["newOrder"], {}, header={"kid": client.kid})
    assert problem(stray) == (400, "accountDoesNotExist")
    order = (await client.order("a.example")).headers["location"].replace("ca1", "second")
    assert problem(await other.get(order)) == (403, "unauthorized")


@pytest.mark.parametrize(
    ("contact", "error"),
    [
        (["tel:+12025550100"], "unsupportedContact"),
        (["https://example.com/contact"], "unsupportedContact"),
        (["mailto:a@example.com", "sip:b@example.com"], "unsupportedContact"),
        (["mailto:a@example.com,b@example.com"], "invalidContact"),
        (["mailto:a@example.com?subject=x"], "invalidContact"),
        (["mailto:a%2Cb@example.com"], "invalidContact"),
        (["mailto:"], "invalidContact"),
        (["mailto:a"], "invalidContact"),
        (["mailto:@example.com"], "invalidContact"),
        (["mailto:a@exa mple.com"], "invalidContact"),
        (["mailto:a@-example.com"], "invalidContact"),
        (["mailto:a@[127.0.0.1]"], "invalidContact"),
        (["mailto:<a@example.com>"], "invalidContact"),
        (["mailto:ä@example.com"], "invalidContact"),
        (["mailto://a@example.com"], "invalidContact"),
        (["a@example.com"], "invalidContact"),
        ([""], "invalidContact"),
        (["mailto:" + "a" * 250 + "@example.com"], "invalidContact"),
        (["mailto:a@example.com"] * 11, "invalidContact"),
        ("mailto:a@example.com", "malformed"),
        ([7], "malformed"),
        ({"mailto": "a@example.com"}, "malformed"),
    ],
)
async def test_a_contact_that_cannot_be_used_is_refused(front: Front, contact: Any, error: str) -> None:
    client = await front.stranger()
    assert problem(await client.register(contact=contact)) == (400, error)
    assert (await client.register()).status_code == 201
    assert problem(await client.post(client.kid or "", {"contact": contact})) == (400, error)


async def test_terms_of_service_must_be_agreed_to_where_there_are_any(db: Database, tmp_path: Path) -> None:
    async with open_front(db, tmp_path, policy=limits(terms_url=TERMS)) as front:
        client = await front.stranger()
        for fields in ({"termsOfServiceAgreed": False}, {"termsOfServiceAgreed": None}):
            reply = await client.register(**fields)
            assert problem(reply) == (403, "userActionRequired")
            assert reply.json()["instance"] == TERMS
            assert links(reply, "terms-of-service") == [TERMS]
        assert problem(await client.register(termsOfServiceAgreed="true")) == (400, "malformed")
        assert await count(db, "acme_accounts") == 0
        reply = await client.register()
        assert reply.status_code == 201
        assert links(reply, "terms-of-service") == [TERMS]


async def test_accounts_are_counted_by_the_address_of_the_peer(db: Database, tmp_path: Path) -> None:
    rate = RateLimit(count=2, span=timedelta(hours=1))
    async with open_front(db, tmp_path, policy=limits(accounts_per_address=rate)) as front:
        statuses = []
        for n in range(3):
            client = await front.stranger()
            reply = await client.post(
                client.urls["newAccount"], {}, jwk=True, headers={"x-forwarded-for": f"198.51.100.{n}"}
            )
            statuses.append(reply.status_code)
        assert statuses == [201, 201, 429]
        assert problem(reply) == (429, "rateLimited")
        assert 1 <= int(reply.headers["retry-after"]) <= 3600


async def test_a_closed_ca_takes_no_new_accounts_and_no_orders(front: Front) -> None:
    client = await front.client()
    from holdfast.operations.own_ca import manage as manage_ca

    await front.office.db.write(lambda tx: manage_ca.set_state(tx, "ca1", CaState.CLOSED, actor="local:test"))
    await front.office.acme_context.authorities.refresh()
    assert problem(await (await front.stranger()).register()) == (403, "unauthorized")
    assert (await client.register()).status_code == 200
    assert problem(await client.order("a.example")) == (403, "unauthorized")


# ── External account binding (§7.3.4) ──


async def eab_key(front: Front, kid: str = "kid-1", **changes: Any) -> str:
    secret_store = front.office.acme_context.authorities.secret_store

    def write(tx: Any, secret: str) -> None:
        key = EabKey(kid=kid, ca="ca1", secret_id=secret, created_at=tx.now())
        account_rows.insert_eab_key(tx, replace(key, **changes))

    await secret_store.keep(Secret(MAC), eab_mac(kid), write)
    return kid


@pytest.fixture
async def bound(db: Database, tmp_path: Path) -> AsyncIterator[Front]:
    """A CA that wants bindings."""
    async with open_front(db, tmp_path, options=CaOptions(eab_required=True)) as opened:
        yield opened


async def test_without_a_binding_no_account_where_one_is_required(bound: Front) -> None:
    client = await bound.stranger()
    assert problem(await client.register()) == (403, "externalAccountRequired")


@pytest.mark.parametrize("alg", ["HS256", "HS384", "HS512"])
async def test_a_binding_is_verified_and_reflected(bound: Front, alg: str) -> None:
    client = await bound.stranger()
    made = binding(await eab_key(bound), MAC, client.urls["newAccount"], client.signer.jwk, alg=alg)
    reply = await client.register(externalAccountBinding=made)
    assert reply.status_code == 201
    assert reply.json()["externalAccountBinding"] == made
    assert (await client.get(client.kid or "")).json()["externalAccountBinding"] == made


async def test_a_binding_is_verified_even_where_none_is_required(front: Front) -> None:
    client = await front.stranger()
    kid = await eab_key(front)
    wrong = binding(kid, b"another key", client.urls["newAccount"], client.signer.jwk)
    assert problem(await client.register(externalAccountBinding=wrong)) == (403, "unauthorized")
    right = binding(kid, MAC, client.urls["newAccount"], client.signer.jwk)
    assert (await client.register(externalAccountBinding=right)).json()["externalAccountBinding"] == right


async def test_a_binding_key_makes_one_account(bound: Front) -> None:
    kid = await eab_key(bound)
    one, other = await bound.stranger(), await bound.stranger()
    url = one.urls["newAccount"]
    assert (await one.register(externalAccountBinding=binding(kid, MAC, url, one.signer.jwk))).status_code == 201
    late = await other.register(externalAccountBinding=binding(kid, MAC, url, other.signer.jwk))
    assert problem(late) == (403, "unauthorized")


async def test_a_binding_that_is_wrong_in_any_way_is_refused(bound: Front) -> None:
    client = await bound.stranger()
    kid, url, jwk = await eab_key(bound), client.urls["newAccount"], client.signer.jwk
    long_ago = datetime.fromisoformat("2020-01-01T00:00:00+00:00")
    old = await eab_key(bound, "kid-old", expires_at=long_ago)
    strange = await eab_key(bound, "kid-revoked")
    await bound.office.db.write(lambda tx: account_rows.revoke_eab_key(tx, strange))
    good = binding(kid, MAC, url, jwk)
    bad = {
        "no JWS": ("nonsense", 400, "malformed"),
        "an empty object": ({}, 400, "malformed"),
        "no kid": (binding(kid, MAC, url, jwk, kid=UNSET), 400, "malformed"),
        "unknown kid": (binding("kid-2", MAC, url, jwk), 403, "unauthorized"),
        "odd kid": (binding("kid\n", MAC, url, jwk), 403, "unauthorized"),
        "expired": (binding(old, MAC, url, jwk), 403, "unauthorized"),
        "revoked": (binding(strange, MAC, url, jwk), 403, "unauthorized"),
        "wrong mac key": (binding(kid, MAC[::-1], url, jwk), 403, "unauthorized"),
        "wrong mac": (good | {"signature": b64(bytes(32))}, 403, "unauthorized"),
        "a nonce": (binding(kid, MAC, url, jwk, nonce="AAAA"), 400, "malformed"),
        "another url": (binding(kid, MAC, url + "x", jwk), 400, "malformed"),
        "no url": (binding(kid, MAC, url, jwk, url=UNSET), 400, "malformed"),
        "another key": (binding(kid, MAC, url, es256().jwk), 400, "malformed"),
        "a jwk": (binding(kid, MAC, url, jwk, jwk=jwk), 400, "malformed"),
        "not a mac": (binding(kid, MAC, url, jwk, alg="ES256"), 400, "badSignatureAlgorithm"),
        "none": (binding(kid, MAC, url, jwk, alg="none"), 400, "badSignatureAlgorithm"),
    }
    found = {what: problem(await client.register(externalAccountBinding=made)) for what, (made, _, _) in bad.items()}
    assert found == {what: (status, error) for what, (_, status, error) in bad.items()}
    assert await count(bound.office.db, "acme_accounts") == 0
    assert (await client.register(externalAccountBinding=good)).status_code == 201


# ── Updating (§7.3.2) and ending (§7.3.6) ──


async def test_contacts_can_be_changed_and_taken_away(front: Front) -> None:
    client = await front.client()
    url = client.kid or ""
    reply = await client.post(url, {"contact": ["mailto:a@example.com", "mailto:a@example.com"]})
    assert (reply.status_code, reply.json()["contact"]) == (200, ["mailto:a@example.com"])
    assert (await client.post(url, {})).json()["contact"] == ["mailto:a@example.com"]
    assert "contact" not in (await client.post(url, {"contact": []})).json()
    assert "contact" not in (await client.get(url)).json()


async def test_an_update_ignores_what_cannot_be_updated(front: Front) -> None:
    client = await front.client()
    before = (await client.get(client.kid or "")).json()
    updates: list[dict[str, Any]] = [
        {"termsOfServiceAgreed": False},
        {"orders": "https://x.example/"},
        {"status": "revoked"},
        {"status": "valid"},
        {"status": 7},
        {"externalAccountBinding": {}},
        {"shoes": "blue"},
    ]
    for update in updates:
        reply = await client.post(client.kid or "", update)
        assert (reply.status_code, reply.json()) == (200, before)


async def test_an_account_belongs_to_its_key_alone(front: Front) -> None:
    one, other = await front.client(), await front.client()
    for payload in (None, {}, {"status": "deactivated"}):
        assert problem(await other.post(one.kid or "", payload)) == (403, "unauthorized")
    assert problem(await other.get(f"{one.kid}/orders")) == (403, "unauthorized")
    assert (await one.get(one.kid or "")).json()["status"] == "valid"


async def test_a_deactivated_account_can_do_nothing_more(front: Front) -> None:
    client = await front.client()
    order = await client.order("a.example")
    reply = await client.post(client.kid or "", {"status": "deactivated"})
    assert (reply.status_code, reply.json()["status"]) == (200, "deactivated")
    urls = [client.kid or "", order.headers["location"], *order.json()["authorizations"], f"{client.kid}/orders"]
    for url in urls:
        assert problem(await client.get(url)) == (401, "unauthorized")
    assert problem(await client.post(client.kid or "", {"status": "valid"})) == (401, "unauthorized")
    assert problem(await client.order("b.example")) == (401, "unauthorized")
    assert problem(await client.register()) == (401, "unauthorized")
    assert problem(await client.register(onlyReturnExisting=True)) == (401, "unauthorized")
    assert problem(await client.change_key(es256())) == (401, "unauthorized")


async def test_a_deactivated_account_keeps_its_key(front: Front) -> None:
    """Nobody else may roll over to it, and nothing said in its name counts."""
    one, other = await front.client(), await front.client()
    await one.post(one.kid or "", {"status": "deactivated"})
    assert problem(await other.change_key(one.signer)) == (409, "malformed")


# ── keyChange (§7.3.5) ──


@pytest.mark.parametrize("new", [es256, es384, eddsa, rs256])
async def test_a_key_is_replaced_by_another(front: Front, new: Any) -> None:
    client = await front.client()
    old = client.signer
    order = (await client.order("a.example")).headers["location"]
    reply = await client.change_key(new())
    assert (reply.status_code, reply.json()["status"]) == (200, "valid")
    assert (await client.get(order)).json()["status"] == "pending"  # nothing else changes
    stale_reply = problem(await client.post(client.kid or "", None, signer=old))
    assert stale_reply == (400, "malformed" if old.alg == client.signer.alg else "badSignatureAlgorithm")
    found = await client.register(onlyReturnExisting=True)
    assert found.headers["location"] == client.kid
    stale = client.other(old)
    assert problem(await stale.register(onlyReturnExisting=True)) == (400, "accountDoesNotExist")
    audited = await front.office.db.read(lambda tx: journal.audit_page(tx, 0))
    assert [each.action for each in audited].count("account_key_changed") == 1


async def test_a_key_in_use_is_a_conflict_that_names_its_account(front: Front) -> None:
    one, other = await front.client(), await front.client()
    reply = await one.change_key(other.signer)
    assert problem(reply) == (409, "malformed")
    assert reply.headers["location"] == other.kid
    own = await one.change_key(one.signer)
    assert problem(own) == (409, "malformed")
    assert own.headers["location"] == one.kid


async def test_a_key_change_that_is_wrong_in_any_way_changes_nothing(front: Front) -> None:
    client, other = await front.client(), await front.client()
    new, url = es256(), client.urls["keyChange"]
    bad: dict[str, tuple[dict[str, Any], str]] = {
        "inner kid instead of jwk": ({"inner": {"jwk": UNSET, "kid": client.kid}}, "malformed"),
        "inner jwk and kid": ({"inner": {"kid": client.kid}}, "malformed"),
        "inner nonce": ({"inner": {"nonce": "AAAA"}}, "malformed"),
        "inner url missing": ({"inner": {"url": UNSET}}, "malformed"),
        "inner url differs": ({"inner": {"url": url + "/"}}, "malformed"),
        "inner signed by the old key": ({"inner_signer": client.signer}, "malformed"),
        "inner signature missing": ({"inner_envelope": {"signature": UNSET}}, "malformed"),
        "inner signature empty": ({"inner_envelope": {"signature": ""}}, "malformed"),
        "inner header unprotected": ({"inner_envelope": {"header": {}}}, "malformed"),
        "inner alg none": ({"inner": {"alg": "none"}}, "badSignatureAlgorithm"),
        "inner alg a mac": ({"inner": {"alg": "HS256"}}, "badSignatureAlgorithm"),
        "inner key private": ({"inner": {"jwk": new.jwk | {"d": "AAAA"}}}, "badPublicKey"),
        "no account": ({"change": {"account": UNSET}}, "malformed"),
        "another account": ({"change": {"account": other.kid}}, "malformed"),
        "an account in other words": ({"change": {"account": f"{client.kid}/"}}, "malformed"),
        "an account that is a number": ({"change": {"account": 7}}, "malformed"),
        "no old key": ({"change": {"oldKey": UNSET}}, "malformed"),
        "another old key": ({"change": {"oldKey": other.signer.jwk}}, "malformed"),
        "the new key as the old": ({"change": {"oldKey": new.jwk}}, "malformed"),
        "an old key that is a text": ({"change": {"oldKey": "x"}}, "malformed"),
        "signed outside by a jwk": ({"jwk": True}, "malformed"),
    }
    found = {what: problem(await client.change_key(new, **dict(changes))) for what, (changes, _) in bad.items()}
    assert found == {what: (400, error) for what, (_, error) in bad.items()}
    weak = await client.change_key(rs256(1024))
    assert problem(weak) == (400, "badPublicKey")
    for payload in (b"", b"[]", b"{}", b'"x"', json.dumps({"account": client.kid}).encode()):
        assert problem(await client.post(url, payload)) == (400, "malformed")
    assert (await client.get(client.kid or "")).status_code == 200


# ── The list of orders (§7.1.2.1) ──


async def test_orders_are_listed_and_invalid_ones_are_not(front: Front) -> None:
    client, other = await front.client(), await front.client()
    await other.order("z.example")
    first = await client.order("a.example")
    second = await client.order("b.example")
    await client.post(first.json()["authorizations"][0], {"status": "deactivated"})
    account = (await client.get(client.kid or "")).json()
    reply = await client.get(account["orders"])
    assert reply.json() == {"orders": [second.headers["location"]]}
    assert links(reply, "next") == []


async def test_a_long_list_comes_in_pages(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "PAGE", 3)
    client = await front.client()
    placed = [(await client.order(f"n{n}.example")).headers["location"] for n in range(7)]
    found, url, pages = [], f"{client.kid}/orders", 0
    while url:
        reply = await client.get(url)
        found += reply.json()["orders"]
        url, pages = next(iter(links(reply, "next")), ""), pages + 1
    assert (found, pages) == (placed, 3)


@pytest.mark.parametrize("query", ["?after=", "?x=1", "?after=a%00b", "?after=a&b=c", "?before=order_1"])
async def test_a_page_that_we_never_named_is_not_there(front: Front, query: str) -> None:
    client = await front.client()
    assert problem(await client.get(f"{client.kid}/orders{query}")) == (404, "malformed")


async def test_the_account_belongs_to_the_owner_of_its_binding_key(front: Front) -> None:
    client = await front.stranger()
    kid = await eab_key(front, owner="team-a")
    made = binding(kid, MAC, client.urls["newAccount"], client.signer.jwk)
    assert (await client.register(externalAccountBinding=made)).status_code == 201
    found = await front.office.db.read(lambda tx: account_rows.by_key(tx, front.office.ca.id, client.signer.thumbprint))
    assert found is not None
    assert found.owner == "team-a"
