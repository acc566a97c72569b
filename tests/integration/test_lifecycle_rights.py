"""Approvals, exports, adoptions, revocations and changes: who may do what, and what is written down; on both stores."""

import base64
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import pkcs12
from pydantic import ValidationError
from tests.support.lifecycle import House, TruthfulCa, a_house, a_moving_house
from tests.support.running import context_of, run, services_of
from tests.support.secrets_planted import EXPORT_PASSPHRASE

from holdfast.core.certificate import CertificateSpec
from holdfast.core.status import Phase
from holdfast.engine.issuance import renewals
from holdfast.operations.certificates import documents, key_export, lifecycle, statistics
from holdfast.operations.certificates.checks import SpecificationRefused, identifiers_of
from holdfast.operations.certificates.refs import NoSuchCertificate
from holdfast.operations.issuance import approvals
from holdfast.operations.issuance.approvals import Decided, NotYours
from holdfast.operations.issuers import manage as manage_issuers
from holdfast.operations.runner import Options
from holdfast.pki import keys
from holdfast.secret import Secret
from holdfast.store import journal, versions
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
NAME = "www.example.com"


async def _audited(db: Database) -> list[tuple[str, str]]:
    return [(each.actor, each.action) for each in await db.read(lambda tx: journal.audit_page(tx, 0))]


async def _waiting(house: House) -> str:
    [pending] = await house.pending()
    return pending.id


# ── Approvals ──


