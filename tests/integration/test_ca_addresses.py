"""A CA that moves, or whose clock was ahead, is still believed about its old certificates; on both engines."""

import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support.ca import Opened, authorities_of, issue, opened_ca, revoked
from tests.support.engine import eventually, working

from holdfast.core.own_ca.ca import CaOptions, CaPolicy, Crl, IssuedCertificate
from holdfast.core.revocation_reason import RevocationReason
from holdfast.engine import sweep
from holdfast.engine.own_ca import crls as crl_jobs
from holdfast.operations.own_ca.revocation import CRL
from holdfast.ports import no_points
from holdfast.store.database import Database
from holdfast.store.own_ca import crls
from holdfast.store.work import jobs
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio
BEFORE, AFTER = CaPolicy(publish_url="http://before.example"), CaPolicy(publish_url="http://after.example")


async def moved(opened: Opened) -> Opened:
    """The same CA as a server sees it that was started with another address."""
    authorities = authorities_of(opened.secret_store, AFTER, opened.watch)
    await authorities.refresh()
    ca = authorities.get("ca1")
    assert ca is not None
    return Opened(opened.secret_store, authorities, ca, AFTER, opened.watch)


async def lists(db: Database, opened: Opened, shards: int) -> list[Crl]:
    """The next list of each shard, which its job signs now."""
    before = await _numbers(db, shards)
    for shard in range(shards):
        await db.write(lambda tx, n=shard: jobs.bring_forward(tx, CRL, f"ca1/{n}", tx.now()))  # type: ignore[misc]

    async def there() -> bool:
        return all(now > was for was, now in zip(before, await _numbers(db, shards), strict=True))

    async with working(db, [crl_jobs.kind(db, opened.authorities, opened.watch.telemetry)], watch=opened.watch):
        await eventually(there)
    return [each for each in await db.read(lambda tx: [crls.get(tx, "ca1", n) for n in range(shards)]) if each]


async def _numbers(db: Database, shards: int) -> list[int]:
    found = await db.read(lambda tx: [crls.get(tx, "ca1", n) for n in range(shards)])
    return [each.number if each else 0 for each in found]


def openssl(folder: Path, opened: Opened, found: list[Crl], issued: IssuedCertificate) -> str:
    """What a client says that checks a certificate against every list there is."""
    folder.mkdir(exist_ok=True)
    pem = [x509.load_der_x509_crl(each.der).public_bytes(Encoding.PEM) for each in found]
    leaf = x509.load_der_x509_certificate(issued.der).public_bytes(Encoding.PEM)
    files = {"root": opened.ca.root_pem, "chain": opened.ca.chain_pem, "lists": b"".join(pem), "leaf": leaf}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    command = "openssl verify -CAfile root -untrusted chain -CRLfile lists -extended_crl -crl_check leaf"
    done = subprocess.run(command.split(), cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("shards", [1, 2])
async def test_certificates_of_before_a_move_are_checked_with_the_lists_of_after_it(
    db: Database, tmp_path: Path, shards: int
) -> None:
    opened = await opened_ca(db, tmp_path / "ca", options=CaOptions(shards=shards), policy=BEFORE)
    old, bad = await issue(db, opened.ca), await issue(db, opened.ca, number=2)
    await lists(db, opened, shards)
    later = await moved(opened)
    new = await issue(db, later.ca, number=3)
    await revoked(db, bad, RevocationReason.SUPERSEDED)
    found = await lists(db, later, shards)
    assert "leaf: OK" in openssl(tmp_path, later, found, old)
    assert "leaf: OK" in openssl(tmp_path, later, found, new)
    assert "certificate revoked" in openssl(tmp_path, later, found, bad)


async def test_a_new_address_brings_the_next_lists_at_once(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path, options=CaOptions(shards=2), policy=BEFORE)
    await lists(db, opened, 2)
    await moved(opened)
    for shard in range(2):
        job, now = await db.read(lambda tx, n=shard: (jobs.live(tx, CRL, f"ca1/{n}"), tx.now()))  # type: ignore[misc]
        assert job is not None
        assert job.due_at <= now


async def test_the_addresses_of_before_are_read_from_the_last_list_where_they_were_not_kept(
    db: Database, tmp_path: Path
) -> None:
    opened = await opened_ca(db, tmp_path / "ca", options=CaOptions(shards=2), policy=BEFORE)
    old = await issue(db, opened.ca)
    await lists(db, opened, 2)
    await db.write(lambda tx: tx.run("DELETE FROM ca_addresses"))
    later = await moved(opened)
    assert "leaf: OK" in openssl(tmp_path, later, await lists(db, later, 2), old)


async def test_a_list_from_the_future_is_replaced_at_once_by_one_with_a_higher_number(
    db: Database, tmp_path: Path
) -> None:
    opened = await opened_ca(db, tmp_path)
    await lists(db, opened, 1)
    ahead = "UPDATE crls SET this_update = this_update + :by, next_update = next_update + :by"
    await db.write(lambda tx: tx.run(ahead, by=timedelta(days=30)))
    await db.write(lambda tx: tx.run("UPDATE jobs SET due_at = due_at + :by", by=timedelta(days=30)))
    await sweep.reconcile(db, [crl_jobs.owed(SystemRandom())], no_points)
    job, now = await db.read(lambda tx: (jobs.live(tx, CRL, "ca1/0"), tx.now()))
    assert job is not None
    assert job.due_at <= now
    [again] = await lists(db, opened, 1)
    assert again.this_update <= now + timedelta(minutes=1)
