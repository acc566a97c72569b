"""The list of a root whose key is kept here: served from the first day, never lapsing, and able to end a CA."""

import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support.ca import Opened, authorities_of, do, issue, opened_ca, services_of
from tests.support.engine import eventually, working

from holdfast.engine import sweep
from holdfast.engine.own_ca import crls as crl_jobs
from holdfast.operations.context import Services
from holdfast.operations.own_ca import publication
from holdfast.operations.own_ca import root_crls as root_crl_operations
from holdfast.operations.own_ca.root_crls import ROOT_CRL, RootListRefused
from holdfast.pki.ceremony import crl_url_of
from holdfast.pki.signing import SigningCertificate
from holdfast.ports import no_points
from holdfast.store.database import Database
from holdfast.store.own_ca import cas, crls
from holdfast.store.work import jobs
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio


async def an_office(db: Database, folder: Path, **given: Any) -> tuple[Services, Opened]:
    """With a CA of before such lists, "ca1", and one that was made since, "made"."""
    opened = await opened_ca(db, folder)
    office = services_of(opened)
    await do(office, "ca.create", ca="made", name="Made", **given)
    return office, opened


async def served(db: Database, ca: str) -> x509.CertificateRevocationList | None:
    found = await publication.fetch(db, ca, "root.crl")
    return None if found is None else x509.load_der_x509_crl(found.content)


async def issuer_of(db: Database, ca: str) -> x509.Certificate:
    row = await db.read(lambda tx: cas.get(tx, ca))
    assert row is not None
    return x509.load_der_x509_certificate(row.certificate)


def number_of(crl: x509.CertificateRevocationList | None) -> int:
    assert crl is not None
    return crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number


# ── From making a CA to ending it ──


async def test_the_whole_chain_of_a_new_ca_can_be_checked_and_its_issuer_can_be_revoked(
    db: Database, tmp_path: Path
) -> None:
    office, opened = await an_office(db, tmp_path / "ca")
    assert crl_url_of(await issuer_of(db, "made")) == opened.policy.root_crl_url("made")
    made = opened.authorities.get("made")
    assert made is not None
    leaf = x509.load_der_x509_certificate((await issue(db, made)).der)
    async with working(db, [crl_jobs.kind(db, opened.authorities, opened.watch.telemetry)], watch=opened.watch):
        await eventually(lambda: _is_listed(db, "made"))

    async def verdict() -> str:
        own = await publication.fetch(db, "made", "0.crl")
        assert own is not None
        lists = [x509.load_der_x509_crl(own.content), await served(db, "made")]
        pems = [each.public_bytes(Encoding.PEM) for each in lists if each is not None]
        files = {"root": made.root_pem, "chain": made.chain_pem, "leaf": leaf.public_bytes(Encoding.PEM)}
        for name, content in {**files, "lists": b"".join(pems)}.items():
            (tmp_path / name).write_bytes(content)
        return openssl(tmp_path)

    assert "leaf: OK" in await verdict()
    serial = f"{(await issuer_of(db, 'made')).serial_number:x}"
    asked = {"ca": "made", "revoke": serial, "reason": "key-compromise"}
    assert (await do(office, "ca.root-crl", **asked, dry_run=True))["cut_off"] == [
        {"ca": "made", "good_certificates": 1}
    ]
    assert "leaf: OK" in await verdict()
    assert (await do(office, "ca.root-crl", **asked))["revoked"] == [serial]
    assert "error 23 at 1 depth" in await verdict()
    with pytest.raises(RootListRefused, match="already"):
        await do(office, "ca.root-crl", **asked)
    entry = next(iter(await served(db, "made") or ()))
    assert entry.extensions.get_extension_for_class(x509.CRLReason).value.reason is x509.ReasonFlags.ca_compromise


