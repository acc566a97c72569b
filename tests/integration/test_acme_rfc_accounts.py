"""Sentences of RFC 8555 §6, §7.1 to §7.3 and §11.1, each by a request and the answer that it must get."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.support.acme_client import UNSET, AcmeClient, Signer, b64, es256, flattened, links, problem, rs256
from tests.support.acme_corpus import Ground, prepare
from tests.support.acme_desk import limits
from tests.support.acme_face import LOCAL, Front, csr_for, open_front
from tests.support.stores import migrated, open_store

from holdfast.core.own_ca.ca import CaOptions, RateLimit
from holdfast.operations.acme import accounts
from holdfast.operations.acme.context import Requester
from holdfast.operations.own_ca import manage as cas
from holdfast.pki import keys
from holdfast.pki.ceremony import CeremonyPlan
from holdfast.store.acme import limits as acme_limits
from holdfast.store.acme.limits import failure_key
from holdfast.store.database import Database
from holdfast.store.own_ca import certificates
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio
Ask = Callable[[Ground], Awaitable[httpx2.Response]]
HOUR = timedelta(hours=1)
PREFLIGHT = {
    "origin": "https://page.example",
    "access-control-request-method": "POST",
    "access-control-request-headers": "content-type",
}


@pytest.fixture(scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """One server for all that change nothing of it."""
    folder: Path = tmp_path_factory.mktemp("sentences")
    db = await migrated(open_store(SqliteEngine(folder / "holdfast.sqlite", SystemClock())))
    async with open_front(db, folder) as front:
        yield await prepare(front)
    await db.close()


@pytest.fixture
async def front(db: Database, tmp_path: Path) -> AsyncIterator[Front]:
    async with open_front(db, tmp_path) as opened:
        yield opened


# ── §6.1: "Such servers SHOULD set the Access-Control-Allow-Origin header field to the value '*'" ──

ANSWERS: dict[str, Ask] = {
    "directory": lambda g: g.http.get(g.front.directory),
    "newNonce": lambda g: g.http.head(g.client.urls["newNonce"]),
    "account": lambda g: g.client.get(g.url),
    "newAccount": lambda g: g.client.register(),
    "order": lambda g: g.client.get(g.ready["url"]),
    "authorization": lambda g: g.client.get(g.authz),
    "certificate": lambda g: g.client.get(g.valid["certificate"]),
    "a refusal": lambda g: g.client.post(g.client.urls["newOrder"], {}),
    "a body of another type": lambda g: g.client.post(g.url, None, headers={"content-type": "text/plain"}),
    "a method": lambda g: g.http.get(g.url),
    "nowhere": lambda g: g.http.get(g.front.directory + "/x"),
}


@pytest.mark.parametrize("what", ANSWERS)
async def test_pages_of_every_origin_may_read_every_answer(ground: Ground, what: str) -> None:
    reply = await ANSWERS[what](ground)
    assert reply.headers["access-control-allow-origin"] == "*"
    exposed = reply.headers["access-control-expose-headers"].lower().split(", ")
    assert {"link", "location", "replay-nonce"} <= set(exposed)


@pytest.mark.parametrize(
    ("where", "methods"), [("newNonce", "GET, HEAD, POST"), ("newAccount", "POST"), ("newOrder", "POST")]
)
async def test_a_browser_that_asks_first_may_post_a_jws(ground: Ground, where: str, methods: str) -> None:
    reply = await ground.http.options(ground.client.urls[where], headers=PREFLIGHT)
    assert (reply.status_code, reply.content) == (204, b"")
    assert reply.headers["access-control-allow-origin"] == "*"
    assert reply.headers["access-control-allow-methods"] == methods
    assert reply.headers["access-control-allow-headers"] == "Content-Type"


@pytest.mark.parametrize("missing", ["origin", "access-control-request-method"])
async def test_options_that_no_browser_sent_is_a_method_that_is_not_allowed(ground: Ground, missing: str) -> None:
    headers = {name: value for name, value in PREFLIGHT.items() if name != missing}
    assert problem(await ground.http.options(ground.url, headers=headers)) == (405, "malformed")


async def test_a_browser_that_asks_about_nothing_is_told_so(ground: Ground) -> None:
    assert problem(await ground.http.options(ground.front.directory + "/x", headers=PREFLIGHT)) == (404, "malformed")


# ── §6.5: "Once a nonce value has appeared in an ACME request, the server MUST consider it invalid" ──

Burn = Callable[[AcmeClient, str], Awaitable[httpx2.Response]]


def with_header(**changes: Any) -> Burn:
    return lambda c, nonce: c.post(c.kid or "", None, header={"nonce": nonce, **changes})


def with_envelope(**changes: Any) -> Burn:
    return lambda c, nonce: c.post(c.kid or "", None, header={"nonce": nonce}, envelope=changes)


def as_body(make: Callable[[dict[str, Any]], bytes]) -> Burn:
    async def send(c: AcmeClient, nonce: str) -> httpx2.Response:
        url = c.kid or ""
        whole = flattened(c.signer, {"alg": "ES256", "kid": url, "nonce": nonce, "url": url}, None)
        return await c.post(url, body=make(whole))

    return send


def general(whole: dict[str, Any]) -> bytes:
    signature = {"protected": whole["protected"], "signature": whole["signature"]}
    return json.dumps({"payload": whole["payload"], "signatures": [signature]}).encode()


def compact(whole: dict[str, Any]) -> bytes:
    return ".".join(whole[part] for part in ("protected", "payload", "signature")).encode()


BURNS: dict[str, Burn] = {
    "alg none": with_header(alg="none"),
    "alg of a MAC": with_header(alg="HS256"),
    "no alg": with_header(alg=UNSET),
    "no url": with_header(url=UNSET),
    "another url": with_header(url="https://elsewhere.example/"),
    "jwk and kid": with_header(jwk=es256().jwk),
    "neither jwk nor kid": with_header(kid=UNSET),
    "a kid that is unknown": with_header(kid="https://elsewhere.example/1"),
    "an extension": with_header(crit=["exp"], exp=1),
    "an unencoded payload": with_header(crit=["b64"], b64=False),
    "a key that is too weak": with_header(kid=UNSET, jwk=rs256(1024).jwk, alg="RS256"),
    "a detached payload": with_envelope(payload=UNSET),
    "an unprotected header": with_envelope(header={}),
    "a padded signature": with_envelope(signature="AA=="),
    "a signature of nobody": with_envelope(signature=b64(bytes(64))),
    "the general serialization": as_body(general),
    "the compact serialization": as_body(compact),
    "a body with something after it": as_body(lambda whole: json.dumps(whole).encode() + b"}"),
    "a body that ends too soon": as_body(lambda whole: json.dumps(whole).encode()[:-5]),
    "a member twice": as_body(lambda whole: json.dumps(whole).encode()[:-1] + b',"payload":""}'),
    "another media type": lambda c, nonce: c.post(
        c.kid or "", None, header={"nonce": nonce}, headers={"content-type": "application/json"}
    ),
    "a payload that is no JSON": lambda c, nonce: c.post(c.kid or "", b"x", header={"nonce": nonce}),
    "a content that is refused": lambda c, nonce: c.post(c.kid or "", {"contact": ["x:1"]}, header={"nonce": nonce}),
}


async def burnt(client: AcmeClient, burn: Burn) -> None:
    nonce = await client.nonce()
    assert (await burn(client, nonce)).status_code >= 400
    assert problem(await client.get(client.kid or "", header={"nonce": nonce})) == (400, "badNonce")


@pytest.mark.parametrize("what", BURNS)
async def test_a_nonce_that_appeared_in_a_refused_request_is_void(ground: Ground, what: str) -> None:
    await burnt(ground.client, BURNS[what])


async def test_a_nonce_that_appeared_is_void_in_every_store(front: Front) -> None:
    client = await front.client()
    for what in ("alg none", "a detached payload", "another media type"):
        await burnt(client, BURNS[what])


@pytest.mark.parametrize("what", BURNS)
async def test_the_nonce_of_a_refusal_is_good_for_the_next_request(ground: Ground, what: str) -> None:
    """§6.5: "SHOULD provide it in error responses as well"."""
    client = ground.client
    refused = await BURNS[what](client, await client.nonce())
    client.nonces.remove(refused.headers["replay-nonce"])
    assert (await client.get(ground.url, header={"nonce": refused.headers["replay-nonce"]})).status_code == 200


# ── §6.6: "the time where all rate limits allow access again for the current request" ──


async def test_retry_after_is_the_longest_of_all_limits_that_were_hit(db: Database, tmp_path: Path) -> None:
    few, seldom = RateLimit(count=1, span=HOUR), RateLimit(count=1, span=10 * HOUR)
    policy = limits(orders_per_account=few, failures_per_identifier=seldom)
    async with open_front(db, tmp_path, policy=policy) as front:
        client = await front.client()
        account = (client.kid or "").rpartition("/")[2]
        assert (await client.order("a.example")).status_code == 201
        await db.write(lambda tx: acme_limits.take(tx, {failure_key(account, "b.example"): seldom}, tx.now()))
        both = await client.order("b.example")
        one = await client.order("c.example")
        assert problem(both) == problem(one) == (429, "rateLimited")
        assert int(both.headers["retry-after"]) > 9 * 3600 > 3700 > int(one.headers["retry-after"])


# ── §7.1: "The 'index' link relation is present on all resources other than the directory" ──

POSTED = {name: ask for name, ask in ANSWERS.items() if name not in ("directory", "newNonce", "a method", "nowhere")}


@pytest.mark.parametrize("what", POSTED)
async def test_an_answer_to_a_post_links_to_the_directory_and_has_a_nonce(ground: Ground, what: str) -> None:
    reply = await POSTED[what](ground)
    assert links(reply, "index") == [ground.front.directory]
    assert len(reply.headers.get_list("replay-nonce")) == 1
    assert "no-store" in reply.headers["cache-control"]


# ── §7.1.2.1: "The server SHOULD NOT include orders that are invalid" ──


async def test_an_order_that_has_expired_is_not_listed_though_nobody_swept(front: Front) -> None:
    client = await front.client()
    old, new = await client.order("a.example"), await client.order("b.example")
    expired = old.headers["location"].rpartition("/")[2]
    await front.office.db.write(
        lambda tx: tx.run("UPDATE acme_orders SET expires_at = now_us() - 1 WHERE id = :id", id=expired)
    )
    assert (await client.get(old.headers["location"])).json()["status"] == "invalid"
    assert (await client.get(f"{client.kid}/orders")).json() == {"orders": [new.headers["location"]]}


# ── §7.3.6: "If a server receives a POST or POST-as-GET from a deactivated account, it MUST return … 401" ──


async def test_an_ended_account_is_told_so_whatever_else_is_wrong_with_its_request(front: Front) -> None:
    """As another replica would end it: the key is still kept here."""
    client, other = await front.client(), await front.client()
    order = (await client.order("a.example")).json()
    account = (client.kid or "").rpartition("/")[2]
    await accounts.deactivate(front.office.acme_context, Requester(account, client.signer.thumbprint))
    asked: list[tuple[str, Any]] = [
        (client.urls["newOrder"], {}),
        (client.urls["newOrder"], b"no JSON"),
        (client.urls["keyChange"], {}),
        (client.urls["revokeCert"], {}),
        (client.kid or "", {"contact": ["x:1"]}),
        (f"{client.kid}/orders", {}),
        (f"{client.kid}/orders?after=", None),
        (other.kid or "", None),
        (order["finalize"], {}),
        (order["authorizations"][0], {"status": "x"}),
        (front.directory.replace("directory", "order/order_x"), None),
    ]
    found = [problem(await client.post(url, payload)) for url, payload in asked]
    assert found == [(401, "unauthorized")] * len(asked)


async def test_the_key_of_an_ended_account_is_told_so_by_new_account(front: Front) -> None:
    client = await front.client()
    await client.post(client.kid or "", {"status": "deactivated"})
    for payload in ({}, {"onlyReturnExisting": True}, {"contact": 7}, b"[]", b""):
        reply = await client.post(client.urls["newAccount"], payload, jwk=True)
        assert problem(reply) == (401, "unauthorized")


# ── §11.1: "servers MUST verify that a CSR … does not contain a public key for any known account key pair" ──


def private_of(signer: Signer) -> ec.EllipticCurvePrivateKey:
    assert isinstance(signer.private, ec.EllipticCurvePrivateKey)
    return signer.private


async def test_a_csr_with_the_key_of_any_account_is_refused(ground: Ground) -> None:
    for owner in (ground.client, ground.other):
        asked = {"csr": csr_for(ground.ready, key=private_of(owner.signer))}
        assert problem(await ground.client.post(ground.ready["finalize"], asked)) == (400, "badCSR")
    assert (await ground.client.get(ground.ready["url"])).json()["status"] == "ready"


async def test_a_csr_with_the_key_of_an_account_of_another_ca_is_refused(front: Front) -> None:
    acme_context = front.office.acme_context
    options = CaOptions()
    await cas.create(
        acme_context.authorities.secret_store,
        ca="second",
        plan=CeremonyPlan(name="Second"),
        options=options,
        actor="local:test",
    )
    await acme_context.authorities.refresh()
    elsewhere = await AcmeClient(front.http, front.directory.replace("ca1", "second")).start()
    assert (await elsewhere.register()).status_code == 201
    async with front.office.working():
        client = await front.client()
        order = await front.ready(client, LOCAL)
        reply = await client.post(order["finalize"], {"csr": csr_for(order, key=private_of(elsewhere.signer))})
    assert problem(reply) == (400, "badCSR")


# ── §6.2: badPublicKey if "the corresponding private key is known to have been compromised" ──


async def test_no_account_gets_a_key_that_is_known_to_be_compromised(front: Front) -> None:
    client, lost = await front.client(), es256()
    fingerprint = keys.spki_sha256(lost.private.public_key()).hex()
    await front.office.db.write(lambda tx: certificates.block_key(tx, fingerprint, "found in a repository"))
    assert problem(await (await front.stranger(lost)).register()) == (400, "badPublicKey")
    assert problem(await client.change_key(lost)) == (400, "badPublicKey")
    assert (await client.get(client.kid or "")).status_code == 200
