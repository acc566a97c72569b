"""A signature that cannot be had now: it is tried again soon and for long enough, and the CA says what is wrong."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.acme_desk import Office, open_office
from tests.support.ca import with_ended_issuer
from tests.support.engine import eventually

from holdfast.core.own_ca.acme import Order, OrderState
from holdfast.core.own_ca.ca import CaMode, CaOptions
from holdfast.core.own_ca.problem import AcmeError
from holdfast.errors import TryLater
from holdfast.operations.acme import orders
from holdfast.operations.acme.context import Requester
from holdfast.operations.acme.orders import ISSUE
from holdfast.pki.signing import Signer
from holdfast.store.database import Database
from holdfast.store.own_ca import certificates
from holdfast.store.work import jobs

pytestmark = pytest.mark.anyio


class Away:
    """A device that does not answer for a while."""

    quick = True

    def __init__(self, true: Signer, refusals: int) -> None:
        self.public_key, self._true, self._left = true.public_key, true, refusals

    def sign(self, content: bytes) -> bytes:
        self._left -= 1
        if self._left >= 0:
            raise TryLater("The device is away", reason="SIGNER_UNAVAILABLE")
        return self._true.sign(content)


@asynccontextmanager
async def with_device(db: Database, folder: Path, refusals: int) -> AsyncIterator[tuple[Office, Requester, Order]]:
    """An order, finalized, at a CA whose device refuses so often."""
    async with open_office(db, folder, options=CaOptions(mode=CaMode.TRUST)) as office:
        who = await office.client()
        names = """UPDATE acme_accounts SET names = '["*"]' WHERE id = :id"""
        await db.write(lambda tx: tx.run(names, id=who.account))
        office.ca = replace(office.ca, signer=Away(office.ca.signer, refusals))
        office.acme_context.authorities._opened["ca1"] = office.ca
        order = await office.order(who)
        yield office, who, await office.finalize(who, order)


def tried(db: Database, order: Order, times: int) -> Callable[[], object]:
    async def looked() -> bool:
        found = await db.read(lambda tx: certificates.tries(tx, order.id))
        job = await db.read(lambda tx: jobs.live(tx, ISSUE, order.id))
        return found is not None and len(found[0]) == times and job is not None and job.state == "ready"

    return looked


async def test_a_device_that_is_away_for_longer_than_three_tries_does_not_cost_the_order(
    db: Database, tmp_path: Path
) -> None:
    async with with_device(db, tmp_path, refusals=5) as (office, who, order), office.working():
        for times in range(1, 6):
            await eventually(tried(db, order, times))  # type: ignore[arg-type]
            job, now = await db.read(lambda tx: (jobs.live(tx, ISSUE, order.id), tx.now()))
            assert job is not None
            assert (job.reason, job.attempts) == ("SIGNER_UNAVAILABLE", 0)
            assert job.due_at - now < timedelta(minutes=6)
            assert office.acme_context.authorities.problem("ca1") == "The device is away"
            await db.write(lambda tx: jobs.bring_forward(tx, ISSUE, order.id, tx.now()))
        assert (await office.ended(who, order.id)).state is OrderState.VALID
        assert office.acme_context.authorities.problem("ca1") is None


async def test_the_first_try_after_one_that_failed_comes_within_seconds(db: Database, tmp_path: Path) -> None:
    async with with_device(db, tmp_path, refusals=1) as (office, _, order), office.working():
        await eventually(tried(db, order, 1))  # type: ignore[arg-type]
        job, now = await db.read(lambda tx: (jobs.live(tx, ISSUE, order.id), tx.now()))
        assert job is not None
        assert job.due_at - now < timedelta(seconds=7)


async def test_an_order_that_could_not_be_signed_for_an_hour_is_over_and_says_so(db: Database, tmp_path: Path) -> None:
    async with with_device(db, tmp_path, refusals=1000) as (office, who, order):
        long_ago = "UPDATE ca_issuances SET created_at = created_at - :by"
        await db.write(lambda tx: tx.run(long_ago, by=timedelta(minutes=61)))
        async with office.working():
            ended = await office.ended(who, order.id)
        assert ended.state is OrderState.INVALID
        assert ended.error is not None
        assert ended.error.type == "serverInternal"
        assert (await orders.get(office.acme_context, who, order.id)).certificate is None


async def test_an_issuer_that_has_ended_takes_no_orders_and_says_why(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office:
        who = await office.client()
        office.ca = office.acme_context.authorities._opened["ca1"] = await with_ended_issuer(office.ca)
        with pytest.raises(AcmeError, match="not valid now") as refused:
            await office.order(who)
        assert refused.value.problem.type == "serverInternal"
        assert "holdfast ca renew ca1" in (office.acme_context.authorities.problem("ca1") or "")