async def test_nothing_is_ordered_before_a_second_person_approves(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    view = await house.ask(NAME, approval_required=True)
    assert (view.status.phase, view.status.reason_code) == (Phase.AWAITING_APPROVAL, "AWAITING_APPROVAL")
    assert view.status.acts_next == "approver"
    assert await db.read(lambda tx: tx.rows("SELECT id FROM jobs WHERE kind = 'issue'")) == []
    approval = await _waiting(house)
    with pytest.raises(NotYours):
        await house.approve(approval, actor="local:alice")
    await house.approve(approval, actor="local:bob", note="fine")
    with pytest.raises(Decided):
        await house.reject(approval, actor="local:carol", note="too late")
    view = await house.worked(NAME)
    assert view.status.phase is Phase.OK
    assert ("local:bob", "approval_approved") in await _audited(db)


async def test_a_rejection_backs_off_like_any_failure(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.ask(NAME, approval_required=True)
    await house.reject(await _waiting(house), actor="local:bob", note="not this name")
    view = await house.view(NAME)
    assert (view.status.reason_code, view.status.attempt) == ("APPROVAL_REJECTED", 1)
    assert view.status.last_error == "not this name"
    assert view.certificate.failing is not None
    assert view.status.next_attempt_at == view.certificate.failing.last_at + timedelta(hours=1)
    assert house.cas["ca"].calls == []


async def test_what_nobody_decides_is_rejected_and_the_next_attempt_asks_again(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path) as (house, clock):
        await house.ask(NAME, approval_required=True)
        late = await _waiting(house)
        assert await approvals.time_out(house.certificate_context) == 0
        clock.ahead += timedelta(days=3, seconds=1)
        with pytest.raises(Decided):
            await house.approve(late, actor="local:bob")
        assert await approvals.time_out(house.certificate_context) == 1
        view = await house.view(NAME)
        assert view.status.reason_code == "APPROVAL_TIMED_OUT"
        clock.ahead += timedelta(hours=1, seconds=1)
        assert await renewals.sweep_due(house.certificate_context) == 1
        assert await _waiting(house) != late
        assert house.cas["ca"].calls == []


@pytest.mark.parametrize("path", ["scheduled", "manual", "changed", "document", "revoked"])
async def test_every_path_to_a_certificate_asks_for_approval(tmp_path: Path, path: str) -> None:
    async with a_moving_house(tmp_path) as (house, clock):
        await house.ask(NAME, approval_required=True)
        await house.approve(await _waiting(house), actor="local:bob")
        before = await house.worked(NAME)
        if path == "scheduled":
            clock.ahead += timedelta(days=61)
            await renewals.sweep_due(house.certificate_context)
        elif path == "manual":
            await house.renew(NAME, actor="local:carol")
        elif path == "document":
            entry = {"name": NAME, "names": [NAME, "b.example.com"], "issuers": ["ca"], "approval_required": True}
            await documents.applied(
                context_of(house.certificate_context, actor="local:carol"), {"certificates": [entry]}
            )
        elif path == "revoked":
            await house.revoke(NAME, reason=1, actor="local:carol")
        else:
            await house.change(NAME, names=[NAME, "b.example.com"], actor="local:carol")
        view = await house.view(NAME)
        assert view.status.phase is Phase.AWAITING_APPROVAL
        async with house.working():
            await house.until_no_job("revoke")  # the CA is told at once: that needs nobody's word
        held, asked = before.current, (await house.view(NAME)).current
        assert held is not None
        assert asked is not None
        assert (asked.id, house.cas["ca"].calls.count("place")) == (held.id, 1)
        approval = await _waiting(house)
        if path != "scheduled":
            with pytest.raises(NotYours):
                await house.approve(approval, actor="local:carol")
        # Whoever asked long ago may approve a plain renewal: it asks for nothing new.
        await house.approve(approval, actor="local:alice" if path == "scheduled" else "local:dave")
        after = await house.worked(NAME)
        assert after.current is not None
        assert after.current.id != held.id


async def test_who_changed_the_wish_may_not_approve_what_the_sweep_begins(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.ask(NAME, approval_required=True)
    await house.set_state(NAME, "paused", actor="local:carol")
    await house.change(NAME, names=[NAME, "b.example.com"], actor="local:mallory")
    await house.set_state(NAME, "resumed", actor="local:carol")
    await renewals.sweep_due(house.certificate_context)
    with pytest.raises(NotYours):
        await house.approve(await _waiting(house), actor="local:mallory")


async def test_who_changed_the_wish_may_not_approve_what_another_asks_for(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.ask(NAME, approval_required=True)
    await house.set_state(NAME, "paused", actor="local:carol")
    await house.change(NAME, names=[NAME, "b.example.com"], actor="local:mallory")
    await house.set_state(NAME, "resumed", actor="local:carol")
    await house.renew(NAME, actor="local:carol")
    for actor in ("local:mallory", "local:carol"):
        with pytest.raises(NotYours):
            await house.approve(await _waiting(house), actor=actor)
    await house.approve(await _waiting(house), actor="local:bob")


async def test_a_change_cannot_get_rid_of_the_second_person(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.ask(NAME, approval_required=True)
    lifted = {"approval_required": False}
    with pytest.raises(SpecificationRefused):
        await house.change(NAME, **lifted, actor="local:alice")
    ids = house.certificate_context.ids()
    changed = await db.write(
        lambda tx: lifecycle.change_wanted(tx, NAME, lifted, ids, actor="local:ciso", may_lift_approval=True)
    )
    assert not changed.wanted.approval_required
    assert len(await house.pending()) == 1  # what waits goes on waiting


# ── Exports and adoptions ──


async def test_a_key_leaves_only_with_an_audit_row_and_fits_its_chain(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        view = await house.settled(NAME)
    public = await house.do(key_export.chain, ref=NAME)
    assert "PRIVATE KEY" not in public
    assert ("local:alice", "key_exported") not in await _audited(db)
    exported = await house.do(key_export.export, ref=NAME)
    assert ("local:alice", "key_exported") in await _audited(db)
    assert view.current is not None
    key = keys.from_pem(Secret(exported.key_pem.encode()))
    assert keys.spki_sha256(key.public_key()).hex() == view.current.spki_sha256
    assert exported.chain_pem == public
    both = await house.do(key_export.export, ref=NAME, form="combined")
    assert both.key_pem == exported.key_pem + public
    with pytest.raises(SpecificationRefused):
        await house.do(key_export.export, ref=NAME, form="pkcs12")
    boxed = await house.do(key_export.export, ref=NAME, form="pkcs12", passphrase=EXPORT_PASSPHRASE)
    assert boxed.key_pem is None
    key, leaf, _ = pkcs12.load_key_and_certificates(base64.b64decode(boxed.pkcs12), EXPORT_PASSPHRASE.encode())
    assert key is not None
    assert leaf is not None
    assert f"{leaf.serial_number:x}" == view.current.serial


async def test_no_secret_is_in_any_audit_row_or_event(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        await house.settled(NAME)
    exported = await house.do(key_export.export, ref=NAME)
    line = exported.key_pem.splitlines()[1]
    for table in ("audit", "events", "jobs", "certificates", "certificate_versions", "issuances"):
        rows = await db.read(lambda tx, table=table: tx.rows(f"SELECT * FROM {table}"))  # type: ignore[misc]
        assert line not in str([dict(row) for row in rows])


async def test_a_certificate_of_elsewhere_is_kept_without_being_issued_anew(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        await house.settled(NAME)
    taken = await house.do(key_export.export, ref=NAME)
    await house.set_state(NAME, "archived", actor="local:alice")
    spec = CertificateSpec(name="adopted", identifiers=identifiers_of([NAME]), issuers=("ca",))
    key, chain = Secret(taken.key_pem.encode()), taken.chain_pem.encode()
    await db.write(
        await key_export.adopted(house.certificate_context, spec, key_pem=key, chain_pem=chain, actor="local:alice")
    )
    view = await house.attempt("adopted")
    assert view.status.phase is Phase.OK
    assert view.current is not None
    assert view.current.state == "imported"
    assert len(house.cas["ca"].issued) == 1
    async with house.working():
        await house.renew("adopted", actor="local:alice")
        renewed = await house.settled("adopted")
    assert renewed.current is not None
    assert renewed.current.id != view.current.id
    old = await db.read(lambda tx: versions.get(tx, view.current.id))  # type: ignore[union-attr]
    assert old is not None
    assert old.state == "superseded"


async def test_what_does_not_fit_together_is_not_adopted(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        await house.settled(NAME)
    taken = await house.do(key_export.export, ref=NAME)
    other = keys.to_pem(await keys.generate(keys.KeyKind.EC_P256))
    spec = CertificateSpec(name="adopted", identifiers=identifiers_of([NAME]), issuers=("ca",))
    chain = taken.chain_pem.encode()
    adopted = await key_export.adopted(
        house.certificate_context, spec, key_pem=other, chain_pem=chain, actor="local:alice"
    )
    with pytest.raises(SpecificationRefused, match="another key"):
        await db.write(adopted)
    assert await db.read(lambda tx: tx.rows("SELECT id FROM certificates WHERE name = 'adopted'")) == []


# ── Revocations ──


async def test_a_revoked_certificate_is_replaced_and_the_ca_is_told(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        before = await house.settled(NAME)
        await house.revoke(NAME, reason=1, actor="local:alice")
        after = await house.settled(NAME)
        await house.until_no_job("revoke")
    assert before.current is not None
    assert after.current is not None
    assert after.current.id != before.current.id
    assert [reason for _, reason in house.cas["ca"].revoked] == [1]
    actions = [action for _, action in await _audited(db)]
    assert actions.count("version_revoked") == 1


async def test_an_unknown_reason_of_revocation_is_refused(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.ask(NAME)
    with pytest.raises(ValidationError):
        await house.do(lifecycle.revoke, ref=NAME, reason="certificate-hold")


async def test_archiving_never_revokes(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        view = await house.settled(NAME)
        await house.set_state(view.certificate.id, "archived", actor="local:alice")
        after = await house.attempt(view.certificate.id)
    assert after.status.phase is Phase.ARCHIVED
    assert house.cas["ca"].revoked == []
    assert after.current == view.current


# ── Changes ──


async def test_a_change_of_owner_or_labels_issues_nothing(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        before = await house.settled(NAME)
        changed = await house.change(NAME, owner="platform", labels={"env": "prod"})
        after = await house.settled(NAME)
    assert changed.generation == 1
    assert after.certificate.wanted.labels == {"env": "prod"}
    assert after.current == before.current
    assert after.certificate.next_action_at == before.certificate.next_action_at


async def test_a_change_that_was_made_on_old_knowledge_is_refused(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    view = await house.ask(NAME)
    version = view.certificate.version
    await house.change(NAME, owner="a", actor="local:a", options=Options(expected_version=version))
    with pytest.raises(lifecycle.Stale):
        await house.change(NAME, owner="b", actor="local:b", options=Options(expected_version=version))


async def test_a_certificate_is_found_by_name_id_and_prefix(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    view = await house.ask(NAME)
    for ref in (NAME, view.certificate.id, view.certificate.id[:-3]):
        assert (await house.view(ref)).certificate.id == view.certificate.id
    for ref in ("nothing.example.com", "cer", "x' OR '1'='1"):
        with pytest.raises(NoSuchCertificate):
            await house.view(ref)


# ── CAs ──


async def test_a_ca_is_added_once_and_tested_without_ordering(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    with pytest.raises(manage_issuers.IssuerExists):
        await house.add("ca", TruthfulCa())
    with pytest.raises(ValidationError):
        await house.add("Not A Name", TruthfulCa())
    with pytest.raises(manage_issuers.IssuerRefused):
        await house.add("limits", TruthfulCa(), limits={"orders": "many"})

    async def probe(row):  # type: ignore[no-untyped-def]
        return await house.cas[row.name].probe()

    assert (
        await run(services_of(house.certificate_context, probe=probe), manage_issuers.test, name="ca")
    ).detail == "fine"
    assert house.cas["ca"].calls == ["probe"]


async def test_the_year_to_come_is_counted_by_ca(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        for n in range(3):
            await house.ask(f"n{n}.example.com")
            await house.settled(f"n{n}.example.com")
    found = await house.do(statistics.forecast, months=12)
    assert (found.certificates, found.fits) == (3, True)
    assert {each.issuer for each in found.months} == {"ca"}
    assert sum(each.orders for each in found.months) in range(12, 19)  # lives of 90 days, renewed at 60
