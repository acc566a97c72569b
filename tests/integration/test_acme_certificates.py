"""RFC 8555 §7.4.2 and §7.6, RFC 9773 over HTTP: download, revoke, renew; on both stores."""

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support.acme_client import AcmeClient, Signer, b64, es256, links, problem, unb64
from tests.support.acme_face import LOCAL, Front, open_front
from tests.support.ca import issue

from holdfast.acme.certificates import wants_single
from holdfast.operations.acme import certificates
from holdfast.pki import ari
from holdfast.store.database import Database
from holdfast.store.own_ca import certificates as ca_certificates

pytestmark = pytest.mark.anyio


@pytest.fixture
async def busy(db: Database, tmp_path: Path) -> AsyncIterator[Front]:
    async with open_front(db, tmp_path) as opened, opened.office.working():
        yield opened


async def der_of(client: AcmeClient, order: dict[str, Any]) -> bytes:
    reply = await client.get(order["certificate"])
    return x509.load_pem_x509_certificates(reply.content)[0].public_bytes(Encoding.DER)


def cert_id(front: Front, der: bytes) -> str:
    serial = x509.load_der_x509_certificate(der).serial_number
    return ari.cert_id(front.office.ca.issuer.key_identifier, serial)


# ── Download ──


async def test_the_chain_is_strict_pem_with_the_leaf_first_and_no_root(busy: Front) -> None:
    client = await busy.client()
    key = ec.generate_private_key(ec.SECP256R1())
    order = await busy.issued(client, key=key)
    reply = await client.get(order["certificate"])
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/pem-certificate-chain"
    leaf, issuer = x509.load_pem_x509_certificates(reply.content)
    leaf.verify_directly_issued_by(issuer)
    assert leaf.public_key() == key.public_key()
    assert issuer == busy.office.ca.issuer.certificate
    lines = reply.text.splitlines()
    assert all(len(line) <= 64 for line in lines)
    assert {line for line in lines if " " in line} == {"-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"}
    assert reply.text == "".join(each.public_bytes(Encoding.PEM).decode() for each in (leaf, issuer))


async def test_the_certificate_says_what_the_order_said(busy: Front) -> None:
    client = await busy.client()
    begins = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    ends = begins + timedelta(days=7)
    order = await busy.issued(client, notBefore=begins.isoformat(), notAfter=ends.isoformat())
    leaf = x509.load_der_x509_certificate(await der_of(client, order))
    assert (leaf.not_valid_before_utc, leaf.not_valid_after_utc) == (begins, ends)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == [LOCAL]


async def test_a_certificate_can_be_fetched_again_and_again(busy: Front) -> None:
    client = await busy.client()
    order = await busy.issued(client)
    assert (await client.get(order["certificate"])).content == (await client.get(order["certificate"])).content
    assert problem(await client.post(order["certificate"], {})) == (400, "malformed")


async def test_a_client_may_prefer_the_certificate_alone(busy: Front) -> None:
    client = await busy.client()
    order = await busy.issued(client)
    reply = await client.get(order["certificate"], headers={"accept": "application/pkix-cert"})
    assert reply.headers["content-type"] == "application/pkix-cert"
    assert reply.content == await der_of(client, order)
    assert links(reply, "up") == [busy.office.acme_context.policy.issuer_url("ca1")]
    for accept in (
        "application/pem-certificate-chain",
        "*/*",
        "application/json",
        "",
        "application/pkix-cert;q=0, */*",
    ):
        reply = await client.get(order["certificate"], headers={"accept": accept})
        assert reply.headers["content-type"] == "application/pem-certificate-chain"


@pytest.mark.parametrize(
    ("accept", "single"),
    [
        ("", False),
        ("*/*", False),
        ("application/pkix-cert", True),
        ("Application/PKIX-Cert", False),  # as sent by nobody; the chain is always right
        ("application/pkix-cert, */*;q=0.5", True),
        ("application/pkix-cert;q=0.5, */*", False),
        ("application/pkix-cert, application/pem-certificate-chain", False),
        ("application/pkix-cert;q=x", False),
        ("application/pkix-cert;q=0", False),
        ("application/pem-certificate-chain;q=0.9,application/pkix-cert", True),
    ],
)
def test_preferences_are_weighed(accept: str, single: bool) -> None:
    assert wants_single(accept) is single


