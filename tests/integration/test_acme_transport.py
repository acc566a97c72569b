"""RFC 8555 §6 over HTTP: media types, methods, URLs, nonces, errors; on both stores."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.acme_client import JOSE, UNSET, AcmeClient, eddsa, es256, es384, flattened, links, problem, rs256
from tests.support.acme_desk import limits
from tests.support.acme_face import Front, open_front
from tests.support.engine import Moody

from holdfast.acme import request
from holdfast.acme.app import site
from holdfast.acme.nonces import OwnNonces
from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.operations.acme import accounts
from holdfast.operations.acme.context import Requester
from holdfast.store.database import Database
from holdfast.world import SystemClock, SystemRandom

pytestmark = pytest.mark.anyio


@pytest.fixture
async def front(db: Database, tmp_path: Path) -> AsyncIterator[Front]:
    async with open_front(db, tmp_path) as opened:
        yield opened


# ── §6.2: request authentication ──


@pytest.mark.parametrize("signer", [es256, es384, eddsa, rs256])
async def test_every_supported_algorithm_signs_requests(front: Front, signer: Any) -> None:
    client = await front.client(signer())
    assert (await client.get(client.kid or "")).json()["status"] == "valid"


@pytest.mark.parametrize("alg", ["none", "HS256", "HS512", "ES512", "PS256", "RS384", "es256", ""])
async def test_an_unsupported_algorithm_is_answered_by_those_that_are_supported(front: Front, alg: str) -> None:
    client = await front.client()
    reply = await client.post(client.urls["newOrder"], {}, header={"alg": alg})
    if not alg:
        assert problem(reply) == (400, "malformed")
        return
    assert problem(reply) == (400, "badSignatureAlgorithm")
    assert set(reply.json()["algorithms"]) == {"ES256", "ES384", "EdDSA", "RS256"}


async def test_a_key_that_is_too_weak_is_a_bad_public_key(front: Front) -> None:
    client = await front.stranger(rs256(1024))
    assert problem(await client.register()) == (400, "badPublicKey")


async def test_a_request_with_both_jwk_and_kid_is_refused(front: Front) -> None:
    client = await front.client()
    reply = await client.post(client.kid or "", {}, header={"jwk": client.signer.jwk})
    assert problem(reply) == (400, "malformed")


async def test_new_account_must_be_signed_with_a_jwk(front: Front) -> None:
    client = await front.client()
    assert problem(await client.post(client.urls["newAccount"], {})) == (400, "malformed")


async def test_every_other_resource_must_be_asked_for_with_a_kid(front: Front) -> None:
    client = await front.client()
    order = (await client.order("a.example")).json()
    for url in (client.urls["newOrder"], client.urls["keyChange"], client.kid or "", *order["authorizations"]):
        assert problem(await client.post(url, None, jwk=True)) == (400, "malformed")


async def test_a_kid_must_be_the_exact_url_of_an_account_of_this_ca(front: Front) -> None:
    client = await front.client()
    kid = client.kid or ""
    for wrong in (kid.replace("https", "http"), kid + "/", kid.rpartition("/")[2], kid[:-1], kid.replace("ca1", "ca2")):
        reply = await client.post(client.urls["newOrder"], {}, header={"kid": wrong})
        assert problem(reply) == (400, "accountDoesNotExist")


async def test_a_signature_of_another_key_is_refused(front: Front) -> None:
    client = await front.client()
    for _ in range(2):  # before and after the account's key is kept in memory
        assert problem(await client.post(client.kid or "", None, signer=es256())) == (400, "malformed")
        assert (await client.get(client.kid or "")).status_code == 200


@pytest.mark.parametrize("media", ["application/json", "application/jose", "text/plain", "application/jws+json", ""])
async def test_another_media_type_is_answered_by_415(front: Front, media: str) -> None:
    client = await front.client()
    reply = await client.post(client.kid or "", None, headers={"content-type": media})
    assert problem(reply) == (415, "malformed")
    assert "replay-nonce" in reply.headers


async def test_the_media_type_is_compared_as_http_says(front: Front) -> None:
    client = await front.client()
    for media in ("Application/JOSE+JSON", "application/jose+json; charset=utf-8"):
        assert (await client.get(client.kid or "", headers={"content-type": media})).status_code == 200


async def test_the_unprotected_header_and_other_serializations_are_refused(front: Front) -> None:
    client = await front.client()
    url = client.kid or ""
    for envelope in (
        {"header": {"alg": "ES256"}},
        {"signatures": []},
        {"payload": UNSET},
        {"signature": UNSET},
        {"protected": UNSET},
    ):
        assert problem(await client.post(url, None, envelope=envelope)) == (400, "malformed")
    assert problem(await client.post(url, None, header={"b64": False, "crit": ["b64"]})) == (400, "malformed")


# ── §6.3: GET, and POST-as-GET ──


async def test_get_is_allowed_only_where_the_rfc_allows_it(front: Front) -> None:
    client = await front.client()
    order = await client.order("a.example")
    urls = [client.urls[name] for name in ("newAccount", "newOrder", "revokeCert", "keyChange")]
    urls += [client.kid or "", f"{client.kid}/orders", order.headers["location"], order.json()["finalize"]]
    urls += order.json()["authorizations"]
    for url in urls:
        for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"):
            reply = await front.http.request(method, url)
            assert reply.status_code == 405
            assert reply.headers["allow"] == "POST"
            if method != "HEAD":
                assert problem(reply) == (405, "malformed")


async def test_the_directory_and_new_nonce_allow_get_head_and_post(front: Front) -> None:
    for url in (front.directory, (await front.stranger()).urls["newNonce"]):
        reply = await front.http.put(url)
        assert problem(reply) == (405, "malformed")
        assert reply.headers["allow"] == "GET, HEAD, POST"


async def test_the_directory_and_new_nonce_can_be_fetched_by_post_as_get(front: Front) -> None:
    client = await front.client()
    reply = await client.get(front.directory)
    assert (reply.status_code, reply.json()) == (200, client.urls)
    assert "replay-nonce" in reply.headers
    reply = await client.get(client.urls["newNonce"])
    assert (reply.status_code, reply.content) == (204, b"")
    assert "replay-nonce" in reply.headers
    assert problem(await client.post(front.directory, {})) == (400, "malformed")


async def test_post_as_get_has_an_empty_payload_and_nothing_else(front: Front) -> None:
    client = await front.client()
    order = await client.order("a.example")
    for url in (order.headers["location"], f"{client.kid}/orders"):
        assert (await client.get(url)).status_code == 200
        for payload in ({}, b"null", b'""', {"status": "x"}):
            assert problem(await client.post(url, payload)) == (400, "malformed")


async def test_an_action_needs_a_payload(front: Front) -> None:
    client = await front.client()
    order = (await client.order("a.example")).json()
    for url in (client.urls["newOrder"], client.urls["revokeCert"], client.urls["keyChange"], order["finalize"]):
        assert problem(await client.get(url)) == (400, "malformed")


# ── §6.4: the URL ──


@pytest.mark.parametrize(
    "change",
    [
        lambda url: url.replace("https", "http"),
        lambda url: url.replace("localhost", "LOCALHOST"),
        lambda url: url.replace("localhost:8631", "localhost"),
        lambda url: url.replace("localhost", "ca.example"),
        lambda url: url + "/",
        lambda url: url + "?a=b",
        lambda url: url.replace("new-order", "new%2Dorder"),
        lambda url: url.replace("new-order", "new-account"),
        lambda url: url.partition("8631")[2],
    ],
)
async def test_a_url_that_is_not_the_one_of_the_request_is_unauthorized(front: Front, change: Any) -> None:
    client = await front.client()
    url = client.urls["newOrder"]
    reply = await client.post(url, {"identifiers": []}, header={"url": change(url)})
    assert problem(reply) == (403, "unauthorized")


async def test_the_host_header_means_nothing(front: Front) -> None:
    client = await front.client()
    for headers in ({"host": "evil.example"}, {"x-forwarded-host": "evil.example", "x-forwarded-proto": "http"}):
        reply = await client.get(client.kid or "", headers=headers)
        assert reply.status_code == 200
        assert reply.json()["orders"].startswith("https://localhost:8631/")
    reply = await front.http.get(front.directory, headers={"host": "evil.example"})
    assert "evil" not in reply.text


async def test_a_query_that_we_never_gave_out_belongs_to_no_resource(front: Front) -> None:
    client = await front.client()
    url = client.urls["newOrder"]
    for signed in (url, f"{url}?x=1"):
        reply = await client.post(f"{url}?x=1", {}, header={"url": signed})
        assert problem(reply) == (403, "unauthorized")


async def test_a_base_url_may_have_a_path(db: Database, tmp_path: Path) -> None:
    policy = limits(base_url="https://pki.example/below/here")
    async with open_front(db, tmp_path, policy=policy) as front:
        client = await front.client()
        assert (client.kid or "").startswith("https://pki.example/below/here/acme/ca1/account/")
        assert (await client.get(client.kid or "")).status_code == 200
        assert (await front.http.get("https://pki.example/acme/ca1/directory")).status_code == 404


# ── §6.5: nonces ──


async def test_every_answer_to_a_post_has_a_new_nonce(front: Front) -> None:
    client = await front.client()
    seen = set()
    for reply in (
        await client.get(client.kid or ""),
        await client.post(client.urls["newOrder"], {}),
        await client.post(client.urls["newOrder"], body=b"garbage"),
        await client.post(front.directory.replace("directory", "nowhere"), {}),
        await client.post(client.urls["renewalInfo"] + "/a.b", {}),
        await client.post(client.kid or "", None, signer=es256()),
    ):
        nonce = reply.headers["replay-nonce"]
        assert nonce.replace("-", "").replace("_", "").isalnum()
        assert reply.headers["cache-control"] == "no-store"
        seen.add(nonce)
    assert len(seen) == 6


async def test_new_nonce_answers_head_with_200_and_get_with_204(front: Front) -> None:
    url = (await front.stranger()).urls["newNonce"]
    for method, status in (("HEAD", 200), ("GET", 204)):
        first, second = await front.http.request(method, url), await front.http.request(method, url)
        assert (first.status_code, first.content) == (status, b"")
        assert first.headers["cache-control"] == "no-store"
        assert first.headers["replay-nonce"] != second.headers["replay-nonce"]


async def test_a_nonce_is_good_for_one_request(front: Front) -> None:
    client = await front.client()
    nonce = await client.nonce()
    assert (await client.get(client.kid or "", header={"nonce": nonce})).status_code == 200
    reply = await client.get(client.kid or "", header={"nonce": nonce})
    assert problem(reply) == (400, "badNonce")
    again = await client.get(client.kid or "", header={"nonce": reply.headers["replay-nonce"]})
    assert again.status_code == 200


async def test_a_nonce_is_void_once_it_has_appeared_even_in_a_request_that_failed(front: Front) -> None:
    client = await front.client()
    url = client.kid or ""
    failing: list[dict[str, Any]] = [
        {"signer": es256()},
        {"header": {"url": "https://elsewhere.example/"}},
        {"header": {"kid": f"{url}x"}},
        {"payload": b"not json"},
    ]
    for wrong in failing:
        nonce = await client.nonce()
        wrong = {**wrong, "header": {**wrong.get("header", {}), "nonce": nonce}}
        assert (await client.post(url, wrong.pop("payload", None), **wrong)).status_code >= 400
        assert problem(await client.get(url, header={"nonce": nonce})) == (400, "badNonce")


async def test_of_many_requests_with_the_same_nonce_one_is_served(front: Front) -> None:
    client = await front.client()
    nonce = await client.nonce()
    replies = await asyncio.gather(*(client.get(client.kid or "", header={"nonce": nonce}) for _ in range(10)))
    assert sorted(reply.status_code for reply in replies) == [200] + [400] * 9


@pytest.mark.parametrize("nonce", ["AAAA", "x" * 60, UNSET, ""])
async def test_a_nonce_that_is_not_ours_or_missing_is_a_bad_nonce(front: Front, nonce: Any) -> None:
    client = await front.client()
    reply = await client.get(client.kid or "", header={"nonce": nonce})
    assert problem(reply) == (400, "badNonce")
    assert "replay-nonce" in reply.headers


@pytest.mark.parametrize("nonce", ["a=", "a b", "a+b/", "é", 7, None, "AAAAA"])
async def test_a_nonce_that_is_not_base64url_is_malformed(front: Front, nonce: Any) -> None:
    client = await front.client()
    assert problem(await client.get(client.kid or "", header={"nonce": nonce})) == (400, "malformed")


async def test_nonces_are_good_for_every_client_and_every_resource(front: Front) -> None:
    one, other = await front.client(), await front.client()
    assert (await one.get(one.kid or "", header={"nonce": await other.nonce()})).status_code == 200


async def test_chaos_refuses_good_nonces_now_and_then_but_never_twice_in_a_row(db: Database, tmp_path: Path) -> None:
    async with open_front(db, tmp_path, policy=limits(chaos_nonces=50)) as front:
        client = await front.stranger()
        outcomes = [(await client.register()).status_code for _ in range(40)]
        assert {200, 400} <= set(outcomes)
        assert (400, 400) not in set(pairwise(outcomes))


async def test_a_refused_nonce_is_told_in_the_words_that_clients_look_for(front: Front) -> None:
    client = await front.client()
    reply = await client.get(client.kid or "", header={"nonce": "AAAA"})
    assert "JWS has an invalid anti-replay nonce" in reply.json()["detail"]


# ── §6.7: errors; §7.1: links ──


async def test_every_answer_but_the_directory_links_to_the_directory(front: Front) -> None:
    client = await front.client()
    assert links(await front.http.get(front.directory), "index") == []
    order = await client.order("a.example")
    replies = [order, await client.get(order.json()["authorizations"][0]), await client.get(f"{client.kid}/orders")]
    replies += [await front.http.head(client.urls["newNonce"]), await client.post(client.urls["newOrder"], {})]
    replies += [await front.http.get(client.urls["newOrder"]), await front.http.get(client.urls["renewalInfo"] + "/x")]
    for reply in replies:
        assert links(reply, "index") == [front.directory]


@pytest.mark.parametrize(
    "path",
    [
        "/acme/ca1", "/acme/ca1/", "/acme/ca2/directory", "/acme/ca1/new-authz", "/acme/ca1/order", "/acme/ca1/order/",
        "/acme/ca1/order/x/y", "/acme/ca1/order/x/finalize/y", "/acme/ca1/renewal-info", "/acme//directory", "/acme/",
        "/acme/ca1/../ca1/directory", "/acme/ca1/%64irectory", "/acme/ca1/order/%00", "/acme/ca1/order/a%2Fb", "/",
        "/acme/ca1/directory/", "/ACME/ca1/directory",
    ],
)  # fmt: skip
async def test_what_is_not_there_is_a_problem_with_404(front: Front, path: str) -> None:
    scope = {
        "type": "http", "method": "POST", "raw_path": path.encode(), "path": path, "query_string": b"",
        "headers": [(b"content-type", JOSE.encode())], "client": ("192.0.2.1", 1),
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await front.site(scope, receive, send)
    headers = dict(sent[0]["headers"])
    assert sent[0]["status"] == 404
    assert headers[b"content-type"] == b"application/problem+json"
    assert b"replay-nonce" in headers
    assert json.loads(sent[1]["body"])["type"].endswith(":malformed")


async def test_an_error_of_ours_is_logged_and_says_nothing_of_itself(front: Front) -> None:
    client = await front.client()

    class Broken:
        async def mint(self, note: str = "") -> str:
            return await front.nonces.mint(note)

        async def redeem(self, text: str) -> Any:
            raise ValueError("the secret detail")

        async def sweep(self) -> int:
            return 0

    app = site(front.office.acme_context, Broken(), SystemClock(), front.watch.telemetry)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as http:
        client.http = http
        reply = await client.get(client.kid or "")
    assert problem(reply) == (500, "serverInternal")
    assert "secret" not in reply.text
    assert len(front.watch.log.told("acme.failed")) == 1


@pytest.mark.parametrize("error", [StoreUnavailable("away"), OutcomeUnknown("lost")])
async def test_while_the_store_is_away_clients_are_asked_to_come_back(front: Front, error: Exception) -> None:
    from dataclasses import replace

    client = await front.client()
    moody = Moody(front.office.db)
    acme_context = replace(front.office.acme_context, db=moody)
    app = site(acme_context, OwnNonces(SystemClock(), SystemRandom()), SystemClock(), front.watch.telemetry)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as http:
        away = AcmeClient(http, front.directory, client.signer, client.kid, client.urls)
        assert (await away.order("a.example")).status_code == 201
        moody.before = error
        reply = await away.order("b.example")
        assert problem(reply) == (503, "serverInternal")
        assert int(reply.headers["retry-after"]) >= 1
        moody.before = None
        assert (await away.order("b.example")).status_code == 201


async def test_a_ca_that_cannot_be_opened_is_not_gone(front: Front) -> None:
    client = await front.client()

    def lose_the_key(tx: Any) -> None:
        tx.run("UPDATE cas SET key_secret = NULL, key_device = 'pkcs11:nonsense', version = version + 1")

    await front.office.db.write(lose_the_key)
    await front.office.acme_context.authorities.refresh()
    for reply in (await front.http.get(front.directory), await client.get(client.kid or "")):
        assert problem(reply) == (503, "serverInternal")
        assert int(reply.headers["retry-after"]) >= 1
    elsewhere = front.directory.replace("ca1", "ca2")
    assert problem(await front.http.get(elsewhere)) == (404, "malformed")


# ── Bodies ──


async def test_a_body_over_the_limit_is_refused_before_it_is_read(front: Front) -> None:
    client = await front.client()
    reply = await client.post(client.urls["newOrder"], body=b"x" * (64 * 1024 + 1))
    assert problem(reply) == (413, "malformed")
    assert reply.headers["connection"] == "close"


async def test_a_chunked_body_is_read_and_bounded_all_the_same(front: Front) -> None:
    client = await front.client()
    url = client.kid or ""
    whole = json.dumps(
        flattened(client.signer, {"alg": "ES256", "kid": url, "nonce": await client.nonce(), "url": url}, None)
    ).encode()

    async def pieces(content: bytes) -> AsyncIterator[bytes]:
        for n in range(0, len(content), 50):
            yield content[n : n + 50]

    reply = await front.http.post(url, content=pieces(whole), headers={"content-type": JOSE})
    assert reply.status_code == 200

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 4096

    reply = await front.http.post(url, content=endless(), headers={"content-type": JOSE})
    assert problem(reply) == (413, "malformed")


async def test_a_body_that_does_not_arrive_is_not_waited_for_for_ever(front: Front) -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    with pytest.raises(Exception, match="did not arrive"):
        await request.read_body(never, None, patience=0.01)


async def test_a_client_that_leaves_in_mid_sentence_gets_nothing(front: Front) -> None:
    scope = {
        "type": "http", "method": "POST", "raw_path": b"/acme/ca1/new-account", "path": "", "query_string": b"",
        "headers": [(b"content-type", JOSE.encode())], "client": None,
    }  # fmt: skip
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        raise AssertionError(message)

    await front.site(scope, receive, send)


# ── Keys that are kept in memory ──


async def test_a_key_changed_behind_our_back_is_noticed(front: Front) -> None:
    """As another replica would do it."""
    client = await front.client()
    assert (await client.get(client.kid or "")).status_code == 200
    old, new = client.signer, es256()
    account = (client.kid or "").rpartition("/")[2]
    who = Requester(account, old.thumbprint)
    jwk = json.dumps(new.jwk, sort_keys=True, separators=(",", ":"))
    await accounts.change_key(front.office.acme_context, who, jwk=jwk, thumbprint=new.thumbprint)
    assert problem(await client.get(client.kid or "")) == (401, "unauthorized")
    client.signer = new
    assert (await client.get(client.kid or "")).status_code == 200
    client.signer = old
    assert problem(await client.get(client.kid or "")) == (400, "malformed")


async def test_an_account_ended_behind_our_back_is_refused_everywhere(front: Front) -> None:
    client = await front.client()
    order = (await client.order("a.example")).json()
    account = (client.kid or "").rpartition("/")[2]
    await accounts.deactivate(front.office.acme_context, Requester(account, client.signer.thumbprint))
    urls = [client.kid or "", f"{client.kid}/orders", *order["authorizations"], front.directory]
    for url in urls:
        reply = await client.get(url)
        assert problem(reply) == (401, "unauthorized")
        assert "www-authenticate" in reply.headers
    assert problem(await client.order("b.example")) == (401, "unauthorized")
