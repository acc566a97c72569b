"""Lists of revoked certificates: signed, numbered, renewed and brought forward by jobs; on both engines."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support.ca import Opened, change_ca, issue, opened_ca, revoked
from tests.support.engine import eventually, working
from tests.support.pki import crl_findings

from holdfast.core.own_ca.ca import CaOptions, Crl
from holdfast.core.revocation_reason import RevocationReason
from holdfast.core.work.job import Spec
from holdfast.engine import sweep
from holdfast.engine.own_ca import crls as crl_jobs
from holdfast.operations.installation import observe
from holdfast.operations.own_ca import manage as cas_of
from holdfast.operations.own_ca.revocation import CRL, GATHER_FOR
from holdfast.pki.refused import SignerRefused
from holdfast.ports import no_points
from holdfast.store import journal
from holdfast.store.database import Database
from holdfast.store.own_ca import crls
from holdfast.store.tx import Tx
from holdfast.store.work import jobs
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def signing(db: Database, opened: Opened) -> AsyncIterator[None]:
    async with working(db, [crl_jobs.kind(db, opened.authorities, opened.watch.telemetry)], watch=opened.watch):
        yield


async def the_list(db: Database, number: int, *, shard: int = 0) -> x509.CertificateRevocationList:
    """Wait for the first, second … list."""
    found: list[Crl] = []

    def look(tx: Tx) -> tuple[int, Crl | None]:
        events = journal.events_after(tx, 0, subject=f"ca1/{shard}", limit=500)
        return sum(each.name == "crl.signed" for each in events), crls.get(tx, "ca1", shard)

    async def there() -> bool:
        signed, crl = await db.read(look)
        found[:] = [] if crl is None or signed < number else [crl]
        return bool(found)

    await eventually(there)
    assert (await db.read(look))[0] == number
    return x509.load_der_x509_crl(found[0].der)


def number_of(crl: x509.CertificateRevocationList) -> int:
    return crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number


async def due_in(db: Database, subject: str = "ca1/0") -> timedelta:
    job, now = await db.read(lambda tx: (jobs.live(tx, CRL, subject), tx.now()))
    assert job is not None
    return job.due_at - now


async def due_now(db: Database, subject: str = "ca1/0") -> None:
    await db.write(lambda tx: jobs.bring_forward(tx, CRL, subject, tx.now()))


# ── Making them ──


async def test_a_new_ca_has_a_list_at_once_and_another_after_a_third_of_its_life(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    async with signing(db, opened):
        crl = await the_list(db, 1)
    assert len(crl) == 0
    assert crl.is_signature_valid(opened.ca.issuer.public_key)
    assert crl.next_update_utc is not None
    life = crl.next_update_utc - crl.last_update_utc
    assert life == timedelta(days=7)
    assert abs(await due_in(db) - life / 3) < timedelta(minutes=1)


async def test_a_revoked_certificate_is_on_the_next_list_within_a_minute(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    issued = await issue(db, opened.ca)
    async with signing(db, opened):
        await the_list(db, 1)
        await eventually(lambda: _sleeps(db))
        await revoked(db, issued, RevocationReason.KEY_COMPROMISE)
        assert timedelta(0) < await due_in(db) <= GATHER_FOR  # it gathers others, but not for long
        await due_now(db)
        crl = await the_list(db, 2)
    entry = crl.get_revoked_certificate_by_serial_number(int(issued.serial, 16))
    assert entry is not None
    assert entry.extensions.get_extension_for_class(x509.CRLReason).value.reason is x509.ReasonFlags.key_compromise
    assert await due_in(db) > timedelta(days=2)
    listed = await db.read(lambda tx: tx.row("SELECT listed_at FROM ca_certificates WHERE id = :id", id=issued.id))
    assert listed is not None
    assert listed["listed_at"] is not None


async def _sleeps(db: Database, subject: str = "ca1/0") -> bool:
    return await due_in(db, subject) > timedelta(days=1)


async def test_what_is_revoked_while_a_list_is_signed_brings_the_next_one_forward(db: Database, tmp_path: Path) -> None:
    """The revocation finds the job running, so that it cannot wake it; the answer of the job sees to it."""
    opened = await opened_ca(db, tmp_path)
    first, second = await issue(db, opened.ca), await issue(db, opened.ca, number=2)
    await revoked(db, first)
    [claim] = await db.write(lambda tx: jobs.claim(tx, holder="a", free={CRL: 1}, ttl=timedelta(minutes=1)))
    facts = await db.read(lambda tx: crl_jobs._facts(tx, "ca1", 0))
    await revoked(db, second)
    made = await crl_jobs._signed(opened.authorities, opened.ca, 0, facts)
    later = crl_jobs.Again(after=timedelta(days=2), write=lambda tx: crl_jobs._write(tx, made=made, facts=facts))
    await db.write(lambda tx: jobs.settle(tx, claim, later))
    assert await due_in(db) <= GATHER_FOR
    async with signing(db, opened):
        await due_now(db)
        assert len(await the_list(db, 2)) == 2


async def test_a_revocation_that_was_missed_is_found_by_the_reconciler(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    issued = await issue(db, opened.ca)
    async with signing(db, opened):
        await the_list(db, 1)
        await eventually(lambda: _sleeps(db))
    past = "UPDATE ca_certificates SET revoked_at = now_us() - 60000000, reason = 4 WHERE id = :id"
    await db.write(lambda tx: tx.run(past, id=issued.id))
    await sweep.reconcile(db, [crl_jobs.owed(SystemRandom())], no_points)
    assert await due_in(db) <= timedelta(0)


async def test_a_list_whose_job_vanished_gets_another(db: Database, tmp_path: Path) -> None:
    await opened_ca(db, tmp_path, options=CaOptions(shards=3))
    await db.write(lambda tx: tx.run("DELETE FROM jobs WHERE kind = :kind", kind=CRL))
    assert await sweep.reconcile(db, [crl_jobs.owed(SystemRandom())], no_points) == 3
    assert await sweep.reconcile(db, [crl_jobs.owed(SystemRandom())], no_points) == 0


async def test_each_shard_names_its_own_certificates_and_its_own_address(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path, options=CaOptions(shards=3))
    issued = [await revoked(db, await issue(db, opened.ca, number=n)) for n in range(1, 13)]
    async with signing(db, opened):
        lists = [await the_list(db, 1, shard=shard) for shard in range(3)]
    for shard, crl in enumerate(lists):
        mine = {int(each.serial, 16) for each in issued if each.shard == shard}
        assert {entry.serial_number for entry in crl} == mine
        place = crl.extensions.get_extension_for_class(x509.IssuingDistributionPoint)
        assert place.critical
        assert place.value.full_name is not None
        assert place.value.full_name[0].value == opened.policy.crl_url("ca1").replace("{shard}", str(shard))


async def test_pkilint_has_nothing_to_say_about_a_list(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    await revoked(db, await issue(db, opened.ca))
    async with signing(db, opened):
        crl = await the_list(db, 1)
    assert crl_findings(crl.public_bytes(Encoding.DER)) == []


@pytest.mark.parametrize("change", [{"shards": 2}, {"crl_lifetime_s": 3600}])
async def test_more_shards_or_another_life_bring_new_lists_at_once(
    db: Database, tmp_path: Path, change: dict[str, int]
) -> None:
    opened = await opened_ca(db, tmp_path)
    async with signing(db, opened):
        await the_list(db, 1)
        await eventually(lambda: _sleeps(db))
    await change_ca(db, "ca1", lambda was: replace(was, **change), actor="local:test")  # type: ignore[arg-type]
    for shard in range(change.get("shards", 1)):
        assert await due_in(db, f"ca1/{shard}") <= timedelta(0)


async def test_another_change_leaves_the_lists_alone(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    async with signing(db, opened):
        await the_list(db, 1)
        await eventually(lambda: _sleeps(db))
    await change_ca(db, "ca1", lambda was: replace(was, eab_required=True), actor="local:test")
    assert await _sleeps(db)


async def test_scrapers_are_told_when_the_lists_of_a_ca_end(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    async with signing(db, opened):
        crl = await the_list(db, 1)
    await observe.refresh(db, opened.watch.metrics, "holder", timedelta(seconds=30))
    assert crl.next_update_utc is not None
    shown = opened.watch.metric("crl_expires_timestamp_seconds", ca="ca1")
    assert abs(shown - crl.next_update_utc.timestamp()) < 1


# ── Numbers ──


async def test_the_number_of_a_list_only_grows(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    numbers = [int((await db.read(lambda tx: tx.now())).timestamp()) - 1]
    async with signing(db, opened):
        for nth in (1, 2, 3):
            numbers.append(number_of(await the_list(db, nth)))
            assert numbers[-1] > numbers[-2]
            await eventually(lambda: _sleeps(db))
            if nth < 3:
                await due_now(db)
    crl = await db.read(lambda tx: crls.get(tx, "ca1", 0))
    assert crl is not None
    for stale in numbers:
        assert not await db.write(lambda tx, stale=stale: crls.put(tx, replace(crl, number=stale)))  # type: ignore[misc]
    assert await db.write(lambda tx: crls.put(tx, replace(crl, number=numbers[-1] + 1)))


async def test_a_list_after_a_restore_has_a_higher_number_than_any_that_was_lost(db: Database, tmp_path: Path) -> None:
    """The store forgets its lists: clients that keep the highest number still take the next one."""
    opened = await opened_ca(db, tmp_path)
    async with signing(db, opened):
        published = number_of(await the_list(db, 1))
        await eventually(lambda: _sleeps(db))
        await db.write(lambda tx: tx.run("DELETE FROM crls"))
        await eventually(lambda: _later_than(db, published))
        await due_now(db)
        assert number_of(await the_list(db, 2)) > published


async def _later_than(db: Database, number: int) -> bool:
    return (await db.read(lambda tx: tx.now())).timestamp() >= number + 1


async def test_two_holders_of_the_job_cannot_both_write_their_list(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    claim = partial_claim(db)
    [slow] = await claim("a", timedelta(0))
    await db.write(lambda tx: tx.run("UPDATE jobs SET state = 'ready', fence = fence + 1 WHERE id = :id", id=slow.id))
    [quick] = await claim("b", timedelta(minutes=1))
    answers = []
    for holder in (quick, slow):
        facts = await db.read(lambda tx: crl_jobs._facts(tx, "ca1", 0))
        made = await crl_jobs._signed(opened.authorities, opened.ca, 0, replace(facts, number=1))
        again = crl_jobs.Again(
            after=timedelta(days=1), write=lambda tx, m=made, f=facts: crl_jobs._write(tx, made=m, facts=f)
        )
        settle: Callable[[Tx], None] = lambda tx, h=holder, a=again: jobs.settle(tx, h, a)  # type: ignore[misc]  # noqa: E731
        answers.append(await asyncio.gather(db.write(settle), return_exceptions=True))
    assert [type(each).__name__ for [each] in answers] == ["NoneType", "LeaseLost"]


def partial_claim(db: Database) -> Callable:  # type: ignore[type-arg]
    async def claim(holder: str, ttl: timedelta) -> list[crl_jobs.Work]:
        return await db.write(lambda tx: jobs.claim(tx, holder=holder, free={CRL: 1}, ttl=ttl))  # type: ignore[return-value]

    return claim


# ── What may be left out, and what goes wrong ──


async def test_an_expired_certificate_stays_until_it_was_on_a_list_made_after_its_end(
    db: Database, tmp_path: Path
) -> None:
    opened = await opened_ca(db, tmp_path)
    issued = await revoked(db, await issue(db, opened.ca))
    async with signing(db, opened):
        assert len(await the_list(db, 1)) == 1
        await eventually(lambda: _sleeps(db))
        ended = "UPDATE ca_certificates SET not_after = now_us() WHERE id = :id"
        await db.write(lambda tx: tx.run(ended, id=issued.id))
        await due_now(db)
        assert len(await the_list(db, 2)) == 1
        await eventually(lambda: _sleeps(db))
        await due_now(db)
        assert len(await the_list(db, 3)) == 0


async def test_a_ca_that_is_closed_goes_on_signing_lists(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    await db.write(lambda tx: cas_of.set_state(tx, "ca1", "closed", actor="local:test"))
    await opened.authorities.refresh()
    async with signing(db, opened):
        await the_list(db, 1)


async def test_a_signer_that_refuses_costs_a_minute_and_no_attempt(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)

    class Broken:
        public_key, quick = opened.ca.signer.public_key, True

        def sign(self, content: bytes) -> bytes:
            raise SignerRefused("hsm-refused", "The PIN is locked.")

    opened.authorities._opened["ca1"] = replace(opened.ca, signer=Broken())
    async with signing(db, opened):
        await eventually(lambda: opened.watch.log.told("crl.not_signed"))
        await eventually(lambda: _waits(db, "SIGNER_UNAVAILABLE"))


async def test_a_ca_that_cannot_be_opened_here_is_left_for_another_time(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    spec = Spec(id="job_x", kind=CRL, subject="gone/0")
    await db.write(lambda tx: jobs.enqueue(tx, spec))
    async with signing(db, opened):
        await eventually(lambda: _waits(db, "CA_NOT_OPEN", "gone/0"))


async def _waits(db: Database, reason: str, subject: str = "ca1/0") -> bool:
    job = await db.read(lambda tx: jobs.live(tx, CRL, subject))
    return job is not None and (job.state, job.reason, job.attempts) == ("ready", reason, 0)
