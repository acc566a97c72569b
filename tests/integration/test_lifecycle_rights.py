"""Approvals, exports, adoptions, revocations and changes: who may do what, and what is written down; on both stores."""

from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import pkcs12
from tests.support.lifecycle import House, TruthfulCa, a_house, a_moving_house
from tests.support.secrets_planted import EXPORT_PASSPHRASE

from holdfast.core.certificate import Wanted
from holdfast.core.forecast_months import WhatIf
from holdfast.core.status import Phase
from holdfast.engine import renew
from holdfast.operations import approvals, certificates, desired, forecasting, issuers, keeping
from holdfast.operations.approvals import Decided, NotYours
from holdfast.pki import keys
from holdfast.secret import Secret
from holdfast.store import journal, versions
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
NAME = "www.example.com"


async def _audited(db: Database) -> list[tuple[str, str]]:
    return [(each.actor, each.action) for each in await db.read(lambda tx: journal.audit_page(tx, 0))]


async def _waiting(house: House) -> str:
    [pending] = await approvals.pending(house.keeper)
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
        await approvals.approve(house.keeper, approval, actor="local:alice")
    await approvals.approve(house.keeper, approval, actor="local:bob", note="fine")
    with pytest.raises(Decided):
        await approvals.reject(house.keeper, approval, actor="local:carol", note="too late")
    view = await house.worked(NAME)
    assert view.status.phase is Phase.OK
    assert ("local:bob", "approval_approved") in await _audited(db)


