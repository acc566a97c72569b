"""Certificates obtained step by step, from a CA with its own truth and from our own; on both stores."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from tests.support.acme_desk import open_office
from tests.support.ca import services_for
from tests.support.lifecycle import House, TruthfulCa, a_house
from tests.support.running import run

from holdfast.core.issuance import IssuanceState
from holdfast.core.status import Phase
from holdfast.engine import sweep
from holdfast.engine.issuance import duties as issuance_duties
from holdfast.engine.issuance import renewals
from holdfast.engine.own_ca import signing as ca_signing
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import Failed
from holdfast.issuers.own_ca import LocalIssuer
from holdfast.operations.acme.certificates import tell_uncollected
from holdfast.operations.certificates import lifecycle
from holdfast.operations.certificates.checks import SpecificationRefused, UnknownIssuer, identifiers_of
from holdfast.operations.issuers import manage as manage_issuers
from holdfast.operations.own_ca import issued
from holdfast.operations.own_ca.internal_orders import OwnCas
from holdfast.pki import keys
from holdfast.pki.chain import parse_bundle
from holdfast.pki.refused import NameRefused
from holdfast.ports import no_points
from holdfast.store import issuances, journal, versions
from holdfast.store.database import Database
from holdfast.store.own_ca import certificates
from holdfast.store.work import budgets

pytestmark = pytest.mark.anyio
NAME = "www.example.com"


async def _count(db: Database, table: str) -> int:
    rows = await db.read(lambda tx: tx.rows(f"SELECT COUNT(*) AS n FROM {table}"))
    return int(rows[0]["n"])


async def _holds_a_usable_pair(house: House, ref: str = NAME) -> x509.Certificate:
    view = await house.view(ref)
    assert view.current is not None, view.status
    leaf = parse_bundle(view.current.chain_pem.encode())[0]
    key = keys.from_pem(await house.key_of(view))
    assert leaf.public_key() == key.public_key()
    return leaf


# ── One certificate ──


async def test_a_certificate_that_is_asked_for_is_obtained(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME, "10.0.0.1")
        view = await house.settled(NAME)
    assert view.status.phase is Phase.OK
    assert view.status.next_attempt_at is not None
    await _holds_a_usable_pair(house)
    [attempt] = await db.read(lambda tx: issuances.of(tx, view.certificate.id))
    assert attempt.state is IssuanceState.ISSUED
    assert len(house.cas["ca"].issued) == 1
    verdict = await db.read(journal.verify)
    assert verdict.ok, verdict.problem
    events = [each.name for each in await house.timeline(NAME)]
    assert events == [
        "certificate.requested",
        "issuance.begun",
        "issuance.key_stored",
        "issuance.ordered",
        "issuance.finalizing",
        "certificate.activated",
    ]


async def test_our_own_ca_issues_by_the_pipeline_of_all_orders(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with open_office(db, tmp_path) as office:
        await house.add("own", LocalIssuer(OwnCas(office.acme_context), office.ca.id), kind="local")
        signing = ca_signing.kind(office.acme_context, caa=office._caa, use_pkilint=True)
        async with house.working(kinds=[signing]):
            await house.ask("app.internal", "10.1.2.3", issuers=["own"], lifetime=timedelta(days=20))
            view = await house.settled("app.internal")
        leaf = await _holds_a_usable_pair(house, "app.internal")
        leaf.verify_directly_issued_by(office.ca.issuer.certificate)
        assert view.current is not None
        assert timedelta(days=19) < view.current.life <= timedelta(days=20, hours=1)
        assert await _count(db, "ca_certificates") == 1
        await office.acme_context.delivered.flush()  # type: ignore[attr-defined]
        assert await tell_uncollected(db, timedelta(0)) == 0, "we have it: nobody is told that nobody has"

        async with house.working(kinds=[signing]):
            await house.revoke("app.internal", reason=1, actor="local:alice")
            replaced = await house.settled("app.internal")
            await house.until_no_job("revoke")
        assert replaced.current is not None
        assert replaced.current.id != view.current.id
        serial = view.current.serial
        old = await db.read(lambda tx: certificates.by_serial(tx, office.ca.id, serial))
        assert old is not None
        assert old.revoked_at is not None
        assert (await db.read(lambda tx: versions.get(tx, view.current.id))).state == "revoked"  # type: ignore[union-attr]


async def test_what_our_own_ca_revoked_is_replaced_at_once_and_by_another_key(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with open_office(db, tmp_path) as office:
        await house.add("own", LocalIssuer(OwnCas(office.acme_context), office.ca.id), kind="local")
        signing = ca_signing.kind(office.acme_context, caa=office._caa, use_pkilint=False)
        async with house.working(kinds=[signing]):
            await house.ask("app.internal", issuers=["own"], reuse_key=True)
            held = (await house.settled("app.internal")).current
            assert held is not None
            await run(
                services_for(house.certificate_context), issued.revoke, actor="local:alice",
                ca=office.ca.id, serial=held.serial, reason="key-compromise",
            )  # fmt: skip
            view = await house.view("app.internal")
            assert view.status.phase is not Phase.OK
            assert await renewals.sweep_due(house.certificate_context) == 1
            new = (await house.settled("app.internal")).current
    assert new is not None
    assert new.spki_sha256 != held.spki_sha256
    old = await db.read(lambda tx: versions.get(tx, held.id))
    assert old is not None
    assert (old.state, old.revoke_reason) == ("revoked", 1)
    audited = [(each.actor, each.action) for each in await db.read(lambda tx: journal.audit_page(tx, 0))]
    assert audited.count(("local:alice", "version_revoked")) == 1


async def test_proofs_are_published_told_and_taken_away(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path, proofs=True)
    async with house.working():
        await house.ask(NAME, "a.example.com")
        await house.settled_soon(NAME)
    await _holds_a_usable_pair(house)
    assert house.board.shown == {}
    assert len(set(house.board.cleaned)) == 2


async def test_a_proof_that_nobody_can_publish_is_told_with_its_name(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path, proofs=True)
    services = replace(house.tools, solver_for=lambda offers, only=None: None)
    async with house.working(kinds=issuance_duties.kinds(services), only=True):
        await house.ask(NAME)
        view = await house.settled(NAME)
    assert view.status.reason_code == "NO_SOLVER"
    assert NAME in (view.status.last_error or "")


async def test_a_ca_that_takes_its_time_is_polled_without_holding_a_worker(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path, polls=3)
    async with house.working():
        await house.ask(NAME)
        await house.settled(NAME)
    await _holds_a_usable_pair(house)
    assert house.cas["ca"].calls.count("place") == 1


async def test_looking_at_an_order_is_not_paid_for_like_an_order(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path, polls=5)
    limits = {"requests": [100, 0.001], "orders": [2, 3600]}
    await house.change_issuer("ca", {"limits": limits}, actor="local:op")
    async with house.working():
        await house.ask(NAME)
        await house.settled(NAME)
    await _holds_a_usable_pair(house)


async def test_a_reused_key_is_the_same_key(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME, reuse_key=True)
        first = await house.settled(NAME)
        await house.renew(NAME, actor="local:alice")
        second = await house.settled(NAME)
        await house.ask("b.example.com")
        other = await house.settled("b.example.com")
        await house.renew("b.example.com", actor="local:alice")
        another = await house.settled("b.example.com")
    assert first.current and second.current and other.current and another.current  # noqa: PT018
    assert first.current.spki_sha256 == second.current.spki_sha256
    assert first.current.id != second.current.id
    assert other.current.spki_sha256 != another.current.spki_sha256
    states = [each.state.value for each in await db.read(lambda tx: versions.of(tx, first.certificate.id))]
    assert states == ["active", "superseded"]


async def test_a_key_that_is_compromised_or_of_another_kind_is_not_reused(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME, reuse_key=True)
        first = (await house.settled(NAME)).current
        assert first is not None
        await house.revoke(NAME, reason=1, actor="local:alice")
        replaced = (await house.settled(NAME)).current
        assert replaced is not None
        assert replaced.spki_sha256 != first.spki_sha256
        await house.change(NAME, key="rsa-2048")
        other = (await house.settled(NAME)).current
        assert other is not None
    assert x509.load_pem_x509_certificate(other.chain_pem.encode()).public_key().key_size == 2048  # type: ignore[union-attr]


# ── What must not be used ──


async def test_a_certificate_for_other_names_is_refused_and_told(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    house.cas["ca"].other_names = ["evil.example.com"]
    async with house.working():
        await house.ask(NAME)
        view = await house.settled(NAME)
    assert view.current is None
    assert view.status.reason_code == "WRONG_CERTIFICATE"
    assert view.certificate.failing is not None
    assert view.certificate.failing.attempts == 1
    failed = [each for each in await house.timeline(NAME) if each.name == "issuance.failed"]
    assert failed[0].details["alert"] is True
    assert await _count(db, "certificate_versions") == 0


async def test_a_certificate_for_another_key_is_refused_and_the_old_one_stays(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        before = await house.settled(NAME)
        house.cas["ca"].other_key = ec.generate_private_key(ec.SECP256R1())
        await house.renew(NAME, actor="local:alice")
        after = await house.settled(NAME)
    assert after.current == before.current
    assert after.status.reason_code == "WRONG_CERTIFICATE"
    await _holds_a_usable_pair(house)


async def test_an_expired_certificate_is_refused(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path, life=timedelta(days=-1))
    house.cas["ca"].now = lambda: house.keeper_now() - timedelta(days=3)
    house.cas["ca"].life = timedelta(days=1)
    async with house.working():
        await house.ask(NAME)
        view = await house.settled(NAME)
    assert view.current is None
    assert "expired" in (view.status.last_error or "")


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["a.*.example.com"], "name-wildcard"),
        (["*.*.example.com"], "name-wildcard"),
        (["münchen.example"], "name-not-ascii"),
        ([f"{'a' * 64}.example.com"], "name-label-too-long"),
        (["10.0.0.256"], "name-is-address"),
        (["a..example.com"], "name-empty-label"),
        ([""], "name-empty"),
    ],
)
def test_a_bad_name_is_refused_with_a_sentence(names: list[str], code: str) -> None:
    with pytest.raises(NameRefused) as refused:
        identifiers_of(names)
    assert refused.value.code == code
    assert str(refused.value).endswith(".")


def test_a_hundred_and_one_names_are_too_many_and_a_hundred_are_not() -> None:
    names = [f"n{n}.example.com" for n in range(101)]
    with pytest.raises(SpecificationRefused, match="at most 100"):
        identifiers_of(names)
    assert len(identifiers_of(names[:100])) == 100
    assert len(identifiers_of(names[:100] + names[:1])) == 100


async def test_an_unknown_ca_is_refused_with_those_that_are_known(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    with pytest.raises(UnknownIssuer) as refused:
        await house.ask(NAME, issuers=["letsencrypt"])
    assert refused.value.hint == "There are: ca."
    assert await _count(db, "certificates") == 0


async def test_a_name_is_taken_until_it_is_archived(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    first = await house.ask(NAME)
    with pytest.raises(lifecycle.CertificateExists):
        await house.ask(NAME)
    await house.set_state(NAME, "archived", actor="local:alice")
    second = await house.ask(NAME)
    assert second.certificate.id != first.certificate.id


# ── Only one at a time ──


async def test_many_who_renew_at_once_get_one_attempt(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        await house.settled(NAME)
    asked = [house.renew(NAME, actor=f"local:{n}") for n in range(20)]
    assert len({each.id for each in await asyncio.gather(*asked)}) == 1
    async with house.working():
        await house.settled(NAME)
    assert len(house.cas["ca"].issued) == 2


async def test_a_cancelled_attempt_ends_at_its_next_step_and_counts_for_nothing(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path, polls=10**6)
    async with house.working():
        await house.ask(NAME)
        await house.until(lambda: "finalize" in house.cas["ca"].calls)
        await house.cancel(NAME, actor="local:alice", why="a mistake")
        view = await house.settled(NAME)
        await house.until_no_job("issue")
    assert view.certificate.failing is None
    assert view.status.next_attempt_at is not None
    [attempt] = await db.read(lambda tx: issuances.of(tx, view.certificate.id))
    assert (attempt.state, attempt.error) == (IssuanceState.CANCELLED, "a mistake")


async def test_pausing_stops_and_resuming_goes_on(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.ask(NAME)
    await house.set_state(NAME, "paused", actor="local:alice")
    view = await house.attempt(NAME)
    assert (view.status.phase, view.status.next_attempt_at) == (Phase.PAUSED, None)
    with pytest.raises(lifecycle.NotNow):
        await house.renew(NAME, actor="local:alice")
    await house.set_state(NAME, "resumed", actor="local:alice")
    view = await house.attempt(NAME)
    assert view.status.phase is Phase.OK


async def test_an_issuance_without_a_job_gets_it_back(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.ask(NAME)
    await db.write(lambda tx: tx.run("DELETE FROM jobs WHERE kind = 'issue'"))
    assert await sweep.reconcile(db, issuance_duties.families(house.certificate_context), no_points) == 1
    view = await house.worked(NAME)
    assert view.status.phase is Phase.OK


async def test_an_issuance_whose_job_died_is_over_and_counted(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.ask(NAME)
    await db.write(lambda tx: tx.run("UPDATE jobs SET state = 'dead' WHERE kind = 'issue'"))
    await sweep.reconcile(db, issuance_duties.families(house.certificate_context), no_points)
    view = await house.view(NAME)
    assert view.issuance is None
    assert (view.status.phase, view.status.reason_code) == (Phase.FAILING, "INTERNAL")
    assert view.status.next_attempt_at is not None


# ── Failures, each in its class ──


async def test_a_passing_failure_resumes_the_same_order(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    house.cas["ca"].troubles["finalize"] = [TryLater("connection reset", reason="CA_DOWN")]
    async with house.working():
        await house.ask(NAME)
        await house.until(lambda: "finalize" in house.cas["ca"].calls)

        async def waits() -> bool:
            view = await house.view(NAME)
            return view.status.reason_code == "CA_DOWN" and view.status.blocked_by == ("CA_DOWN",)

        await house.until(waits)
        await house.hurry()
        view = await house.settled(NAME)
    assert view.certificate.failing is None
    assert len(house.cas["ca"].orders) == 1
    await _holds_a_usable_pair(house)


async def test_a_ca_that_stays_away_is_waited_for_and_not_counted(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    ca = house.cas["ca"]
    ca.always["place"] = TryLater("Vault is sealed", reason="CA_DOWN")
    async with house.working():
        await house.ask(NAME)
        await house.until(lambda: house.hurried_past(lambda: ca.calls.count("place") > 7))

        async def waits() -> bool:  # between two tries, not within one
            return (await house.view(NAME)).status.reason_code == "CA_DOWN"

        await house.until(waits)
        assert (await house.view(NAME)).certificate.failing is None
        del ca.always["place"]
        await house.until(lambda: house.hurried_past(lambda: len(ca.issued) == 1))
        view = await house.settled_soon(NAME)
    assert view.current is not None


async def test_a_ca_that_cannot_be_understood_is_one_failure_after_five_tries(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    house.cas["ca"].always["place"] = TryLater("half a body", reason="ANSWER_MALFORMED")
    async with house.working():
        await house.ask(NAME)
        while (await house.view(NAME)).issuance is not None:
            await house.hurry()
            await asyncio.sleep(0.01)
    view = await house.view(NAME)
    assert view.certificate.failing is not None
    assert (view.certificate.failing.attempts, view.status.reason_code) == (1, "ANSWER_MALFORMED")
    assert house.cas["ca"].calls.count("place") == 5
    row = await house.read(manage_issuers.found, "ca")
    assert row.breaker.until is not None


async def test_a_ca_that_has_the_csr_is_waited_for_longer_so_that_there_is_no_second_order(
    db: Database, tmp_path: Path
) -> None:
    house = await a_house(db, tmp_path, polls=1)
    await house.change_issuer("ca", {"limits": {"requests": [1000, 0.001]}}, actor="local:op")
    ca = house.cas["ca"]
    async with house.working():
        ca.troubles["finalize"] = [TryLater("the answer was lost", reason="CA_DOWN")]
        await house.ask(NAME)
        await house.until(lambda: "finalize" in ca.calls)
        ca.always["look"] = TryLater("no route", reason="CA_DOWN")
        for _ in range(12):
            seen = ca.calls.count("look")
            await house.until(lambda seen=seen: house.hurried_past(lambda: ca.calls.count("look") > seen))  # type: ignore[misc]
        assert (await house.view(NAME)).issuance is not None
        del ca.always["look"]
        await house.until(lambda: house.hurried_past(lambda: len(ca.issued) == 1))
        view = await house.settled_soon(NAME)
    assert view.current is not None
    assert view.certificate.failing is None
    assert len(ca.orders) == 1


async def test_what_a_ca_fails_is_counted_with_its_reason(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    house.cas["ca"].troubles["look"] = [Failed(why="403 at /.well-known", reason="VALIDATION_FAILED")]
    async with house.working():
        await house.ask(NAME)
        view = await house.settled(NAME)
    assert (view.status.reason_code, view.status.attempt) == ("VALIDATION_FAILED", 1)
    assert view.status.last_error == "403 at /.well-known"
    assert view.status.next_attempt_at == view.certificate.failing.last_at + timedelta(hours=1)  # type: ignore[union-attr]


async def test_a_rate_limit_is_the_budgets_and_all_that_share_it_wait(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    limited = TryLater("too many new orders", after=timedelta(hours=3), reason="CA_RATE_LIMITED")
    house.cas["ca"].always["place"] = limited
    async with house.working(slots=1):
        for n in range(5):
            await house.ask(f"n{n}.example.com")

        async def all_wait() -> bool:
            views = [await house.view(f"n{n}.example.com") for n in range(5)]
            return all(each.status.reason_code == "CA_RATE_LIMITED" for each in views)

        await house.until(all_wait)
    assert house.cas["ca"].calls.count("place") <= 2  # the next may be on its way while the first answer is written
    views = [await house.view(f"n{n}.example.com") for n in range(5)]
    assert all(each.certificate.failing is None for each in views)
    assert all(each.status.next_attempt_at >= each.now + timedelta(hours=2, minutes=59) for each in views)  # type: ignore[operator]
    held = await db.read(lambda tx: [each for each in budgets.all_budgets(tx) if each.not_before])
    assert [each.key for each in held] == ["ca/ca/orders"]


async def test_whoever_renews_by_hand_again_and_again_waits_when_the_ca_allows_no_more_failures(
    db: Database, tmp_path: Path
) -> None:
    """It skips the wait, not the budget."""
    house = await a_house(db, tmp_path)
    limits = {"failures": [5, 720], "per_set": [100, 1], "requests": [100, 0.001]}
    await house.change_issuer("ca", {"limits": limits}, actor="local:op")
    failed = Failed(why="404", reason="VALIDATION_FAILED")
    house.cas["ca"].troubles["look"] = [failed] * 9
    async with house.working():
        await house.ask(NAME)
        await house.settled(NAME)
        for _ in range(4):
            await house.renew(NAME, actor="local:alice")
            await house.settled(NAME)
        await house.renew(NAME, actor="local:alice")

        async def waits() -> bool:
            view = await house.view(NAME)
            return view.status.next_attempt_at > view.now + timedelta(minutes=11)  # type: ignore[operator]

        await house.until(waits)
    assert house.cas["ca"].calls.count("place") == 5
    view = await house.view(NAME)
    assert view.status.attempt == 5
    assert view.status.blocked_by == ("CA_RATE_LIMITED",)


async def test_what_is_only_about_replaces_is_tried_once_more_without_and_not_counted(
    db: Database, tmp_path: Path
) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        await house.settled(NAME)
    house.cas["ca"].troubles["place"] = [Refused("already replaced", reason="REPLACES_REJECTED")]
    await house.renew(NAME, actor="local:alice")
    await db.write(lambda tx: tx.run("UPDATE issuances SET replaces = 'a.b' WHERE state = 'requested'"))
    view = await house.worked(NAME)
    assert view.certificate.failing is None
    assert len(house.cas["ca"].issued) == 2
    assert [each.request.replaces for each in house.cas["ca"].orders.values()] == [None, None]


# ── More than one CA ──


async def test_after_three_failures_the_next_ca_of_the_list_is_asked(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.add("second", TruthfulCa())
    house.cas["ca"].always["place"] = Refused("no", reason="CA_REFUSED")
    async with house.working():
        await house.ask(NAME, issuers=["ca", "second"])
        for _ in range(3):
            view = await house.settled(NAME)
            assert view.current is None
            await house.renew(NAME, actor="local:alice")
        view = await house.settled(NAME)
    assert view.current is not None
    assert view.current.issuer == "second"


async def test_a_paused_ca_is_passed_over_and_without_another_it_is_waited_for(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.add("second", TruthfulCa())
    await house.write(manage_issuers.ISSUERS.pause, "ca", actor="local:op")
    async with house.working():
        await house.ask(NAME, issuers=["ca", "second"])
        view = await house.settled(NAME)
    assert view.current is not None
    assert view.current.issuer == "second"
    view = await house.ask("alone.example.com")
    assert view.issuance is None
    assert view.status.reason_code == "ISSUER_PAUSED"
    await house.write(manage_issuers.ISSUERS.resume, "ca", actor="local:op")
    view = await house.attempt("alone.example.com")
    assert view.current is not None
