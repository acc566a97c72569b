"""A key that is compromised: every certificate of it ends, also those of before, if whoever says so can know it."""

from pathlib import Path

import pytest
from tests.support.ca import do, issue, opened_ca, revoked, services_of

from holdfast.core.own_ca.ca import IssuedCertificate
from holdfast.core.revocation_reason import RevocationReason
from holdfast.operations.context import Services
from holdfast.operations.own_ca import clients, revocation
from holdfast.operations.own_ca.revocation import CRL, RevocationRight
from holdfast.store.database import Database
from holdfast.store.own_ca import certificates
from holdfast.store.work import jobs

pytestmark = pytest.mark.anyio


async def say_compromised(db: Database, issued: IssuedCertificate, standing: RevocationRight) -> bool:
    return await db.write(
        lambda tx: revocation.revoke(
            tx, issued, RevocationReason.KEY_COMPROMISE, actor="local:test", job="job_1", standing=standing
        )
    )


async def reason_of(db: Database, issued: IssuedCertificate) -> int | None:
    found = await db.read(lambda tx: certificates.get(tx, issued.id))
    assert found is not None
    return found.reason


async def is_blocked(db: Database, issued: IssuedCertificate) -> bool:
    return await db.read(lambda tx: certificates.blocked(tx, issued.spki_sha256))


@pytest.mark.parametrize("standing", [RevocationRight.KEY, RevocationRight.OWNER], ids=["key", "owner"])
async def test_what_was_revoked_for_less_is_listed_as_compromised(
    db: Database, tmp_path: Path, standing: RevocationRight
) -> None:
    opened = await opened_ca(db, tmp_path)
    issued = await revoked(db, await issue(db, opened.ca), RevocationReason.SUPERSEDED)
    await db.write(lambda tx: tx.run("UPDATE ca_certificates SET listed_at = now_us()"))
    await db.write(lambda tx: tx.run("UPDATE jobs SET due_at = due_at + 86400000000"))
    assert await say_compromised(db, issued, standing)
    assert await reason_of(db, issued) == RevocationReason.KEY_COMPROMISE.number
    assert await is_blocked(db, issued)
    job, now = await db.read(lambda tx: (jobs.live(tx, CRL, "ca1/0"), tx.now()))
    assert job is not None
    assert job.due_at <= now + revocation.GATHER_FOR
    assert not await say_compromised(db, issued, standing)


async def test_a_compromised_key_takes_all_its_certificates_along(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    first, second = await issue(db, opened.ca), await issue(db, opened.ca, "b.example")
    third = await revoked(db, await issue(db, opened.ca, "c.example"), RevocationReason.SUPERSEDED)
    other_key = await issue(db, opened.ca, number=2)
    assert await say_compromised(db, first, RevocationRight.KEY)
    assert [await reason_of(db, each) for each in (first, second, third, other_key)] == [1, 1, 1, None]


async def test_the_account_of_a_certificate_ends_that_one_and_blocks_its_key(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    first, second = await issue(db, opened.ca), await issue(db, opened.ca, "b.example")
    assert await say_compromised(db, first, RevocationRight.OWNER)
    assert (await reason_of(db, second), await is_blocked(db, first)) == (None, True)


async def test_who_only_has_the_names_ends_the_certificate_and_blocks_nobodys_key(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    first, second = await issue(db, opened.ca), await revoked(db, await issue(db, opened.ca, "b.example"))
    assert await say_compromised(db, first, RevocationRight.NAMES)
    assert not await say_compromised(db, second, RevocationRight.NAMES)
    assert [await reason_of(db, each) for each in (first, second)] == [1, 4]
    assert not await is_blocked(db, first)


async def test_an_operator_can_say_it_of_what_is_revoked_and_only_once(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    issued = await revoked(db, await issue(db, opened.ca))
    await say_it(services_of(opened), issued)
    with pytest.raises(clients.AlreadySo):
        await say_it(services_of(opened), issued)
    assert await reason_of(db, issued) == 1


async def say_it(services: Services, issued: IssuedCertificate) -> None:
    await do(services, "issued.revoke", ca="ca1", serial=issued.serial, reason="key-compromise")
