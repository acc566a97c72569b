"""The whole way to a certificate over ACME: accounts, proofs from the store, renewal that says what it replaces."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from tests.support.challenge_server import WebServer, page
from tests.support.lifecycle import a_house
from tests.support.pebble import Pebble
from tests.support.upstream import Site, a_site, add, ask, our_site

from holdfast.core.status import Phase
from holdfast.engine.issuance import renewals
from holdfast.operations.issuance import challenge_responses
from holdfast.store import issuances, issuers
from holdfast.store.database import Database
from holdfast.world import HttpTransport

pytestmark = pytest.mark.anyio
LOCAL = "127.0.0.1"


# ── Our own server ──


@pytest.fixture
async def ours(db: Database, tmp_path: Path) -> AsyncIterator[Site]:
    async with our_site(db, tmp_path) as site:
        yield site


async def test_a_certificate_comes_over_acme_and_its_renewal_names_what_it_replaces(ours: Site) -> None:
    async with ours.working():
        await ask(ours, "site", LOCAL)
        first = await ours.obtained("site")
        assert first.status.phase is Phase.OK, first.status
        await ours.house.renew("site", actor="local:alice")
        second = await ours.obtained("site")
    assert first.current is not None
    assert second.current is not None
    assert second.current.id != first.current.id
    [newest, oldest] = await ours.house.db.read(lambda tx: issuances.of(tx, first.certificate.id))
    assert oldest.replaces is None
    assert newest.replaces is not None
    accounts = await ours.house.db.read(lambda tx: issuers.accounts_of(tx, "acme"))
    assert [each.state for each in accounts] == ["valid"]
    assert first.current.account == accounts[0].url
    rows = await ours.house.db.read(lambda tx: tx.rows("SELECT token FROM challenge_responses"))
    assert rows == []


async def test_many_for_the_same_names_share_one_account_and_no_order(ours: Site) -> None:
    """A CA gives whoever asks twice for the same the same order, and that has one key."""
    async with ours.working():
        await asyncio.gather(*(ask(ours, f"site{n}", LOCAL) for n in range(6)))
        for n in range(6):
            view = await ours.obtained(f"site{n}")
            assert view.current is not None, view.status
    accounts = await ours.house.db.read(lambda tx: issuers.accounts_of(tx, "acme"))
    assert len(accounts) == 1
    used = await ours.house.db.read(lambda tx: tx.rows("SELECT ref FROM issuances"))
    assert len({row["ref"] for row in used}) == 6


async def test_a_name_that_the_ca_does_not_issue_for_is_told_with_its_reason(ours: Site) -> None:
    async with ours.working():
        await ask(ours, "site", "10.9.8.7")
        view = await ours.obtained("site")
    assert view.current is None
    assert view.status.reason_code == "NAME_REFUSED"
    assert view.status.next_attempt_at is not None


async def test_an_account_that_the_ca_forgot_is_made_anew(ours: Site) -> None:
    async with ours.working():
        await ask(ours, "site", LOCAL)
        await ours.obtained("site")
        await ours.house.db.write(lambda tx: tx.run("UPDATE issuer_accounts SET url = url || 'x'"))
        await ours.house.renew("site", actor="local:alice")
        view = await ours.obtained("site")
    assert view.certificate.failing is None
    states = [each.state for each in await ours.house.db.read(lambda tx: issuers.accounts_of(tx, "acme"))]
    assert states == ["gone", "valid"]


async def test_what_is_revoked_there_is_renewed_by_its_window(ours: Site) -> None:
    async with ours.working():
        await ask(ours, "site", LOCAL)
        before = await ours.obtained("site")
        await ours.house.revoke("site", reason=4, actor="local:alice")
        after = await ours.obtained("site")
        await ours.house.until_no_job("revoke")
        assert await renewals.sweep_ari(ours.house.certificate_context) == 1
        await ours.house.until_no_job("ari")
    view = await ours.house.view("site")
    assert after.current != before.current
    assert view.certificate.ari is not None
    assert view.current is not None
    assert view.current.not_before < view.certificate.ari.start < view.current.not_after


# ── Pebble, which refuses half of all good nonces ──


@pytest.fixture(scope="module")
def pebble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pebble]:
    with Pebble(tmp_path_factory.mktemp("pebble"), nonces=50, sleep=1) as pebble:
        yield pebble


@pytest.fixture
async def transport() -> AsyncIterator[HttpTransport]:
    found = HttpTransport()
    yield found
    await found.close()


async def test_pebble_gives_and_renews_and_revokes(
    db: Database, tmp_path: Path, pebble: Pebble, transport: HttpTransport
) -> None:
    house = await a_house(db, tmp_path)
    site = a_site(house, transport)
    await add(site, directory=pebble.place.directory, roots=pebble.place.roots.decode())

    async def respond(head: str, writer: asyncio.StreamWriter) -> None:
        token = head.split()[1].removeprefix("/.well-known/acme-challenge/")
        found = await challenge_responses.http01(db, token)
        writer.write(page(found.encode()) if found else page(b"", status="404 Not Found"))

    async with WebServer(respond, port=pebble.http_port), site.working():
        await ask(site, "site", "a.holdfast.test", "b.holdfast.test")
        first = await site.obtained("site")
        assert first.current is not None, first.status
        await house.renew("site", actor="local:alice")
        second = await site.obtained("site")
        assert second.current is not None
        assert second.current.id != first.current.id
        await house.revoke("site", reason=1, actor="local:alice", version=first.current.id)

        async def told() -> bool:
            await house.hurry()
            return not await db.read(lambda tx: tx.rows("SELECT id FROM jobs WHERE kind = 'revoke'"))

        await house.until(told)
    leaf = x509.load_pem_x509_certificates(first.current.chain_pem.encode())[0]
    assert pebble.status_of(leaf) == "Revoked"
    attempts = await db.read(lambda tx: issuances.of(tx, first.certificate.id))
    assert [each.state.value for each in attempts] == ["issued", "issued"]
