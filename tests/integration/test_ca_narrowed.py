"""What an operator decides holds for orders and proofs of before, too; and nobody uses up another's limit."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.acme_client import problem
from tests.support.acme_desk import Office, a_csr, limits, open_office
from tests.support.acme_face import open_front
from tests.support.ca import change_ca

from holdfast.core.own_ca.acme import Identifier, Order, OrderState
from holdfast.core.own_ca.ca import CaMode, CaOptions, CaState, RateLimit
from holdfast.core.own_ca.problem import AcmeError
from holdfast.operations.acme import certificates, orders
from holdfast.operations.acme.context import Requester
from holdfast.operations.own_ca import cas
from holdfast.operations.own_ca import manage as making
from holdfast.operations.own_ca.cas import CaSettings
from holdfast.store.database import Database
from holdfast.store.own_ca import cas as ca_rows
from holdfast.store.own_ca import certificates as ca_certificates

pytestmark = pytest.mark.anyio
NAME = Identifier("dns", "a.corp.example")
TRUST = CaOptions(mode=CaMode.TRUST)


async def decided(office: Office, **changes: Any) -> None:
    """By the operator, and known to the server."""
    wanted = CaSettings(**changes)
    await change_ca(office.db, "ca1", lambda was: cas.changed(was, wanted), actor="local:test")
    await office.acme_context.authorities.refresh()
    found = office.acme_context.authorities.get("ca1")
    assert found is not None
    office.ca = found


async def trusted(office: Office, *patterns: str) -> Requester:
    """An account with these names, as an EAB key gives them."""
    who = await office.client()
    await bound_to(office, who, *patterns)
    return who


async def bound_to(office: Office, who: Requester, *patterns: str) -> None:
    names = "[" + ", ".join(f'"{each}"' for each in patterns) + "]"
    text = "UPDATE acme_accounts SET names = :names WHERE id = :id"
    await office.db.write(lambda tx: tx.run(text, names=names, id=who.account))


async def refusal(office: Office, who: Requester, order: Order) -> str:
    """Why it cannot be finalized; the order is over then, and says the same."""
    with pytest.raises(AcmeError) as refused:
        await office.finalize(who, order)
    now = await orders.get(office.acme_context, who, order.id)
    assert now.state is OrderState.INVALID
    assert now.error == refused.value.problem
    return refused.value.problem.type


async def decided_elsewhere(office: Office, **changes: Any) -> None:
    """By another replica: this one has not looked at the store since."""
    wanted = CaSettings(**changes)
    await change_ca(office.db, "ca1", lambda was: cas.changed(was, wanted), actor="local:test")


# ── At another replica ──


async def test_what_was_narrowed_at_another_replica_is_narrow_here_at_once(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who = await office.client()
        await office.issued(who)
        before = await office.order(who)
        assert before.state is OrderState.READY
        await decided_elsewhere(office, permitted=["corp.example"])
        assert await refusal(office, who, before) == "rejectedIdentifier"
        with pytest.raises(AcmeError, match="does not issue"):
            await office.order(who)


async def test_what_was_closed_at_another_replica_is_closed_here_at_once(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office:
        who = await office.client()
        await db.write(lambda tx: making.set_state(tx, "ca1", CaState.CLOSED, actor="local:test"))
        with pytest.raises(AcmeError, match="closed"):
            await office.order(who, NAME)


async def test_accounts_are_bound_here_at_once_if_another_replica_demands_it(db: Database, tmp_path: Path) -> None:
    async with open_front(db, tmp_path) as front:
        client = await front.stranger()
        wanted = CaSettings(eab_required=True)
        await change_ca(db, "ca1", lambda was: cas.changed(was, wanted), actor="local:test")
        assert problem(await client.register()) == (403, "externalAccountRequired")


# ── From trust to proofs ──


async def test_what_was_trusted_has_to_be_proved_once_names_are_proved(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path, options=TRUST) as office:
        who = await trusted(office, NAME.value)
        before = await office.order(who, NAME)
        assert before.state is OrderState.READY
        await decided(office, mode="validate")
        assert await refusal(office, who, before) == "unauthorized"
        assert (await office.order(who, NAME)).state is OrderState.PENDING


async def test_what_was_proved_is_still_used_again(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who = await office.client()
        await office.issued(who)
        assert (await office.order(who)).state is OrderState.READY


async def test_who_was_only_trusted_with_a_name_cannot_revoke_its_certificates_once_names_are_proved(
    db: Database, tmp_path: Path
) -> None:
    async with open_office(db, tmp_path, options=TRUST) as office, office.working():
        owner, other = await trusted(office, NAME.value), await trusted(office, NAME.value)
        order = await office.order(owner, NAME)
        await office.finalize(owner, order)
        issued = await office.ended(owner, order.id)
        await office.order(other, NAME)
        await decided(office, mode="validate")
        found = await db.read(lambda tx: ca_certificates.get(tx, issued.certificate or ""))
        assert found is not None
        with pytest.raises(AcmeError) as refused:
            await certificates.revoke(office.acme_context, office.ca, found.der, 4, who=other, key_spki=None)
        assert refused.value.problem.type == "unauthorized"


# ── Orders of before ──


async def test_an_order_for_a_name_that_is_permitted_no_more_is_over_at_its_last_step(
    db: Database, tmp_path: Path
) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        who = await office.client()
        order = await office.ready(who)
        await decided(office, permitted=["*.corp.example"])
        assert await refusal(office, who, order) == "rejectedIdentifier"


async def test_an_order_for_a_name_that_its_account_was_bound_to_is_over_when_it_is_bound_to_others(
    db: Database, tmp_path: Path
) -> None:
    async with open_office(db, tmp_path, options=TRUST) as office:
        who = await trusted(office, NAME.value)
        order = await office.order(who, NAME)
        await bound_to(office, who, "b.corp.example")
        assert await refusal(office, who, order) == "rejectedIdentifier"


# ── The limit of a name ──


async def test_orders_that_prove_nothing_do_not_use_up_a_name(db: Database, tmp_path: Path) -> None:
    policy = limits(orders_per_identifier=RateLimit(count=1, span=timedelta(hours=1)))
    async with open_office(db, tmp_path, policy=policy) as office, office.working():
        for _ in range(3):
            await office.order(await office.client())
        who = await office.client()
        assert (await office.issued(who)).state is OrderState.VALID
        again = await office.ready(who)
        with pytest.raises(AcmeError) as refused:
            await office.finalize(who, again)
        assert refused.value.problem.type == "rateLimited"
        assert 0 < (refused.value.problem.retry_after or 0) <= 3600
        assert (await orders.get(office.acme_context, who, again.id)).state is OrderState.READY


async def test_a_name_that_is_used_up_at_one_ca_is_not_at_another(db: Database, tmp_path: Path) -> None:
    policy = limits(orders_per_identifier=RateLimit(count=1, span=timedelta(hours=1)))
    async with open_office(db, tmp_path, policy=policy, options=TRUST) as office:
        who = await trusted(office, "*")
        row = await db.read(lambda tx: making.found(tx, "ca1"))
        await db.write(lambda tx: ca_rows.insert(tx, replace(row, id="ca2")))
        other = replace(office.ca, id="ca2", version=1)
        for n, ca in enumerate((office.ca, other)):
            order = await office.order(who, NAME, Identifier("dns", f"n{n}.example"))
            await moved(db, order, ca.id)
            started = await orders.finalize(office.acme_context, ca, who, order.id, a_csr(*order.identifiers))
            assert started.state is OrderState.PROCESSING


async def moved(db: Database, order: Order, ca: str) -> None:
    await db.write(lambda tx: tx.run("UPDATE acme_orders SET ca = :ca WHERE id = :id", ca=ca, id=order.id))
