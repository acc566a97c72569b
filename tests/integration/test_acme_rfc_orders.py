"""RFC 8555 §7.1 and §7.4 to §8, RFC 8738, RFC 9773, sentence by sentence: each test names the one it holds us to."""

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support.acme_client import ERROR, AcmeClient, b64, links, problem
from tests.support.acme_desk import a_csr, limits
from tests.support.acme_face import LOCAL, Front, csr_for, open_front
from tests.support.challenge_server import WebServer
from tests.support.engine import eventually
from tests.support.stores import migrated, open_store

from holdfast.core.own_ca.acme import Identifier
from holdfast.pki.ari import cert_id
from holdfast.store.database import Database
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio
ELSEWHERE = "127.0.0.2"  # nobody listens there, unless a test does
TOKEN = re.compile(r"[A-Za-z0-9_-]{22,}")
LONGEST = timedelta(days=398)
NOT_READY = (403, "orderNotReady")


@dataclass(frozen=True)
class Ground:
    """A CA that tests and signs, a client, and an order in each state that does not change."""

    front: Front
    client: AcmeClient
    other: AcmeClient
    orders: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    folder: Path = tmp_path_factory.mktemp("sentences")
    db = await migrated(open_store(SqliteEngine(folder / "holdfast.sqlite", SystemClock())))
    async with open_front(db, folder) as front, front.office.working():
        client, other = await front.client(), await front.client()
        yield Ground(front, client, other, await states(front, client))
    await db.close()


async def states(front: Front, client: AcmeClient) -> dict[str, dict[str, Any]]:
    pending, over = await client.order("pending.example"), await client.order("over.example")
    await client.post(over.json()["authorizations"][0], {"status": "deactivated"})
    return {
        "pending": {**pending.json(), "url": pending.headers["location"]},
        "invalid": {**over.json(), "url": over.headers["location"]},
        "valid": await front.issued(client),
    }


@pytest.fixture
async def busy(db: Database, tmp_path: Path) -> AsyncIterator[Front]:
    async with open_front(db, tmp_path) as opened, opened.office.working():
        yield opened


# ── §7.4: finalize ──