async def test_alternate_chains_are_linked_to_each_other(db: Database, tmp_path: Path) -> None:
    from dataclasses import replace

    from holdfast.store.own_ca import cas

    async with open_front(db, tmp_path) as front, front.office.working():
        issuer = front.office.ca.issuer.certificate.public_bytes(Encoding.PEM).decode()
        alternates = (issuer * 2, issuer * 3)  # they need not make sense here

        def change(tx: Any) -> None:
            row = cas.get(tx, "ca1")
            assert row is not None
            cas.save(tx, replace(row, alternates=alternates))

        await db.write(change)
        await front.office.acme_context.authorities.refresh()
        client = await front.client()
        order = await front.issued(client)
        urls = [order["certificate"], f"{order['certificate']}/1", f"{order['certificate']}/2"]
        for number, url in enumerate(urls):
            reply = await client.get(url)
            assert len(x509.load_pem_x509_certificates(reply.content)) == number + 2
            assert sorted(links(reply, "alternate")) == sorted(set(urls) - {url})
        for wrong in ("0", "3", "x", "-1", "01"):
            assert problem(await client.get(f"{urls[0]}/{wrong}")) == (404, "malformed")


async def test_a_download_is_fetched_and_the_next_request_acknowledges_it(busy: Front) -> None:
    client = await busy.client()
    order = await busy.issued(client)
    name = order["certificate"].rpartition("/")[2]
    db, delivered = busy.office.db, busy.office.acme_context.delivered

    async def level() -> str:
        await delivered.flush()  # type: ignore[attr-defined]
        found = await db.read(lambda tx: ca_certificates.get(tx, name))
        assert found is not None
        return found.delivery

    assert await level() == "offered"
    reply = await client.get(order["certificate"])
    assert await level() == "fetched"
    other = await busy.client()
    stolen = await other.get(other.kid or "", header={"nonce": reply.headers["replay-nonce"]})
    assert stolen.status_code == 200
    assert await level() == "fetched"  # another account proves nothing
    client.nonces.clear()
    again = await client.get(order["certificate"])
    await client.get(client.kid or "", header={"nonce": again.headers["replay-nonce"]})
    assert await level() == "acknowledged"


# ── Revocation ──


async def test_the_account_it_was_issued_to_revokes_a_certificate(busy: Front) -> None:
    client = await busy.client()
    der = await der_of(client, await busy.issued(client))
    reply = await client.post(client.urls["revokeCert"], {"certificate": b64(der), "reason": 4})
    assert (reply.status_code, reply.content, reply.headers["content-length"]) == (200, b"", "0")
    again = await client.post(client.urls["revokeCert"], {"certificate": b64(der)})
    assert problem(again) == (400, "alreadyRevoked")


async def test_the_key_of_a_certificate_revokes_it(busy: Front) -> None:
    client = await busy.client()
    key = ec.generate_private_key(ec.SECP256R1())
    der = await der_of(client, await busy.issued(client, key=key))
    stranger = await busy.stranger(Signer(key))
    url = stranger.urls["revokeCert"]
    wrong = await stranger.post(url, {"certificate": b64(der)}, signer=es256(), jwk=True)
    assert problem(wrong) == (403, "unauthorized")
    assert (await stranger.post(url, {"certificate": b64(der), "reason": 1})).status_code == 200
    assert problem(await stranger.post(url, {"certificate": b64(der)})) == (400, "alreadyRevoked")


async def test_an_account_that_has_proved_every_name_revokes_a_certificate(busy: Front) -> None:
    client, other = await busy.client(), await busy.client()
    der = await der_of(client, await busy.issued(client))
    url = client.urls["revokeCert"]
    assert problem(await other.post(url, {"certificate": b64(der)})) == (403, "unauthorized")
    await busy.ready(other)
    assert (await other.post(url, {"certificate": b64(der)})).status_code == 200


async def test_an_account_that_gave_its_proof_up_may_not_revoke(busy: Front) -> None:
    client, other = await busy.client(), await busy.client()
    der = await der_of(client, await busy.issued(client))
    order = await busy.ready(other)
    await other.post(order["authorizations"][0], {"status": "deactivated"})
    assert problem(await other.post(client.urls["revokeCert"], {"certificate": b64(der)})) == (403, "unauthorized")


async def test_an_account_key_given_as_jwk_does_not_speak_for_its_account(busy: Front) -> None:
    client = await busy.client()
    der = await der_of(client, await busy.issued(client))
    reply = await client.post(client.urls["revokeCert"], {"certificate": b64(der)}, jwk=True)
    assert problem(reply) == (403, "unauthorized")


async def test_of_many_revocations_at_once_one_succeeds(busy: Front) -> None:
    client = await busy.client()
    der = await der_of(client, await busy.issued(client))
    url = client.urls["revokeCert"]
    replies = await asyncio.gather(*(client.post(url, {"certificate": b64(der)}) for _ in range(8)))
    assert sorted(reply.status_code for reply in replies) == [200] + [400] * 7