def openssl(folder: Path) -> str:
    words = "verify -CAfile root -untrusted chain -CRLfile lists -crl_check_all leaf"
    done = subprocess.run(["openssl", *words.split()], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


async def _is_listed(db: Database, ca: str) -> bool:
    return await db.read(lambda tx: crls.get(tx, ca, 0)) is not None


async def test_a_ca_of_before_has_no_such_list_until_one_is_signed_or_its_issuer_is_renewed(
    db: Database, tmp_path: Path
) -> None:
    office, opened = await an_office(db, tmp_path)
    assert await served(db, "ca1") is None
    assert await served(db, "nobody") is None
    assert crl_url_of(opened.ca.issuer.certificate) is None
    await do(office, "ca.root-crl", ca="ca1", days=30)
    first = number_of(await served(db, "ca1"))
    await do(office, "ca.root-crl", ca="made", days=3)
    due = await db.read(lambda tx: tx.rows("SELECT due_at - now_us() AS rest FROM jobs WHERE kind = :k", k=ROOT_CRL))
    assert sorted(round(row["rest"] / 86_400_000_000) for row in due) == [1, 10]  # a third of each life
    await do(office, "ca.renew", ca="ca1", years=6)
    assert crl_url_of(await issuer_of(db, "ca1")) == opened.policy.root_crl_url("ca1")
    assert number_of(await served(db, "ca1")) == first


# ── It never lapses ──


async def test_the_next_list_is_signed_long_before_the_last_ends_and_says_all_it_said(
    db: Database, tmp_path: Path
) -> None:
    office, opened = await an_office(db, tmp_path)
    await do(office, "ca.root-crl", ca="made", revoke="abcdef", reason="superseded")
    [before] = list(await served(db, "made") or ())
    kept, last = await db.read(lambda tx: crls.all_root_crls(tx)), number_of(await served(db, "made"))
    age = "UPDATE root_crls SET this_update = this_update - :by, next_update = next_update - :by"
    await db.write(lambda tx: tx.run(age, by=root_crl_operations.LIFE / 3 + timedelta(minutes=1)))
    await db.write(lambda tx: jobs.bring_forward(tx, ROOT_CRL, kept[0].root, tx.now()))
    async with working(db, [crl_jobs.root_kind(opened.secret_store, opened.watch.telemetry)], watch=opened.watch):
        await eventually(lambda: _is_later(db, last))
    after = await served(db, "made")
    assert [(each.serial_number, each.revocation_date_utc) for each in after or ()] == [
        (before.serial_number, before.revocation_date_utc)
    ]
    job, now = await db.read(lambda tx: (jobs.live(tx, ROOT_CRL, kept[0].root), tx.now()))
    assert job is not None
    assert root_crl_operations.LIFE / 4 < job.due_at - now < root_crl_operations.LIFE / 2


async def _is_later(db: Database, number: int) -> bool:
    return number_of(await served(db, "made")) > number


async def test_a_list_that_lost_its_job_gets_it_back_and_one_from_the_future_is_replaced(
    db: Database, tmp_path: Path
) -> None:
    await an_office(db, tmp_path)
    families = [crl_jobs.owed_roots(SystemRandom())]
    assert await sweep.reconcile(db, families, no_points) == 0
    await db.write(lambda tx: tx.run("DELETE FROM jobs"))
    assert await sweep.reconcile(db, families, no_points) == 1
    await db.write(lambda tx: tx.run("UPDATE root_crls SET this_update = this_update + 86400000000"))
    await db.write(lambda tx: tx.run("UPDATE jobs SET due_at = due_at + 86400000000"))
    await sweep.reconcile(db, families, no_points)
    [job] = await db.read(lambda tx: tx.rows("SELECT due_at <= now_us() AS due FROM jobs"))
    assert job["due"]


# ── The next one under the same root ──


async def test_the_next_issuer_is_confined_as_the_one_before_unless_it_is_said_otherwise(
    db: Database, tmp_path: Path
) -> None:
    office, _ = await an_office(db, tmp_path, confine=["corp.example"])
    for ca, wishes in {"same": {}, "other": {"confine": ["example.org"]}, "free": {"any_name": True}}.items():
        await do(office, "ca.create", ca=ca, name="Made", under="made", **wishes)  # type: ignore[arg-type]
    found = {ca: await issuer_of(db, ca) for ca in ("made", "same", "other", "free")}
    confined = {ca: SigningCertificate(id=ca, certificate=each).constraints for ca, each in found.items()}
    assert confined["same"] == confined["made"] is not None
    assert confined["other"] not in (None, confined["made"])
    assert confined["free"] is None
    assert len({each.subject for each in found.values()}) == 4  # one name with two keys would mislead
    assert len(await db.read(lambda tx: crls.all_root_crls(tx))) == 1
    assert number_of(await served(db, "same")) == number_of(await served(db, "made"))


async def test_what_is_only_tried_changes_nothing(db: Database, tmp_path: Path) -> None:
    office, opened = await an_office(db, tmp_path)
    eab = await do(office, "eab.create", ca="ca1")
    before, number = await db.read(lambda tx: tx.rows("SELECT seq FROM audit")), number_of(await served(db, "made"))
    assert (await do(office, "ca.create", ca="x", name="X", under="ca1", dry_run=True))["ca"] == "x"
    assert (await do(office, "ca.change", ca="ca1", shards=3, dry_run=True))["options"]["shards"] == 3
    assert (await do(office, "ca.open", ca="ca1", dry_run=True))["state"] == "active"
    assert (await do(office, "eab.revoke", kid=eab["kid"], dry_run=True))["state"] == "revoked"
    assert (await do(office, "keys.block", key="ab" * 32, why="", dry_run=True))["key"] == "ab" * 32
    assert (await do(office, "ca.root-crl", ca="made", dry_run=True))["number"] > number
    assert await db.read(lambda tx: tx.rows("SELECT seq FROM audit")) == before
    assert number_of(await served(db, "made")) == number
    authorities = authorities_of(opened.secret_store)
    await authorities.refresh()
    assert sorted(each.id for each in authorities.all()) == ["ca1", "made"]