CSRS: dict[str, Callable[[Ground, dict[str, Any]], str]] = {
    "the right one": lambda ground, order: csr_for(order),
    "other names": lambda ground, order: b64(a_csr(Identifier("dns", "other.example"))),
    "no DER": lambda ground, order: b64(b"-----BEGIN CERTIFICATE REQUEST-----"),
    "rubbish": lambda ground, order: b64(b"0rubbish"),
    "the account's key": lambda ground, order: csr_for(order, key=ground.client.signer.private),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", CSRS)
@pytest.mark.parametrize("state", ["pending", "valid", "invalid"])
async def test_an_order_that_is_not_ready_cannot_be_finalized_whatever_the_csr(
    ground: Ground, state: str, what: str
) -> None:
    """§7.4: if the order is not in the "ready" state, the server MUST return a 403 of type orderNotReady."""
    order = ground.orders[state]
    assert problem(await ground.client.post(order["finalize"], {"csr": CSRS[what](ground, order)})) == NOT_READY
    assert (await ground.client.get(order["url"])).json()["status"] == state


@pytest.mark.parametrize("what", CSRS)
async def test_whose_order_it_is_comes_before_what_is_wrong_with_the_csr(ground: Ground, what: str) -> None:
    """§10.5: nobody learns about the orders of others."""
    order = ground.orders["pending"]
    reply = await ground.other.post(order["finalize"], {"csr": CSRS[what](ground, order)})
    assert problem(reply) == (403, "unauthorized")


@pytest.mark.parametrize("what", [each for each in CSRS if each != "the right one"])
async def test_after_a_bad_csr_the_order_is_ready_for_a_better_one(ground: Ground, what: str) -> None:
    """§7.4: the server SHOULD use badCSR, and SHOULD leave the order in the "ready" state."""
    order = await ground.front.ready(ground.client)
    assert problem(await ground.client.post(order["finalize"], {"csr": CSRS[what](ground, order)})) == (400, "badCSR")
    assert (await ground.client.get(order["url"])).json()["status"] == "ready"


# ── §7.4: what was ordered is what is issued ──

DATES = {
    "the latest end": lambda now: {"notAfter": now + LONGEST - timedelta(seconds=1)},
    "the longest life": lambda now: {"notBefore": now, "notAfter": now + LONGEST - timedelta(seconds=1)},
    "a life to come": lambda now: {"notBefore": now + timedelta(hours=1), "notAfter": now + timedelta(hours=2)},
    "a beginning alone": lambda now: {"notBefore": now - timedelta(minutes=30)},
    "seconds": lambda now: {"notBefore": now, "notAfter": now + timedelta(minutes=2)},
}


@pytest.mark.parametrize("what", DATES)
async def test_an_order_is_a_promise_to_issue_what_was_asked_for(ground: Ground, what: str) -> None:
    """§7.4: the order represents a promise that the server will be willing to finalize it."""
    asked = {name: rfc3339(at) for name, at in DATES[what](datetime.now(UTC)).items()}
    order = await ground.front.issued(ground.client, **asked)  # type: ignore[arg-type]  # fields of the order
    assert asked.items() <= order.items()
    leaf = x509.load_pem_x509_certificate((await ground.client.get(order["certificate"])).content)
    life = {"notBefore": rfc3339(leaf.not_valid_before_utc), "notAfter": rfc3339(leaf.not_valid_after_utc)}
    assert asked.items() <= life.items()


@pytest.mark.parametrize("days", [398, 399, 36500])
async def test_what_cannot_be_issued_cannot_be_ordered(ground: Ground, days: int) -> None:
    """§7.4: the server MUST return an error if it cannot fulfill the request as specified."""
    now = datetime.now(UTC)
    reply = await ground.client.order(LOCAL, notBefore=rfc3339(now), notAfter=rfc3339(now + timedelta(days=days)))
    assert problem(reply) == (400, "malformed")


def rfc3339(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


# ── §7.1.6: orders and what they are built on ──


async def test_an_order_ends_with_its_authorization(db: Database, tmp_path: Path) -> None:
    """§7.1.6: the order moves to "invalid" if one of its authorizations expires."""
    at_once = limits(authz_for=timedelta(milliseconds=1))
    async with open_front(db, tmp_path, policy=at_once) as front, front.office.working():
        client = await front.client()
        reply = await client.order(LOCAL)
        url, [authz] = reply.headers["location"], reply.json()["authorizations"]
        await proved(front, client, authz)
        shown = await front.until(client, url, "invalid")
        assert "expired" in shown["error"]["detail"]
        assert (await client.get(authz)).json()["status"] == "expired"
        assert problem(await client.post(reply.json()["finalize"], {"csr": csr_for(shown)})) == NOT_READY


async def test_a_proof_that_comes_too_late_is_no_valid_challenge(db: Database, tmp_path: Path) -> None:
    """§7.1.6: if a challenge is "valid", so is its authorization: one that was given up meanwhile has none."""
    async with open_front(db, tmp_path) as front:
        client = await front.client()
        [authz] = (await client.order(LOCAL)).json()["authorizations"]
        challenge = await proved(front, client, authz)
        assert challenge["status"] == "processing"  # nobody works yet
        await client.post(authz, {"status": "deactivated"})
        async with front.office.working():
            shown = await front.until(client, challenge["url"], "valid", "invalid")
        assert (shown["status"], shown["error"]["type"]) == ("invalid", f"{ERROR}unauthorized")
        assert (await client.get(authz)).json()["status"] == "deactivated"


async def proved(front: Front, client: AcmeClient, authz: str) -> dict[str, Any]:
    """The proof is in place, and the challenge is answered; what comes of it is not waited for."""
    challenge = await http01(client, authz)
    front.office.proofs[challenge["token"]] = f"{challenge['token']}.{client.signer.thumbprint}"
    shown: dict[str, Any] = (await client.post(challenge["url"], {})).json()
    return {**challenge, **shown}


async def http01(client: AcmeClient, authz: str) -> dict[str, Any]:
    shown: dict[str, Any] = (await client.get(authz)).json()
    return next(each for each in shown["challenges"] if each["type"] == "http-01")


# ── §7.5: authorizations ──


async def test_fields_of_a_deactivation_that_we_do_not_know_are_ignored(ground: Ground) -> None:
    """§7.3: in general, the server MUST ignore any fields in the request object that it does not recognize."""
    [authz] = (await ground.client.order("ignored.example")).json()["authorizations"]
    reply = await ground.client.post(authz, {"status": "deactivated", "more": 1})
    assert (reply.status_code, reply.json()["status"]) == (200, "deactivated")
    assert "more" not in reply.json()
    again = await ground.client.post(authz, {"status": "deactivated"})  # by a client that did not get the answer
    assert (again.status_code, again.json()) == (200, reply.json())


async def test_there_is_no_pre_authorization(ground: Ground) -> None:
    """§7.1.1: if the server does not implement pre-authorization, it MUST omit the newAuthz field."""
    assert "newAuthz" not in ground.client.urls
    url = ground.client.urls["newOrder"].replace("new-order", "new-authz")
    reply = await ground.client.post(url, {"identifier": {"type": "dns", "value": "a.example"}})
    assert problem(reply) == (404, "malformed")


@pytest.mark.parametrize("name", ["xn--zzzzzz.example", "xn--a.example", "a.xn--.example"])
async def test_a_label_that_only_looks_international_is_rejected(ground: Ground, name: str) -> None:
    """§7.1.4: servers MUST verify any identifier values that begin with "xn--" are properly encoded."""
    reply = await ground.client.order(name)
    assert problem(reply) == (400, "rejectedIdentifier")
    assert [each["identifier"]["value"] for each in reply.json()["subproblems"]] == [name]


# ── §8: challenges ──


async def test_a_token_identifies_its_challenge(ground: Ground) -> None:
    """§8.3, §8.4, RFC 8737 §3: a random value that uniquely identifies the challenge, with at least 128 bits."""
    order = (await ground.client.order("a.tokens.example", "b.tokens.example", "*.tokens.example")).json()
    found = [(await ground.client.get(url)).json()["challenges"] for url in order["authorizations"]]
    tokens = [challenge["token"] for challenges in found for challenge in challenges]
    assert len(set(tokens)) == len(tokens) == 7
    assert all(TOKEN.fullmatch(token) for token in tokens)


async def test_each_failed_try_is_an_entry_of_the_error(busy: Front) -> None:
    """§8.2: the server MUST add an entry to the "error" field after each failed validation query."""
    client = await busy.client()
    reply = await client.order(ELSEWHERE)
    [authz] = reply.json()["authorizations"]
    challenge = await http01(client, authz)
    await client.post(challenge["url"], {})
    for _ in range(busy.office.acme_context.policy.tries - 1):
        await waiting(client, challenge["url"])
        await client.post(challenge["url"], {})
    error = (await busy.until(client, challenge["url"], "invalid"))["error"]
    assert error["type"] == f"{ERROR}connection"
    named = {"type": "ip", "value": ELSEWHERE}
    assert [each["identifier"] for each in error["subproblems"]] == [named] * busy.office.acme_context.policy.tries
    order = (await client.get(reply.headers["location"])).json()
    assert [each["identifier"] for each in order["error"]["subproblems"]] == [named]  # which of its names it was


async def test_whoever_answers_again_gets_the_next_try_at_once(db: Database, tmp_path: Path) -> None:
    """§8.2: servers SHOULD retry a request immediately on receiving such a POST request."""
    async with open_front(db, tmp_path, policy=limits(tries=50)) as front, front.office.working():
        client = await front.client()
        [authz] = (await client.order(ELSEWHERE)).json()["authorizations"]
        challenge = await proved(front, client, authz)
        await waiting(client, challenge["url"])
        async with WebServer(front.office.web.answer, host=ELSEWHERE, port=front.office.web.port) as web:
            again = await client.post(challenge["url"], {})
            assert int(again.headers.get("retry-after", 0)) <= 1  # not after the wait that was planned
            assert links(again, "up") == [authz]
            assert (await front.until(client, authz, "valid", "invalid"))["status"] == "valid"
            assert web.connections == 1


async def waiting(client: AcmeClient, url: str) -> None:
    """Until the next try of a challenge is some time away, or none is left; Retry-After says so (§8.2)."""

    async def planned() -> bool:
        reply = await client.get(url)
        return reply.json()["status"] != "processing" or int(reply.headers["retry-after"]) > 1

    await eventually(planned)


async def test_a_paused_address_is_named_as_an_address(db: Database, tmp_path: Path) -> None:
    """§6.7.1, RFC 8738 §3: the identifier of a subproblem is the one of the order."""
    async with open_front(db, tmp_path, policy=limits(pause_after=1)) as front, front.office.working():
        client = await front.client()
        await front.prove(client, (await client.order(LOCAL)).json()["authorizations"][0], right=False)
        reply = await client.order(LOCAL)
        assert problem(reply) == (429, "rateLimited")
        assert [each["identifier"] for each in reply.json()["subproblems"]] == [{"type": "ip", "value": LOCAL}]


# ── §7.6: revocation ──


async def test_proofs_of_some_of_its_names_do_not_revoke_a_certificate(busy: Front) -> None:
    """§7.6: an account that holds authorizations for all of the identifiers in the certificate, and no other."""
    client, other = await busy.client(), await busy.client()
    async with WebServer(busy.office.web.answer, host=ELSEWHERE, port=busy.office.web.port):
        order = await busy.issued(client, LOCAL, ELSEWHERE)
        leaf = x509.load_pem_x509_certificate((await client.get(order["certificate"])).content)
        revocation = {"certificate": b64(leaf.public_bytes(Encoding.DER))}
        await busy.ready(other, LOCAL)
        assert problem(await other.post(other.urls["revokeCert"], revocation)) == (403, "unauthorized")
        await busy.ready(other, ELSEWHERE)
        assert (await other.post(other.urls["revokeCert"], revocation)).status_code == 200


# ── RFC 9773 §5: replacing ──


async def test_a_certificate_is_replaced_once(busy: Front) -> None:
    """RFC 9773 §5: it MUST return an HTTP 409 of type alreadyReplaced; what it accepts it MUST reflect."""
    client = await busy.client()
    named = await name_of(client, await busy.issued(client))
    replacing = await busy.issued(client, replaces=named)
    assert replacing["replaces"] == named
    assert problem(await client.order(LOCAL, replaces=named)) == (409, "alreadyReplaced")
    assert (await client.order(LOCAL)).status_code == 201  # what clients do next


async def name_of(client: AcmeClient, order: dict[str, Any]) -> str:
    leaf = x509.load_pem_x509_certificate((await client.get(order["certificate"])).content)
    issuer = leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    assert issuer is not None
    return cert_id(issuer, leaf.serial_number)
