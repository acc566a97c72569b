"""ACME orders, authorizations and challenges that are over: what goes, what stays, and what was not begun in time."""

from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.acme_desk import open_office
from tests.support.jobs import update

from holdfast.core.own_ca.acme import AuthzState, ChallengeState, Identifier, Order, OrderState
from holdfast.core.own_ca.problem import AcmeError
from holdfast.engine import sweep
from holdfast.engine.own_ca import signing, validation
from holdfast.engine.own_ca import sweep as ca_sweep
from holdfast.operations.acme import accounts, authorizations, certificates, orders
from holdfast.ports import no_points
from holdfast.store.database import Database
from holdfast.store.tx import to_micros
from holdfast.world import SystemClock, SystemRandom

pytestmark = pytest.mark.anyio
KEPT = timedelta(days=90)
SECOND = Identifier("ip", "127.0.0.2")
TABLES = ("acme_orders", "acme_authzs", "acme_challenges", "acme_order_authzs")


async def counts(db: Database) -> list[int]:
    return [int((await db.read(lambda tx, t=t: tx.rows(f"SELECT COUNT(*) AS n FROM {t}")))[0]["n"]) for t in TABLES]  # type: ignore[misc]


def ago(**time: float) -> int:
    return to_micros(SystemClock().now() - timedelta(**time))


async def grow_old(db: Database, order: Order, days: float) -> None:
    """As if the order, its proofs and its certificate had ended so many days ago."""
    end = ago(days=days)
    await update(db, f"UPDATE acme_orders SET expires_at = {end}, created_at = {end} WHERE id = '{order.id}'")
    await update(db, f"UPDATE ca_certificates SET not_after = {end} WHERE order_id = '{order.id}'")
    for authz in order.authzs:
        await update(db, f"UPDATE acme_authzs SET expires_at = {end} WHERE id = '{authz}'")


async def test_authorizations_go_ten_days_after_their_end_and_take_their_challenges_along(
    db: Database, tmp_path: Path
) -> None:
    async with open_office(db, tmp_path) as office:
        who = await office.client()
        old, young = await office.order(who), await office.order(who, SECOND)
        await grow_old(db, old, 10.1)
        await grow_old(db, young, 9.9)
        await ca_sweep.expire(db)  # both are over now
        before = await counts(db)
        assert await ca_sweep.forget(db, KEPT) == 2
        after = await counts(db)
        assert [old - new for old, new in zip(before, after, strict=True)] == [1, 1, before[2] // 2, 1]
        with pytest.raises(AcmeError):
            await authorizations.get(office.acme_context, who, old.authzs[0])
        assert (await authorizations.get(office.acme_context, who, young.authzs[0])).state is AuthzState.EXPIRED
        with pytest.raises(AcmeError):
            await orders.get(office.acme_context, who, old.id)


async def test_an_order_that_came_to_nothing_goes_with_its_authorizations(db: Database, tmp_path: Path) -> None:
    """However long the history is kept: strangers make such orders in any number."""
    async with open_office(db, tmp_path) as office:
        who = await office.client()
        old, young = await office.order(who), await office.order(who, SECOND)
        await grow_old(db, old, 10.1)
        await grow_old(db, young, 9.9)
        await ca_sweep.expire(db)
        await ca_sweep.forget(db, KEPT)
        assert (await counts(db))[0] == 1
        assert (await orders.get(office.acme_context, who, young.id)).state is OrderState.INVALID  # and still says why


async def test_an_order_is_kept_as_long_as_its_certificate_is_of_use(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who = await office.client()
        first, second = await office.issued(who), await office.issued(who)
        assert first.authzs == second.authzs  # the proof was used again
        await grow_old(db, first, 91)
        await update(db, f"UPDATE acme_orders SET created_at = {ago(days=200)} WHERE id = '{second.id}'")
        await update(db, f"UPDATE acme_authzs SET expires_at = {ago(days=20)}")
        await ca_sweep.expire(db)
        await ca_sweep.forget(db, KEPT, page=1)
        assert await counts(db) == [1, 0, 0, 0]
        assert await accounts.order_ids(office.acme_context, who) == [second.id]
        kept = await orders.get(office.acme_context, who, second.id)
        assert (await certificates.download(office.acme_context, who, kept.certificate or "")).order == second.id
        assert await ca_sweep.forget(db, KEPT) == 0


async def test_proofs_of_an_order_under_way_stay(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office:
        who = await office.client()
        order = await office.order(who)
        await update(db, f"UPDATE acme_authzs SET expires_at = {ago(days=20)}, state = 'expired'")
        await update(db, "UPDATE acme_orders SET state = 'processing'")
        before = await counts(db)
        assert await ca_sweep.forget(db, KEPT) == 0
        assert await counts(db) == before
        assert order.authzs


async def test_a_proof_that_was_not_looked_at_in_time_ends_with_a_reason(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office:
        who = await office.client()
        order = await office.order(who)
        challenge = await office.answer(who, order.authzs[0])
        [job] = await db.read(lambda tx: tx.rows("SELECT expires_at FROM jobs WHERE kind = 'acme.validate'"))
        [authz] = await db.read(lambda tx: tx.rows("SELECT expires_at FROM acme_authzs"))
        assert job["expires_at"] == authz["expires_at"]
        await grow_old(db, order, 0.1)
        await update(db, f"UPDATE jobs SET expires_at = {ago(hours=1)} WHERE kind = 'acme.validate'")
        assert await sweep.time_out(db) == 1
        await sweep.reconcile(db, [validation.owed(office.acme_context, SystemRandom())], no_points)
        shown, _ = await authorizations.challenge(office.acme_context, who, challenge.id)
        assert shown.state is ChallengeState.INVALID
        assert shown.error is not None
        assert "could not be tested" in shown.error.detail


async def test_an_order_that_was_not_signed_in_time_ends_with_a_reason(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office:
        who = await office.client()
        async with office.working():
            order = await office.ready(who)
        await office.finalize(who, order)
        [job] = await db.read(lambda tx: tx.rows("SELECT expires_at FROM jobs WHERE kind = 'acme.issue'"))
        assert job["expires_at"] == to_micros(order.expires_at + orders.STILL_ISSUED_FOR)
        await update(db, f"UPDATE jobs SET expires_at = {ago(hours=1)} WHERE kind = 'acme.issue'")
        assert await sweep.time_out(db) == 1
        await sweep.reconcile(db, [signing.owed(SystemRandom())], no_points)
        over = await orders.get(office.acme_context, who, order.id)
        assert over.state is OrderState.INVALID
        assert over.error is not None
        assert over.error.type == "serverInternal"
