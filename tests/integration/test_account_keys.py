"""A new key for our account at a CA, whoever dies at whichever step of it: no account is lost; on both stores."""

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest
from tests.support.acme_face import Front, open_front
from tests.support.issuing import a_wish
from tests.support.lifecycle import a_house
from tests.support.upstream import Site, Through, a_site, add, ask

from holdfast.core.issuers.issuer import AccountRow
from holdfast.core.own_ca.ca import CaOptions
from holdfast.engine.issuance import accounts
from holdfast.engine.issuance import duties as issuance_duties
from holdfast.issuers.base import Issuer
from holdfast.operations.issuers import account_keys
from holdfast.operations.issuers.manage import IssuerRefused, NoSuchIssuer
from holdfast.ports import Request, Response
from holdfast.store import issuers, journal
from holdfast.store.database import Database
from holdfast.world import SystemRandom

new_id = SystemRandom().new_id
pytestmark = pytest.mark.anyio
LOCAL = "127.0.0.1"


class Died(Exception):
    """The process ends here."""


class Frail(Through):
    """A way to the CA on which whoever asks for a new key dies before it is heard, or before the answer is."""

    def __init__(self, front: Front) -> None:
        super().__init__(front)
        self.end: Literal["", "before", "after", "refused"] = ""
        self.changes = 0

    async def request(self, request: Request) -> Response:
        if not request.url.endswith("/key-change"):
            return await super().request(request)
        self.changes += 1
        if self.end == "refused":
            return Response(status=403, headers={}, body=b'{"type": "urn:ietf:params:acme:error:unauthorized"}')
        if self.end == "before":
            raise Died
        answer = await super().request(request)
        if self.end == "after":
            raise Died
        return answer


class Ours:
    def __init__(self, site: Site, way: Frail) -> None:
        self.site, self.way, self.db, self.certificate_context = (
            site,
            way,
            site.house.db,
            site.house.certificate_context,
        )

    async def account(self) -> AccountRow:
        found = await self.db.read(lambda tx: issuers.accounts_of(tx, "acme"))
        assert len(found) == 1, "a second account was made"
        return found[0]

    async def issuer(self) -> Issuer:
        """As another process makes it: with nothing in its memory."""
        row = await self.db.read(lambda tx: issuers.get(tx, "acme"))
        assert row is not None
        return await a_site(self.site.house, self.way).upstream.make(row)

    async def change(self, old: str) -> None:
        row = await self.db.read(lambda tx: issuers.get(tx, "acme"))
        assert row is not None
        await self.site.upstream.accounts.change_key(row, old)

    async def said(self) -> list[str]:
        rows = await self.db.read(
            lambda tx: tx.rows("SELECT action FROM audit WHERE action LIKE 'issuer_key_%' ORDER BY seq")
        )
        return [row["action"] for row in rows]

    async def secrets(self) -> set[str]:
        return {row["id"] for row in await self.db.read(lambda tx: tx.rows("SELECT id FROM secrets"))}


@pytest.fixture
async def ours(db: Database, tmp_path: Path) -> AsyncIterator[Ours]:
    house = await a_house(db, tmp_path)
    async with (
        open_front(db, tmp_path, options=CaOptions(permitted=(LOCAL,))) as front,
        front.office.working(),
    ):
        way = Frail(front)
        site = a_site(house, way, front.office.proofs)
        await add(site, directory=front.directory)
        found = Ours(site, way)
        await (await found.issuer()).probe()
        yield found


async def test_a_key_is_changed_by_a_job_and_certificates_come_as_before(ours: Ours) -> None:
    before = await ours.account()
    job = await ours.site.house.write(account_keys.change, "acme", job=new_id("job"), actor="local:alice")
    assert (
        await ours.site.house.write(account_keys.change, "acme", job=new_id("job"), actor="local:alice")
    ).id == job.id
    kinds = [
        *issuance_duties.kinds(ours.site.services),
        accounts.kind(ours.certificate_context, ours.site.upstream.accounts.change_key),
    ]
    async with ours.site.house.working(kinds=kinds, only=True):
        await ours.site.house.until_no_job(account_keys.ACCOUNT_KEY)
        await ask(ours.site, "site", LOCAL)
        assert (await ours.site.obtained("site")).current is not None
    after = await ours.account()
    assert (after.url, after.new_key_secret) == (before.url, None)
    assert after.key_secret != before.key_secret
    assert before.key_secret not in await ours.secrets()
    assert (await ours.said())[-3:] == ["issuer_key_asked", "issuer_key_begun", "issuer_key_changed"]
    assert (await ours.db.read(journal.verify)).ok


