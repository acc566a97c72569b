"""The list of a root whose key is kept here: served from the first day, never lapsing, and able to end a CA."""

import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support.ca import Opened, authorities_of, issue, opened_ca
from tests.support.engine import eventually, working

from holdfast.engine import ca_crl, ca_root_crl, sweep
from holdfast.operations import publishing, root_lists, verbs
from holdfast.operations.root_lists import ROOT_CRL, RootListRefused
from holdfast.operations.verbs import Office
from holdfast.pki.ceremony import crl_url_of
from holdfast.pki.issuer import Issuer
from holdfast.ports import no_points
from holdfast.store import cas, crls, jobs, root_crls
from holdfast.store.database import Database
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio
GIVEN: dict[str, Any] = {"key": "ec-p256", "permit": [], "options": {}}


async def an_office(db: Database, folder: Path, **given: Any) -> tuple[Office, Opened]:
    """With a CA of before such lists, "ca1", and one that was made since, "made"."""
    opened = await opened_ca(db, folder)
    office = Office(
        vault=opened.vault,
        policy=opened.policy,
        refresh=opened.authorities.refresh,
        problem=opened.authorities.problem,
    )
    await do(office, "ca.create", ca="made", name="Made", **{**GIVEN, **given})
    return office, opened


async def do(office: Office, verb: str, **args: Any) -> Any:
    return await verbs.dispatch(office, verb, args, actor="local:alice")


async def served(db: Database, ca: str) -> x509.CertificateRevocationList | None:
    found = await publishing.fetch(db, ca, "root.crl")
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
    assert crl_url_of(await issuer_of(db, "made")) == office.policy.root_crl_url("made")
    made = opened.authorities.get("made")
    assert made is not None
    leaf = x509.load_der_x509_certificate((await issue(db, made)).der)
    async with working(db, [ca_crl.kind(db, opened.authorities, opened.watch.telemetry)], watch=opened.watch):
        await eventually(lambda: _is_listed(db, "made"))

    async def verdict() -> str:
        own = await publishing.fetch(db, "made", "0.crl")
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
    assert (await do(office, "ca.root-crl", **asked, dry_run=True))["cut_off"] == ["CA made with 1 good certificates"]
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
    assert number_of(await served(db, "ca1")) == 1
    await do(office, "ca.root-crl", ca="made", days=3)
    due = await db.read(lambda tx: tx.rows("SELECT due_at - now_us() AS rest FROM jobs WHERE kind = :k", k=ROOT_CRL))
    assert sorted(round(row["rest"] / 86_400_000_000) for row in due) == [1, 10]  # a third of each life
    await do(office, "ca.renew-issuer", ca="ca1", years=6)
    assert crl_url_of(await issuer_of(db, "ca1")) == office.policy.root_crl_url("ca1")
    assert number_of(await served(db, "ca1")) == 1


# ── It never lapses ──


async def test_the_next_list_is_signed_long_before_the_last_ends_and_says_all_it_said(
    db: Database, tmp_path: Path
) -> None:
    office, opened = await an_office(db, tmp_path)
    await do(office, "ca.root-crl", ca="made", revoke="abcdef", reason="superseded")
    [before] = list(await served(db, "made") or ())
    kept = await db.read(lambda tx: root_crls.everything(tx))
    age = "UPDATE root_crls SET this_update = this_update - :by, next_update = next_update - :by"
    await db.write(lambda tx: tx.run(age, by=root_lists.LIFE / 3 + timedelta(minutes=1)))
    await db.write(lambda tx: jobs.bring_forward(tx, ROOT_CRL, kept[0].root, tx.now()))
    async with working(db, [ca_root_crl.kind(opened.vault, opened.watch.telemetry)], watch=opened.watch):
        await eventually(lambda: _has_number(db, 3))
    after = await served(db, "made")
    assert [(each.serial_number, each.revocation_date_utc) for each in after or ()] == [
        (before.serial_number, before.revocation_date_utc)
    ]
    job, now = await db.read(lambda tx: (jobs.live(tx, ROOT_CRL, kept[0].root), tx.now()))
    assert job is not None
    assert root_lists.LIFE / 4 < job.due_at - now < root_lists.LIFE / 2


async def _has_number(db: Database, number: int) -> bool:
    return number_of(await served(db, "made")) == number


async def test_a_list_that_lost_its_job_gets_it_back_and_one_from_the_future_is_replaced(
    db: Database, tmp_path: Path
) -> None:
    await an_office(db, tmp_path)
    families = [ca_root_crl.owed(SystemRandom())]
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
    office, _ = await an_office(db, tmp_path, permit=["corp.example"])
    for ca, wishes in {"same": {}, "other": {"permit": ["example.org"]}, "free": {"any_name": True}}.items():
        await do(office, "ca.create", **{"ca": ca, "name": "Made", "under": "made", **GIVEN, **wishes})  # type: ignore[dict-item]
    found = {ca: await issuer_of(db, ca) for ca in ("made", "same", "other", "free")}
    confined = {ca: Issuer(id=ca, certificate=each).constraints for ca, each in found.items()}
    assert confined["same"] == confined["made"] is not None
    assert confined["other"] not in (None, confined["made"])
    assert confined["free"] is None
    assert len({each.subject for each in found.values()}) == 4  # one name with two keys would mislead
    assert len(await db.read(lambda tx: root_crls.everything(tx))) == 1
    assert number_of(await served(db, "same")) == 1


async def test_what_is_only_tried_changes_nothing(db: Database, tmp_path: Path) -> None:
    office, opened = await an_office(db, tmp_path)
    eab = await do(office, "eab.create", ca="ca1")
    before = await db.read(lambda tx: tx.rows("SELECT seq FROM audit"))
    assert (await do(office, "ca.create", ca="x", name="X", **GIVEN, under="ca1", dry_run=True))["under"] == "ca1"
    assert (await do(office, "ca.set", ca="ca1", changes={"shards": 3}, dry_run=True))["options"]["shards"] == 3
    assert (await do(office, "ca.open", ca="ca1", dry_run=True))["state"] == "active"
    assert (await do(office, "eab.revoke", kid=eab["kid"], dry_run=True))["state"] == "free"
    assert (await do(office, "key.block", key="ab" * 32, why="", dry_run=True))["key"] == "ab" * 32
    assert (await do(office, "ca.root-crl", ca="made", dry_run=True))["number"] == 2
    assert await db.read(lambda tx: tx.rows("SELECT seq FROM audit")) == before
    assert number_of(await served(db, "made")) == 1
    authorities = authorities_of(opened.vault)
    await authorities.refresh()
    assert sorted(each.id for each in authorities.all()) == ["ca1", "made"]
