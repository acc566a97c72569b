"""Many that are renewed spread over a time: each begins at its turn, and earlier if there is a reason."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from tests.support.api import a_desk
from tests.support.jobs import update
from tests.support.lifecycle import House, a_house

from holdfast.core.certificate import Ari
from holdfast.core.reasons import Reason
from holdfast.operations.certificates.views import View
from holdfast.operations.issuance import attempts as issuance_attempts
from holdfast.store import certificates as rows
from holdfast.store.database import Database
from holdfast.store.tx import Tx

pytestmark = pytest.mark.anyio
NAME, HOUR = "www.example.com", timedelta(hours=1)


async def kept(house: House, **wishes: object) -> View:
    await house.ask(NAME, **wishes)
    return await house.worked(NAME)


async def spread(house: House, delay: timedelta = 6 * HOUR) -> View:
    await house.renew(NAME, actor="human:ann", delay=delay)
    return await house.view(NAME)


def turn(view: View) -> datetime:
    assert view.job is not None
    return view.job.due_at


async def test_it_waits_for_its_turn_and_is_not_begun_before(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await kept(house)
    view = await spread(house)
    assert abs(turn(view) - view.now - 6 * HOUR) < timedelta(minutes=1)
    assert view.status.reason_code is Reason.STAGGERED
    async with house.working():
        await house.renew(NAME, actor="human:ann", delay=5 * HOUR)
        view = await house.view(NAME)
        assert abs(turn(view) - view.now - 5 * HOUR) < timedelta(minutes=1), "an earlier turn counts"
        assert house.cas["ca"].calls.count("place") == 1
        await house.renew(NAME, actor="human:ann")
        after = await house.settled(NAME)
    assert house.cas["ca"].calls.count("place") == 2
    assert after.current is not None
    [last, _] = await db.read(lambda tx: tx.rows("SELECT started_at, ended_at FROM issuances ORDER BY ended_at DESC"))
    assert last["started_at"] <= last["ended_at"], "it began when somebody wanted it now"


async def test_a_turn_is_never_later_than_the_renewal_would_have_been(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path, life=10 * HOUR)
    planned = (await kept(house)).status.next_attempt_at
    assert planned is not None
    view = await spread(house, 7 * 24 * HOUR)
    assert turn(view) == planned


async def test_one_that_is_due_or_was_never_issued_does_not_wait(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.ask(NAME)
    await house.cancel(NAME, actor="human:ann", why="a test")
    view = await spread(house)
    assert turn(view) <= view.now


async def test_if_the_ca_wants_it_renewed_now_its_turn_is_now(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    view = await kept(house)
    await spread(house)

    def move_the_window(tx: Tx) -> None:
        found, now = rows.get(tx, view.certificate.id, lock=True), tx.now()
        assert found is not None
        ari = Ari(start=now - 2 * HOUR, end=now - HOUR, pick=now - HOUR)
        issuance_attempts.replan(tx, found, now, ari=ari)

    await db.write(move_the_window)
    assert turn(await house.view(NAME)) <= (await house.view(NAME)).now


async def test_one_that_is_revoked_meanwhile_is_replaced_at_once(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await kept(house)
    await spread(house)
    await house.revoke(NAME, reason=1, actor="human:ann")
    view = await house.view(NAME)
    assert turn(view) <= view.now


async def test_one_that_a_second_person_approves_keeps_its_turn(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await kept(house)
    await update(db, "UPDATE certificates SET approval_required = TRUE")
    await spread(house)
    [asked] = await house.pending()
    await house.approve(asked.id, actor="human:bob")
    view = await house.view(NAME)
    assert abs(turn(view) - view.now - 6 * HOUR) < timedelta(minutes=1)


async def test_by_the_api_a_turn_is_asked_for_in_seconds(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        await kept(desk.house)
        admin = await desk.as_()
        tried = await admin("POST", f"/certificates/{NAME}/renew", {"delay_s": 3600}, dry_run=True)
        assert tried.json()["status"]["reason_code"] == "STAGGERED"
        answer = await admin("POST", f"/certificates/{NAME}/renew", {"delay_s": 3600})
        assert (answer.status_code, answer.json()["status"]["phase"]) == (202, "waiting")
        explained = await admin.get(f"/certificates/{NAME}/explain")
        assert explained["blocking"] == "STAGGERED"
        assert (await admin("POST", f"/certificates/{NAME}/renew", {"delay_s": 8 * 86400})).status_code == 422