@pytest.mark.parametrize("end", ["before", "after"])
async def test_whoever_dies_at_it_leaves_it_to_the_next_who_asks_the_ca(
    ours: Ours, end: Literal["before", "after"]
) -> None:
    before, ours.way.end = await ours.account(), end
    with pytest.raises(Died):
        await ours.change(before.key_secret)
    meanwhile = await ours.account()
    assert meanwhile.key_secret == before.key_secret
    assert meanwhile.new_key_secret is not None, "it was kept before the CA heard of it"
    with suppress(Died):
        await ours.issuer()  # and at the second try, if it comes to that
    ours.way.end = ""
    await (await ours.issuer()).probe()
    after = await ours.account()
    assert (after.url, after.key_secret, after.new_key_secret) == (before.url, meanwhile.new_key_secret, None)
    assert before.key_secret not in await ours.secrets()


async def test_a_job_that_is_begun_anew_after_it_was_done_changes_nothing(ours: Ours) -> None:
    before = await ours.account()
    await ours.change(before.key_secret)
    after = await ours.account()
    await ours.change(before.key_secret)
    assert await ours.account() == after
    assert ours.way.changes == 1


@pytest.mark.parametrize("end", ["", "after"])
async def test_a_step_that_has_the_old_key_in_hand_is_not_refused(ours: Ours, end: Literal["", "after"]) -> None:
    """Also before it is written down here that the CA has taken the new one."""
    before, in_hand, ours.way.end = await ours.account(), await ours.issuer(), end
    with suppress(Died):
        await ours.change(before.key_secret)
    placed = await in_hand.place_order(a_wish(LOCAL))
    assert placed.ref
    assert (await ours.account()).url == before.url


async def test_a_key_that_the_ca_does_not_take_is_forgotten_and_the_old_one_stays_good(ours: Ours) -> None:
    before, ours.way.end = await ours.account(), "before"
    known = await ours.secrets()
    with pytest.raises(Died):
        await ours.change(before.key_secret)
    ours.way.end = "refused"
    await (await ours.issuer()).probe()
    assert await ours.account() == before
    assert await ours.secrets() == known
    assert (await ours.said())[-1] == "issuer_key_kept"


async def test_a_change_that_cannot_be_is_refused_with_the_reason(ours: Ours) -> None:
    with pytest.raises(NoSuchIssuer):
        await ours.site.house.write(account_keys.change, "nowhere", job=new_id("job"), actor="local:alice")
    with pytest.raises(IssuerRefused, match="no account key"):
        await ours.site.house.write(account_keys.change, "ca", job=new_id("job"), actor="local:alice")
    await ours.db.write(lambda tx: tx.run("UPDATE issuer_accounts SET state = 'gone'"))
    with pytest.raises(IssuerRefused, match="no account at acme yet"):
        await ours.site.house.write(account_keys.change, "acme", job=new_id("job"), actor="local:alice")


async def test_while_the_ca_looks_at_proofs_the_change_waits(ours: Ours) -> None:
    await ask(ours.site, "site", LOCAL)
    await ours.db.write(lambda tx: tx.run("UPDATE issuances SET state = 'proving'"))
    await ours.site.house.write(account_keys.change, "acme", job=new_id("job"), actor="local:alice")
    changing = accounts.kind(ours.certificate_context, ours.site.upstream.accounts.change_key)
    async with ours.site.house.working(kinds=[changing], only=True):

        async def waits() -> bool:
            rows = await ours.db.read(lambda tx: tx.rows("SELECT reason FROM jobs WHERE kind = 'account-key'"))
            return [row["reason"] for row in rows] == ["PROOFS_UNDER_WAY"]

        await ours.site.house.until(waits)
        assert ours.way.changes == 0
        await ours.site.house.cancel("site", actor="local:alice", why="a test")
        await ours.site.house.hurry()
        await ours.site.house.until_no_job(account_keys.ACCOUNT_KEY)
    assert ours.way.changes == 1