async def test_a_rejection_backs_off_like_any_failure(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.ask(NAME, approval_required=True)
    await approvals.reject(house.keeper, await _waiting(house), actor="local:bob", note="not this name")
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
        assert await approvals.time_out(house.keeper) == 0
        clock.ahead += timedelta(days=3, seconds=1)
        with pytest.raises(Decided):
            await approvals.approve(house.keeper, late, actor="local:bob")
        assert await approvals.time_out(house.keeper) == 1
        view = await house.view(NAME)
        assert view.status.reason_code == "APPROVAL_TIMED_OUT"
        clock.ahead += timedelta(hours=1, seconds=1)
        assert await renew.sweep(house.keeper) == 1
        assert await _waiting(house) != late
        assert house.cas["ca"].calls == []


@pytest.mark.parametrize("path", ["scheduled", "manual", "changed", "document", "revoked"])
async def test_every_path_to_a_certificate_asks_for_approval(tmp_path: Path, path: str) -> None:
    async with a_moving_house(tmp_path) as (house, clock):
        await house.ask(NAME, approval_required=True)
        await approvals.approve(house.keeper, await _waiting(house), actor="local:bob")
        before = await house.worked(NAME)
        if path == "scheduled":
            clock.ahead += timedelta(days=61)
            await renew.sweep(house.keeper)
        elif path == "manual":
            await certificates.renew(house.keeper, NAME, actor="local:carol")
        elif path == "document":
            entry = {"name": NAME, "names": [NAME, "b.example.com"], "issuers": ["ca"], "approval_required": True}
            await desired.apply(house.keeper, {"certificates": [entry]}, actor="local:carol")
        elif path == "revoked":
            await certificates.revoke(house.keeper, NAME, reason=1, actor="local:carol")
        else:
            wider = {"identifiers": certificates.identifiers_of([NAME, "b.example.com"])}
            await certificates.change(house.keeper, NAME, wider, actor="local:carol")
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
                await approvals.approve(house.keeper, approval, actor="local:carol")
        # Whoever asked long ago may approve a plain renewal: it asks for nothing new.
        await approvals.approve(house.keeper, approval, actor="local:alice" if path == "scheduled" else "local:dave")
        after = await house.worked(NAME)
        assert after.current is not None
        assert after.current.id != held.id


async def test_who_changed_the_wish_may_not_approve_what_the_sweep_begins(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.ask(NAME, approval_required=True)
    await certificates.set_state(house.keeper, NAME, "paused", actor="local:carol")
    wider = {"identifiers": certificates.identifiers_of([NAME, "b.example.com"])}
    await certificates.change(house.keeper, NAME, wider, actor="local:mallory")
    await certificates.set_state(house.keeper, NAME, "resumed", actor="local:carol")
    await renew.sweep(house.keeper)
    with pytest.raises(NotYours):
        await approvals.approve(house.keeper, await _waiting(house), actor="local:mallory")


async def test_who_changed_the_wish_may_not_approve_what_another_asks_for(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.ask(NAME, approval_required=True)
    await certificates.set_state(house.keeper, NAME, "paused", actor="local:carol")
    wider = {"identifiers": certificates.identifiers_of([NAME, "b.example.com"])}
    await certificates.change(house.keeper, NAME, wider, actor="local:mallory")
    await certificates.set_state(house.keeper, NAME, "resumed", actor="local:carol")
    await certificates.renew(house.keeper, NAME, actor="local:carol")
    for actor in ("local:mallory", "local:carol"):
        with pytest.raises(NotYours):
            await approvals.approve(house.keeper, await _waiting(house), actor=actor)
    await approvals.approve(house.keeper, await _waiting(house), actor="local:bob")


async def test_a_change_cannot_get_rid_of_the_second_person(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.ask(NAME, approval_required=True)
    lifted = {"approval_required": False}
    with pytest.raises(certificates.WishRefused):
        await certificates.change(house.keeper, NAME, lifted, actor="local:alice")
    changed = await certificates.change(house.keeper, NAME, lifted, actor="local:ciso", may_lift_approval=True)
    assert not changed.wanted.approval_required
    assert len(await approvals.pending(house.keeper)) == 1  # what waits goes on waiting


# ── Exports and adoptions ──


async def test_a_key_leaves_only_with_an_audit_row_and_fits_its_chain(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        view = await house.settled(NAME)
    public = await keeping.chain_of(house.keeper, NAME)
    assert public.key is None
    assert ("local:alice", "key_exported") not in await _audited(db)
    exported = await keeping.export(house.keeper, NAME, actor="local:alice")
    assert ("local:alice", "key_exported") in await _audited(db)
    assert exported.key is not None
    assert view.current is not None
    assert keys.spki_sha256(keys.from_pem(exported.key).public_key()).hex() == view.current.spki_sha256
    both = await keeping.export(house.keeper, NAME, form="combined", actor="local:alice")
    assert both.key is not None
    assert both.key.reveal().endswith(exported.chain)
    with pytest.raises(certificates.WishRefused):
        await keeping.export(house.keeper, NAME, form="pkcs12", actor="local:alice")
    boxed = await keeping.export(
        house.keeper, NAME, form="pkcs12", passphrase=Secret(EXPORT_PASSPHRASE), actor="local:alice"
    )
    assert boxed.key is not None
    key, leaf, _ = pkcs12.load_key_and_certificates(boxed.key.reveal(), EXPORT_PASSPHRASE.encode())
    assert key is not None
    assert leaf is not None
    assert f"{leaf.serial_number:x}" == view.current.serial


async def test_no_secret_is_in_any_audit_row_or_event(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        await house.settled(NAME)
    exported = await keeping.export(house.keeper, NAME, actor="local:alice")
    assert exported.key is not None
    line = exported.key.reveal().splitlines()[1].decode()
    for table in ("audit", "events", "jobs", "certificates", "certificate_versions", "issuances"):
        rows = await db.read(lambda tx, table=table: tx.rows(f"SELECT * FROM {table}"))  # type: ignore[misc]
        assert line not in str([dict(row) for row in rows])


async def test_a_certificate_of_elsewhere_is_kept_without_being_issued_anew(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        await house.settled(NAME)
    taken = await keeping.export(house.keeper, NAME, actor="local:alice")
    await certificates.set_state(house.keeper, NAME, "archived", actor="local:alice")
    wanted = Wanted(name="adopted", identifiers=certificates.identifiers_of([NAME]), issuers=("ca",))
    assert taken.key is not None
    await keeping.adopt(house.keeper, wanted, key_pem=taken.key, chain_pem=taken.chain, actor="local:alice")
    view = await house.attempt("adopted")
    assert view.status.phase is Phase.OK
    assert view.current is not None
    assert view.current.state == "imported"
    assert len(house.cas["ca"].issued) == 1
    async with house.working():
        await certificates.renew(house.keeper, "adopted", actor="local:alice")
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
    taken = await keeping.export(house.keeper, NAME, actor="local:alice")
    other = keys.to_pem(await keys.generate(keys.KeyKind.EC_P256))
    wanted = Wanted(name="adopted", identifiers=certificates.identifiers_of([NAME]), issuers=("ca",))
    with pytest.raises(certificates.WishRefused, match="another key"):
        await keeping.adopt(house.keeper, wanted, key_pem=other, chain_pem=taken.chain, actor="local:alice")
    assert await db.read(lambda tx: tx.rows("SELECT id FROM certificates WHERE name = 'adopted'")) == []


# ── Revocations ──


async def test_a_revoked_certificate_is_replaced_and_the_ca_is_told(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        before = await house.settled(NAME)
        await certificates.revoke(house.keeper, NAME, reason=1, actor="local:alice")
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
    with pytest.raises(certificates.WishRefused):
        await certificates.revoke(house.keeper, NAME, reason=7, actor="local:alice")


async def test_archiving_never_revokes(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        view = await house.settled(NAME)
        await certificates.set_state(house.keeper, view.certificate.id, "archived", actor="local:alice")
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
        changed = await certificates.change(
            house.keeper, NAME, {"owner": "platform", "labels": {"env": "prod"}}, actor="local:alice"
        )
        after = await house.settled(NAME)
    assert changed.generation == 1
    assert after.certificate.wanted.labels == {"env": "prod"}
    assert after.current == before.current
    assert after.certificate.next_action_at == before.certificate.next_action_at


async def test_a_change_that_was_made_on_old_knowledge_is_refused(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    view = await house.ask(NAME)
    version = view.certificate.version
    await certificates.change(house.keeper, NAME, {"owner": "a"}, actor="local:a", expect_version=version)
    with pytest.raises(certificates.Stale):
        await certificates.change(house.keeper, NAME, {"owner": "b"}, actor="local:b", expect_version=version)


async def test_a_certificate_is_found_by_name_id_and_prefix(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    view = await house.ask(NAME)
    for ref in (NAME, view.certificate.id, view.certificate.id[:-3]):
        assert (await house.view(ref)).certificate.id == view.certificate.id
    for ref in ("nothing.example.com", "cer", "x' OR '1'='1"):
        with pytest.raises(certificates.NoSuchCertificate):
            await house.view(ref)


# ── CAs ──


async def test_a_ca_is_added_once_and_tested_without_ordering(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    with pytest.raises(issuers.IssuerExists):
        await house.add("ca", TruthfulCa())
    with pytest.raises(issuers.IssuerRefused):
        await house.add("Not A Name", TruthfulCa())
    with pytest.raises(issuers.IssuerRefused):
        await house.add("limits", TruthfulCa(), limits={"orders": "many"})

    async def probe(row):  # type: ignore[no-untyped-def]
        return await house.cas[row.name].probe()

    assert await issuers.test(house.keeper, "ca", probe) == "fine"
    assert house.cas["ca"].calls == ["probe"]


async def test_the_year_to_come_is_counted_by_ca(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        for n in range(3):
            await house.ask(f"n{n}.example.com")
            await house.settled(f"n{n}.example.com")
    found = await forecasting.months_to_come(house.keeper, months=12, what_if=WhatIf())
    assert (found.certificates, found.first_problem) == (3, None)
    assert {each.issuer for each in found.months} == {"ca"}
    assert sum(each.orders for each in found.months) in range(12, 19)  # lives of 90 days, renewed at 60
