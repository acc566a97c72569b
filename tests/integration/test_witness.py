"""The witness: what our CAs sign and revoke is on the disk of the replica before anybody hears of it."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.support.acme_desk import Office, a_csr, open_office
from tests.support.engine import eventually
from tests.support.witnessed import no_room, witnessed

from holdfast.core import witness
from holdfast.core.own_ca.acme import Identifier, Order, OrderState
from holdfast.core.own_ca.ca import CaMode, CaOptions, IssuedCertificate
from holdfast.core.revocation_reason import RevocationReason
from holdfast.core.witness import Fact, RevokedSerial
from holdfast.errors import StoreUnavailable
from holdfast.operations.acme.context import Requester
from holdfast.operations.installation import observe
from holdfast.operations.own_ca import revocation
from holdfast.operations.own_ca.internal_orders import OwnCas
from holdfast.store import journal
from holdfast.store.database import Database, Engine
from holdfast.store.own_ca import certificates
from holdfast.witness_file import WitnessFile
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio
TRUSTING = CaOptions(mode=CaMode.TRUST)


class Killed(BaseException):
    """The process ends at a named point."""


@pytest.fixture
async def db(make_engine: Callable[[], Engine], tmp_path: Path) -> AsyncIterator[Database]:
    store = witnessed(make_engine(), tmp_path / "witness")
    yield store
    await store.close()


def told(db: Database) -> list[Fact]:
    assert db.witness is not None
    return [fact for content in db.witness.contents() for fact in witness.facts(content)[0]]


async def issued_by(office: Office) -> tuple[Requester, Order]:
    """An order that ended well, of a client that may have any name."""
    who = await office.client()
    names = """UPDATE acme_accounts SET names = '["*"]' WHERE id = :id"""
    await office.db.write(lambda tx: tx.run(names, id=who.account))
    order = await office.finalize(who, await office.order(who))
    return who, await office.ended(who, order.id)


async def stored(db: Database, certificate: str | None) -> IssuedCertificate:
    found = await db.read(lambda tx: certificates.get(tx, certificate or ""))
    assert found is not None
    return found


def revoke(db: Database, found: IssuedCertificate) -> object:
    job = SystemRandom().new_id("job")
    reason = RevocationReason.KEY_COMPROMISE
    return db.write(lambda tx: revocation.revoke(tx, found, reason, actor="human:alice", job=job))


async def test_an_issued_certificate_and_its_revocation_are_witnessed_as_they_are_stored(
    db: Database, tmp_path: Path
) -> None:
    async with open_office(db, tmp_path, options=TRUSTING) as office, office.working():
        _, order = await issued_by(office)
        found = await stored(db, order.certificate)
        assert found in told(db)
        await revoke(db, found)  # type: ignore[misc]
        now = await stored(db, found.id)
        [fact] = [fact for fact in told(db) if isinstance(fact, RevokedSerial)]
        assert (fact.ca, fact.serial, fact.reason, fact.at) == (now.ca, now.serial, 1, now.revoked_at)


async def test_what_is_ordered_in_process_is_witnessed_like_an_order_of_acme(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path, options=TRUSTING) as office, office.working():
        own, name = OwnCas(office.acme_context), Identifier("dns", "inside.example")
        await own.order("ca1", order_id="order_x", identifiers=(name,), csr=a_csr(name), profile=None, not_after=None)

        async def signed() -> bool:
            found = await own.find("order_x")
            return found is not None and found.state is OrderState.VALID

        await eventually(signed)
        assert [fact.order for fact in told(db) if isinstance(fact, IssuedCertificate)] == ["order_x"]


async def test_the_witness_is_written_before_the_commit_that_it_tells_of(
    make_engine: Callable[[], Engine], tmp_path: Path
) -> None:
    """A process that ends between the two leaves a certificate that nobody got, and that is known all the same."""

    def point(name: str) -> None:
        if name == "witness.written":
            raise Killed

    db = witnessed(make_engine(), tmp_path / "witness", points=point)
    async with open_office(db, tmp_path, options=TRUSTING) as office:
        who = await office.client()
        names = """UPDATE acme_accounts SET names = '["*"]' WHERE id = :id"""
        await db.write(lambda tx: tx.run(names, id=who.account))
        async with office.working():
            order = await office.finalize(who, await office.order(who))

            async def witnessed_once() -> bool:
                return any(isinstance(fact, IssuedCertificate) and fact.order == order.id for fact in told(db))

            await eventually(witnessed_once)
            assert await db.read(lambda tx: certificates.page(tx, ca="ca1")) == []
    await db.close()


async def test_without_room_for_the_witness_nothing_is_signed_and_the_order_waits(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path, options=TRUSTING) as office, office.working():
        assert db.witness is not None
        file = db.witness._file
        assert isinstance(file, WitnessFile)
        who = await office.client()
        names = """UPDATE acme_accounts SET names = '["*"]' WHERE id = :id"""
        await db.write(lambda tx: tx.run(names, id=who.account))
        with no_room(file):
            order = await office.finalize(who, await office.order(who))

            async def refused() -> bool:
                return "No space left on device" in await observe.store_problem(db)

            await eventually(refused)
            assert "Nothing is signed or revoked" in await observe.store_problem(db)
            assert await db.read(lambda tx: certificates.page(tx, ca="ca1")) == []
        assert (await office.ended(who, order.id)).state is OrderState.VALID
        assert await observe.store_problem(db) == ""


async def test_a_revocation_that_cannot_be_witnessed_is_refused_and_changes_nothing(
    db: Database, tmp_path: Path
) -> None:
    async with open_office(db, tmp_path, options=TRUSTING) as office, office.working():
        _, order = await issued_by(office)
        found = await stored(db, order.certificate)
        assert db.witness is not None
        file = db.witness._file
        assert isinstance(file, WitnessFile)
        with no_room(file), pytest.raises(StoreUnavailable, match=r"witness.*cannot be written"):
            await revoke(db, found)  # type: ignore[misc]
        assert (await stored(db, found.id)).revoked_at is None
        assert (await db.read(journal.verify)).ok


def test_the_witness_stays_within_its_limit_and_keeps_the_newest(tmp_path: Path) -> None:
    file = WitnessFile(tmp_path, limit=1000)
    for number in range(100):
        file.append([b"%064d\n" % number])
    content = b"".join(file.contents())
    assert len(content) <= 1000
    assert content.splitlines() == [b"%064d" % number for number in range(100 - len(content) // 65, 100)]
    assert len(content) > 400
    file.close()


def test_a_line_that_a_crash_cut_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "witness-1.log").write_bytes(b"cut he")
    file = WitnessFile(tmp_path, limit=1000)
    file.append([b"whole\n"])
    assert file.contents() == [b"cut he\nwhole\n"]
    file.close()


def test_processes_that_share_a_folder_write_to_files_of_their_own_and_read_all(tmp_path: Path) -> None:
    first, second = WitnessFile(tmp_path, limit=1000), WitnessFile(tmp_path, limit=1000)
    first.append([b"one\n"])
    second.append([b"two\n"])
    assert sorted(first.contents()) == [b"one\n", b"two\n"]
    first.close()
    third = WitnessFile(tmp_path, limit=1000)  # goes on with the files of the one that is gone
    third.append([b"three\n"])
    assert sorted(third.contents()) == [b"one\nthree\n", b"two\n"]
    second.close()
    third.close()