async def test_a_revocation_that_makes_no_sense_is_refused(busy: Front) -> None:
    client = await busy.client()
    der = await der_of(client, await busy.issued(client))
    url = client.urls["revokeCert"]
    foreign = base64.b64encode(busy.office.ca.issuer.certificate.public_bytes(Encoding.DER))
    for content, wanted in [
        ({}, (400, "malformed")),
        ({"certificate": 7}, (400, "malformed")),
        ({"certificate": b64(der) + "=="}, (400, "malformed")),
        ({"certificate": b64(b"nonsense")}, (400, "malformed")),
        ({"certificate": b64(der[:-1])}, (400, "malformed")),
        ({"certificate": b64(unb64(foreign.decode()))}, (404, "malformed")),
        ({"certificate": b64(der[:-1] + bytes([der[-1] ^ 1]))}, (404, "malformed")),
        ({"certificate": b64(der), "reason": "4"}, (400, "malformed")),
        ({"certificate": b64(der), "reason": 4.0}, (400, "malformed")),
        ({"certificate": b64(der), "reason": True}, (400, "malformed")),
        *(({"certificate": b64(der), "reason": n}, (400, "badRevocationReason")) for n in (-1, 2, 6, 7, 8, 10, 11)),
    ]:
        assert problem(await client.post(url, content)) == wanted, content
    reply = await client.post(url, {"certificate": b64(der), "reason": 7})
    assert "0, 1, 3" in reply.json()["detail"]  # §7.6: which codes are allowed
    assert (await client.post(url, {"certificate": b64(der), "reason": 0})).status_code == 200


# ── Renewal information (RFC 9773) ──


async def test_anyone_may_ask_when_to_renew(busy: Front) -> None:
    client = await busy.client()
    der = await der_of(client, await busy.issued(client))
    leaf = x509.load_der_x509_certificate(der)
    reply = await busy.http.get(f"{client.urls['renewalInfo']}/{cert_id(busy, der)}")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["retry-after"] == "21600"
    window = reply.json()["suggestedWindow"]
    begins, ends = (datetime.fromisoformat(window[name]) for name in ("start", "end"))
    assert leaf.not_valid_before_utc < begins < ends < leaf.not_valid_after_utc
    await client.post(client.urls["revokeCert"], {"certificate": b64(der)})
    window = (await busy.http.get(str(reply.url))).json()["suggestedWindow"]
    assert window["start"] < window["end"]
    assert datetime.fromisoformat(window["end"]) <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("x", 400), ("x.y.z", 400), ("AA.", 400), (".AA", 400), ("AAAA.AA", 400), ("AAAA.gA", 400),
        ("AAAA.AAE", 400), ("AAAA.AQ-", 400), ("aYhba4dGQEHhs3uEe6CuLN4ByNQ.AIdlQyE", 404),
        ("a" * 65 + ".AQ", 400),
    ],
)  # fmt: skip
async def test_a_name_of_no_certificate_of_ours_is_refused(busy: Front, name: str, status: int) -> None:
    url = (await busy.stranger()).urls["renewalInfo"]
    assert problem(await busy.http.get(f"{url}/{name}")) == (status, "malformed")


async def test_only_get_is_allowed_for_renewal_information(busy: Front) -> None:
    client = await busy.client()
    reply = await client.get(f"{client.urls['renewalInfo']}/AAAA.AQ")
    assert problem(reply) == (405, "malformed")
    assert reply.headers["allow"] == "GET, HEAD"


async def test_an_order_names_the_certificate_that_it_replaces(busy: Front) -> None:
    client, other = await busy.client(), await busy.client()
    der = await der_of(client, await busy.issued(client))
    name = cert_id(busy, der)
    reply = await client.order(LOCAL, replaces=name)
    assert (reply.status_code, reply.json()["replaces"]) == (201, name)
    assert (await client.get(reply.headers["location"])).json()["replaces"] == name
    same = await client.order(LOCAL, replaces=name)
    assert same.headers["location"] == reply.headers["location"]
    second = await client.order(LOCAL, "127.0.0.2", replaces=name)
    assert problem(second) == (409, "alreadyReplaced")
    assert problem(await other.order(LOCAL, replaces=name))[0] in (400, 403)
    assert problem(await client.order("a.example", replaces=name)) == (400, "malformed")
    await client.post(reply.json()["authorizations"][0], {"status": "deactivated"})
    again = await client.order(LOCAL, "127.0.0.2", replaces=name)
    assert again.status_code == 201  # the other order is invalid


async def test_renewal_information_of_one_ca_is_not_that_of_another(busy: Front) -> None:
    issued = await issue(busy.office.db, busy.office.ca)
    url = (await busy.stranger()).urls["renewalInfo"]
    name = ari.cert_id(bytes(20), int(issued.serial, 16))
    assert problem(await busy.http.get(f"{url}/{name}")) == (404, "malformed")
    right = cert_id(busy, issued.der)
    assert (await busy.http.get(f"{url}/{right}")).status_code == 200
    assert certificates.RENEWAL_RETRY_AFTER == 21600
