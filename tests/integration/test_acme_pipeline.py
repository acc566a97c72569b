"""Orders from wish to certificate, without HTTP: what clients, workers and crashes may do to them; on both stores."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from tests.support.acme_desk import LOOPBACK, a_csr, limits, open_office
from tests.support.dns_server import DnsServer
from tests.support.engine import eventually

from holdfast.core.own_ca.acme import AuthzState, ChallengeState, Identifier, OrderState
from holdfast.core.own_ca.ca import CaMode, CaOptions, DeliveryLevel, RateLimit
from holdfast.core.own_ca.problem import AcmeError
from holdfast.engine import sweep
from holdfast.engine.own_ca import signing, validation
from holdfast.engine.own_ca import sweep as ca_sweep
from holdfast.operations.acme import accounts, authorizations, certificates, orders
from holdfast.operations.acme.certificates import revoke
from holdfast.pki import ari, keys
from holdfast.ports import no_points
from holdfast.store import journal
from holdfast.store.acme import authorizations as rows
from holdfast.store.acme import limits as acme_limits
from holdfast.store.database import Database
from holdfast.store.own_ca import certificates as ca_certificates
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio
SECOND = Identifier("ip", "127.0.0.2")


async def _count(db: Database, table: str) -> int:
    rows = await db.read(lambda tx: tx.rows(f"SELECT COUNT(*) AS n FROM {table}"))
    return int(rows[0]["n"])


async def test_an_order_becomes_a_certificate(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who = await office.client()
        order = await office.issued(who)
        assert order.state is OrderState.VALID, order.error
        issued = await certificates.download(office.acme_context, who, order.certificate or "")
        certificate = x509.load_der_x509_certificate(issued.der)
        certificate.verify_directly_issued_by(office.ca.issuer.certificate)
        assert f"{certificate.serial_number:x}" == issued.serial
        verdict = await db.read(journal.verify)
        assert verdict.ok, verdict.problem


async def test_many_who_finalize_at_once_get_one_certificate(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who = await office.client()
        order = await office.ready(who)
        answers = await asyncio.gather(*(office.finalize(who, order) for _ in range(20)), return_exceptions=True)
        assert sum(not isinstance(each, Exception) for each in answers) == 1
        refused = [each for each in answers if isinstance(each, AcmeError)]
        assert {each.problem.type for each in refused} == {"orderNotReady"}
        assert len(refused) == 19
        await office.ended(who, order.id)
        assert await _count(db, "ca_certificates") == 1
        assert await _count(db, "ca_issuances") == 1


async def test_proofs_that_arrive_together_make_the_order_ready(db: Database, tmp_path: Path) -> None:
    async with DnsServer() as dns, open_office(db, tmp_path, resolvers=(dns.address,)) as office:
        who = await office.client()
        names = [Identifier("dns", f"n{n}.test") for n in range(8)]
        for name in names:
            dns.add(name.value, "A", "127.0.0.1")
        order = await office.order(who, *names)
        await asyncio.gather(*(office.answer(who, authz) for authz in order.authzs))
        async with office.working():
            await eventually(lambda: _is(office, who, order.id, OrderState.READY))


async def _is(office, who, order_id, state) -> bool:  # type: ignore[no-untyped-def]
    return (await orders.get(office.acme_context, who, order_id)).state is state


async def test_a_wrong_proof_ends_the_order_with_its_reason(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who = await office.client()
        order = await office.order(who)
        await office.answer(who, order.authzs[0], right=False)
        authz = await office.decided(who, order.authzs[0])
        assert authz.state is AuthzState.INVALID
        over = await orders.get(office.acme_context, who, order.id)
        assert over.state is OrderState.INVALID
        assert over.error is not None
        assert over.error.type in ("unauthorized", "incorrectResponse")


async def test_a_failure_that_may_pass_is_tried_again_inside_processing(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who = await office.client()
        order = await office.order(who)
        answer, office.web.answer = office.web.answer, _hang_up
        challenge = await office.answer(who, order.authzs[0])

        async def tried() -> bool:
            return len(await db.read(lambda tx: rows.tries(tx, challenge.id))) == 1

        await eventually(tried)
        shown, _ = await authorizations.challenge(office.acme_context, who, challenge.id)
        assert shown.state is ChallengeState.PROCESSING
        assert shown.next_try_at is not None
        office.web.answer = answer
        assert (await office.decided(who, order.authzs[0])).state is AuthzState.VALID


async def _hang_up(_: str, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def test_the_same_wish_gives_the_same_order_until_it_is_used(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who, other = await office.client(), await office.client()
        first = await office.order(who, LOOPBACK, SECOND)
        assert (await office.order(who, LOOPBACK, SECOND)).id == first.id
        assert (await office.order(who, LOOPBACK)).id != first.id
        assert (await office.order(other, LOOPBACK, SECOND)).id != first.id
        at_once = await asyncio.gather(*(office.order(other, SECOND) for _ in range(10)))
        assert len({order.id for order in at_once}) == 1


async def test_a_proof_is_used_again_and_the_order_is_born_ready(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who = await office.client()
        first = await office.issued(who)
        second = await office.order(who)
        assert (second.state, second.authzs) == (OrderState.READY, first.authzs)
        other = await office.client()
        assert (await office.order(other)).state is OrderState.PENDING


async def test_giving_up_an_authorization_ends_the_orders_that_need_it(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who = await office.client()
        order = await office.ready(who)
        authz = await authorizations.deactivate(office.acme_context, who, order.authzs[0])
        assert authz.state is AuthzState.DEACTIVATED
        assert (await orders.get(office.acme_context, who, order.id)).state is OrderState.INVALID
        with pytest.raises(AcmeError, match="not ready"):
            await office.finalize(who, order)


async def test_an_account_that_ends_takes_its_open_orders_along(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who = await office.client()
        issued, waiting = await office.issued(who), await office.order(who, SECOND)
        await accounts.deactivate(office.acme_context, who)
        rows = await db.read(lambda tx: tx.rows("SELECT id, state FROM acme_orders"))
        assert {row["id"]: row["state"] for row in rows} == {issued.id: "valid", waiting.id: "invalid"}
        with pytest.raises(AcmeError) as refused:
            await office.order(who)
        assert refused.value.status == 401


async def test_a_csr_for_other_names_is_refused_and_the_order_stays_ready(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who = await office.client()
        order = await office.ready(who)
        with pytest.raises(AcmeError, match="exactly the names"):
            await orders.finalize(office.acme_context, office.ca, who, order.id, a_csr(LOOPBACK, SECOND))
        assert (await orders.get(office.acme_context, who, order.id)).state is OrderState.READY


async def test_nobody_sees_or_finalizes_an_order_of_another(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who, other = await office.client(), await office.client()
        order = await office.ready(who)
        for attempt in (orders.get(office.acme_context, other, order.id), office.finalize(other, order)):
            with pytest.raises(AcmeError) as refused:
                await attempt
            assert refused.value.problem.type == "unauthorized"


async def test_a_trusted_account_needs_no_challenge_but_gets_only_its_names(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path, options=CaOptions(mode=CaMode.TRUST)) as office, office.working():
        who = await office.client()
        name = Identifier("dns", "www.corp.test")
        with pytest.raises(AcmeError, match="not among the names"):
            await office.order(who, name)
        await db.write(lambda tx: tx.run("UPDATE acme_accounts SET names = :names", names='["*.corp.test"]'))
        order = await office.order(who, name)
        assert order.state is OrderState.READY
        await office.finalize(who, order)
        assert (await office.ended(who, order.id)).state is OrderState.VALID


async def test_a_name_that_keeps_failing_is_paused_until_somebody_looks(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path, policy=limits(pause_after=3)) as office, office.working():
        who = await office.client()
        for _ in range(3):
            order = await office.order(who)
            await office.answer(who, order.authzs[0], right=False)
            await office.decided(who, order.authzs[0])
        with pytest.raises(AcmeError) as refused:
            await office.order(who)
        assert (refused.value.problem.type, refused.value.status) == ("rateLimited", 429)
        assert (await office.order(await office.client())).state is OrderState.PENDING
        assert await db.write(lambda tx: acme_limits.unpause(tx, who.account, LOOPBACK.value))
        assert (await office.order(who)).state is OrderState.PENDING


@pytest.mark.parametrize("setting", ["orders_per_account", "accounts_per_address"])
async def test_a_limit_is_counted_in_the_store(db: Database, tmp_path: Path, setting: str) -> None:
    policy = limits(**{setting: RateLimit(count=2, span=timedelta(hours=1))})
    async with open_office(db, tmp_path, policy=policy) as office:

        async def ask_for_more_and_more() -> None:
            for n in range(3):
                who = await office.client()
                for m in range(3 if setting == "orders_per_account" else 1):
                    await office.order(who, LOOPBACK, Identifier("dns", f"n{n}m{m}.test"))

        with pytest.raises(AcmeError) as refused:
            await ask_for_more_and_more()
        assert refused.value.problem.type == "rateLimited"
        assert 0 < (refused.value.problem.retry_after or 0) <= 3600


async def test_an_order_that_lost_its_job_gets_it_back(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office:
        who = await office.client()
        order = await office.order(who)
        await office.answer(who, order.authzs[0])
        await db.write(lambda tx: tx.run("DELETE FROM jobs"))
        families = [validation.owed(office.acme_context, SystemRandom()), signing.owed(SystemRandom())]
        async with office.working():
            assert await sweep.reconcile(db, families, no_points) == 1
            await office.decided(who, order.authzs[0])
        await office.finalize(who, order)
        await db.write(lambda tx: tx.run("DELETE FROM jobs"))
        assert await sweep.reconcile(db, families, no_points) == 1
        async with office.working():
            assert (await office.ended(who, order.id)).state is OrderState.VALID


async def test_an_order_whose_job_died_is_invalid_with_a_problem(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office:
        who = await office.client()
        async with office.working():
            order = await office.ready(who)
        await office.finalize(who, order)
        await db.write(lambda tx: tx.run("UPDATE jobs SET state = 'dead'"))
        assert await sweep.reconcile(db, [signing.owed(SystemRandom())], no_points) == 0
        over = await orders.get(office.acme_context, who, order.id)
        assert over.state is OrderState.INVALID
        assert over.error is not None
        assert over.error.type == "serverInternal"


async def test_an_open_order_expires_whether_or_not_the_sweep_came_by(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office:
        who = await office.client()
        order = await office.order(who)
        await db.write(lambda tx: tx.run("UPDATE acme_orders SET expires_at = 1"))
        assert (await orders.get(office.acme_context, who, order.id)).state is OrderState.INVALID
        assert (await office.order(who)).id != order.id
        await db.write(lambda tx: tx.run("UPDATE acme_orders SET expires_at = 1 WHERE state = 'pending'"))
        assert await ca_sweep.expire(db) == 1
        assert await _count(db, "acme_orders WHERE state = 'pending'") == 0


# ── after issuance ──


async def test_revocation_is_for_the_account_its_key_or_whoever_proved_the_names(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who, stranger, prover = [await office.client() for _ in range(3)]
        orders = [await office.issued(who) for _ in range(3)]
        ders = [(await certificates.download(office.acme_context, who, each.certificate or "")).der for each in orders]
        with pytest.raises(AcmeError, match="may revoke"):
            await revoke(office.acme_context, office.ca, ders[0], None, who=stranger, key_spki=None)
        await office.ready(prover)
        await revoke(office.acme_context, office.ca, ders[0], 1, who=prover, key_spki=None)
        await revoke(office.acme_context, office.ca, ders[1], None, who=who, key_spki=None)
        spki = keys.spki(x509.load_der_x509_certificate(ders[2]).public_key())  # type: ignore[arg-type]
        await revoke(office.acme_context, office.ca, ders[2], 4, who=None, key_spki=spki)
        with pytest.raises(AcmeError, match="already"):
            await revoke(office.acme_context, office.ca, ders[2], 4, who=None, key_spki=spki)
        with pytest.raises(AcmeError, match="already"):
            await revoke(office.acme_context, office.ca, ders[2], 1, who=prover, key_spki=None)
        assert await _count(db, "blocked_keys") == 0
        await revoke(office.acme_context, office.ca, ders[2], 1, who=None, key_spki=spki)
        assert await _count(db, "blocked_keys") == 1
        with pytest.raises(AcmeError, match="reason is one of"):
            await revoke(office.acme_context, office.ca, ders[2], 6, who=who, key_spki=None)


async def test_a_compromised_key_gets_no_other_certificate(db: Database, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    async with open_office(db, tmp_path) as office, office.working():
        who = await office.client()
        order = await office.ready(who)
        await office.finalize(who, order, key=key)
        order = await office.ended(who, order.id)
        issued = await certificates.download(office.acme_context, who, order.certificate or "")
        await revoke(office.acme_context, office.ca, issued.der, 1, who=who, key_spki=None)
        again = await office.ready(who)
        with pytest.raises(AcmeError, match="blocked"):
            await office.finalize(who, again, key=key)


async def test_an_order_may_replace_a_certificate_once(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who = await office.client()
        order = await office.issued(who)
        issued = await certificates.download(office.acme_context, who, order.certificate or "")
        named = ari.cert_id(office.ca.issuer.key_identifier, int(issued.serial, 16))
        first = await office.order(who, LOOPBACK, replaces=named)
        assert first.replaces == named
        with pytest.raises(AcmeError) as refused:
            await office.order(who, LOOPBACK, SECOND, replaces=named)
        assert (refused.value.problem.type, refused.value.status) == ("alreadyReplaced", 409)
        await authorizations.deactivate(office.acme_context, who, first.authzs[0])
        second = await office.order(who, LOOPBACK, SECOND, replaces=named)  # the first one failed
        assert second.id != first.id
        kept = await certificates.download(office.acme_context, who, order.certificate or "")
        assert kept.delivery == "acknowledged"  # whoever names it has it


async def test_delivery_climbs_and_never_sinks(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who = await office.client()
        order = await office.issued(who)
        certificate = order.certificate or ""

        async def level() -> str:
            await office.acme_context.delivered.flush()  # type: ignore[attr-defined]
            return (await certificates.download(office.acme_context, who, certificate)).delivery

        assert await level() == "offered"
        certificates.fetched(office.acme_context, "acct_somebody_else", certificate)
        assert await level() == "offered"
        certificates.acknowledged(office.acme_context, who.account, certificate)
        assert await level() == "acknowledged"
        certificates.fetched(office.acme_context, who.account, certificate)
        assert await level() == "acknowledged"


async def test_a_certificate_that_nobody_collects_is_told_once(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who = await office.client()
        first, second = await office.issued(who), await office.issued(who)
        await db.write(
            lambda tx: ca_certificates.deliver(tx, DeliveryLevel.FETCHED, [(first.certificate or "", who.account)])
        )
        await db.write(lambda tx: tx.run("UPDATE ca_certificates SET issued_at = 1"))
        assert await certificates.tell_uncollected(db, timedelta(minutes=15)) == 1
        assert await certificates.tell_uncollected(db, timedelta(minutes=15)) == 0
        events = await db.read(lambda tx: journal.events_after(tx, 0, subject=second.certificate or ""))
        assert [each.name for each in events][-1] == "certificate.uncollected"


async def test_renewal_information_moves_when_a_certificate_is_revoked(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who = await office.client()
        order = await office.issued(who)
        issued = await certificates.download(office.acme_context, who, order.certificate or "")
        named = ari.cert_id(office.ca.issuer.key_identifier, int(issued.serial, 16))
        before = await certificates.renewal_info(office.acme_context, office.ca, named)
        assert issued.not_before < before.start < before.end < issued.not_after
        await revoke(office.acme_context, office.ca, issued.der, 4, who=who, key_spki=None)
        after = await certificates.renewal_info(office.acme_context, office.ca, named)
        assert after.end < before.start
