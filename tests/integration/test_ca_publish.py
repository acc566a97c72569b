"""What everyone may fetch of a CA: lists, certificates, chains; at the addresses that certificates name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest
from cryptography import x509
from starlette.applications import Starlette
from tests.support.ca import Opened, issue, opened_ca
from tests.support.engine import eventually, working
from tests.support.pki import NOW, a_signer, an_issuer

from holdfast.core.finding import Level
from holdfast.engine.own_ca import crls as crl_jobs
from holdfast.errors import StoreUnavailable, TryLater
from holdfast.operations.installation.diagnosis import own_lists
from holdfast.operations.own_ca import publication
from holdfast.operations.own_ca.publication import Published
from holdfast.pki import crl
from holdfast.ports import Request, Response
from holdfast.store.database import Database
from holdfast.store.own_ca import crls
from holdfast.web import sites

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def asking(db: Database) -> AsyncIterator[httpx2.AsyncClient]:
    async def fetch(ca: str, name: str) -> Published | None:
        return await publication.fetch(db, ca, name)

    transport = httpx2.ASGITransport(app=Starlette(routes=[*sites.published_routes(fetch)]))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8630") as client:
        yield client


async def listed(db: Database, opened: Opened) -> None:
    async with working(db, [crl_jobs.kind(db, opened.authorities, opened.watch.telemetry)]):
        await eventually(lambda: db.read(lambda tx: crls.get(tx, "ca1", 0)))


async def test_the_addresses_in_a_certificate_lead_to_its_list_and_its_issuer(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    await listed(db, opened)
    leaf = x509.load_der_x509_certificate((await issue(db, opened.ca)).der)
    places = leaf.extensions.get_extension_for_class(x509.CRLDistributionPoints).value[0].full_name
    access = leaf.extensions.get_extension_for_class(x509.AuthorityInformationAccess).value
    assert places is not None
    async with asking(db) as client:
        crl = await client.get(places[0].value)
        issuer = await client.get(access[0].access_location.value)
    assert (crl.status_code, crl.headers["content-type"]) == (200, "application/pkix-crl")
    assert x509.load_der_x509_crl(crl.content).is_signature_valid(opened.ca.issuer.public_key)
    assert (issuer.status_code, issuer.headers["content-type"]) == (200, "application/pkix-cert")
    leaf.verify_directly_issued_by(x509.load_der_x509_certificate(issuer.content))


async def test_chain_and_root_are_there_in_pem(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    async with asking(db) as client:
        chain, root = await client.get("/pki/ca1/chain.pem"), await client.get("/pki/ca1/root.pem")
    assert chain.content == opened.ca.chain_pem
    assert root.content == opened.ca.root_pem


async def test_whoever_has_the_newest_list_is_not_sent_it_again(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    await listed(db, opened)
    async with asking(db) as client:
        first = await client.get("/pki/ca1/0.crl")
        tag = first.headers["etag"]
        again = await client.get("/pki/ca1/0.crl", headers={"If-None-Match": f'"other", W/{tag}'})
        other = await client.get("/pki/ca1/0.crl", headers={"If-None-Match": '"other"'})
        head = await client.head("/pki/ca1/0.crl")
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert other.status_code == 200
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(first.content)))


async def test_a_list_is_never_kept_beyond_its_end(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    await listed(db, opened)
    found = await publication.fetch(db, "ca1", "0.crl")
    assert found is not None
    assert found.fresh_for == publication.CRL_FRESH_FOR
    ending = "UPDATE crls SET next_update = now_us() + :left"
    for left, fresh in ((timedelta(seconds=30), 30), (timedelta(seconds=-30), 0)):
        await db.write(lambda tx, left=left: tx.run(ending, left=left))  # type: ignore[misc]
        found = await publication.fetch(db, "ca1", "0.crl")
        assert found is not None
        assert abs(found.fresh_for - fresh) <= 2


@pytest.mark.parametrize(
    "path",
    [
        "ca1/1.crl",
        "ca2/0.crl",
        "ca1/00.crl",
        "ca1/-1.crl",
        "ca1/x.crl",
        "ca1/key.pem",
        "ca2/root.pem",
        "ca1/9999999.crl",
    ],
)
async def test_what_is_not_there_is_not_found(db: Database, tmp_path: Path, path: str) -> None:
    await listed(db, await opened_ca(db, tmp_path))
    async with asking(db) as client:
        assert (await client.get(f"/pki/{path}")).status_code == 404


async def test_while_the_store_is_away_clients_are_told_to_come_back() -> None:
    async def away(ca: str, name: str) -> Published | None:
        raise StoreUnavailable("gone fishing")

    transport = httpx2.ASGITransport(app=Starlette(routes=[*sites.published_routes(away)]))
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
        answer = await client.get("/pki/ca1/0.crl")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "fishing" not in answer.text


# ── What `doctor` finds at those addresses ──


class Places:
    """A web that consists of these files."""

    def __init__(self, files: dict[str, bytes] | None) -> None:
        self._files = files

    async def request(self, request: Request) -> Response:
        if self._files is None:
            raise TryLater("ca.example: connection refused")
        found = self._files.get(request.url.removeprefix("http://ca.example/pki/ca1/"))
        return Response(status=404 if found is None else 200, headers={}, body=found or b"")


@pytest.mark.parametrize(
    ("there", "chosen", "level", "words"),
    [
        ({"0.crl": 0, "1.crl": 0, "root.crl": 0}, True, Level.OK, "reachable and current"),
        ({"0.crl": 0}, True, Level.OK, "reachable and current"),
        ({}, True, Level.BAD, "there is none at http://ca.example/pki/ca1/0.crl"),
        ({}, False, Level.NOTE, "yet"),
        (None, True, Level.BAD, "connection refused"),
        ({"0.crl": 0, "1.crl": 8}, True, Level.BAD, "1.crl: it begins only at"),
        ({"0.crl": -8}, True, Level.BAD, "0.crl: it ended at"),
        ({"0.crl": 0, "root.crl": -8}, True, Level.BAD, "root.crl: it ended at"),
        ({"0.crl": None}, True, Level.BAD, "is no CRL"),
    ],
    ids=["shards", "one", "none", "none-yet", "silent", "future", "past", "root-past", "page"],
)
async def test_doctor_looks_at_both_ends_of_each_list_where_it_should_be(
    there: dict[str, int | None] | None, chosen: bool, level: Level, words: str
) -> None:
    def made(days: int | None) -> bytes:
        begins = NOW + timedelta(days=days or 0)
        ends = begins + timedelta(days=7)
        signed = crl.sign(an_issuer(), a_signer(), number=1, this_update=begins, next_update=ends, revoked=(), shard=0)
        return b"<html>" if days is None else signed

    files = None if there is None else {name: made(days) for name, days in there.items()}
    [found] = await own_lists(Places(files), "http://ca.example", ["ca1"], NOW, chosen=chosen)
    assert (found.level, words in found.saw, bool(found.fix) or level is Level.OK) == (level, True, True)
