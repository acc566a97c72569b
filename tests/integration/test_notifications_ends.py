"""An all-clear goes to those who were told, whoever would be told today; and to those who are told late."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.integration.test_notifications import a_certificate
from tests.support.engine import eventually
from tests.support.notifications import HOUR, MINUTE, SLOW, Newsroom, a_newsroom, in_virtual_time, pass_time

from holdfast.core.issuers.breaker import Breaker
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.notifications.notification import Routing, Severity
from holdfast.engine.notifications import duties
from holdfast.errors import Refused
from holdfast.operations.notifications import notifications
from holdfast.store import certificates, issuers
from holdfast.store.database import Database
from holdfast.store.tx import Tx

pytestmark = pytest.mark.anyio
DOWN, UP = "Issuer le is down", "Issuer le answers again"
NOTHING = Routing(severities=frozenset())


def hears(*severities: Severity) -> Routing:
    return Routing(severities=frozenset(severities))


async def settled(room: Newsroom) -> bool:
    return not {"pending", "failed"} & set(await room.states())


async def sent(room: Newsroom) -> None:
    async with room.running():
        await eventually(lambda: settled(room))


async def goes_down(room: Newsroom) -> None:
    def write(tx: Tx) -> None:
        issuers.insert(tx, IssuerRow(name="le", kind="acme", created_at=tx.now()))
        issuers.save_breaker(tx, "le", Breaker(failures=5, until=tx.now() + 30 * HOUR))

    await room.db.write(write)
    await room.happen("issuer.down", "le", error="no answer")


async def comes_up(room: Newsroom) -> None:
    await room.db.write(lambda tx: issuers.save_breaker(tx, "le", Breaker()))
    await room.happen("issuer.up", "le")


def test_a_fallback_that_was_told_in_place_of_its_channel_hears_the_end() -> None:
    async def story(room: Newsroom) -> None:
        pager = await room.add("pager", routing=NOTHING)
        chat = await room.add("chat", fallback="pager")
        chat.down = True
        async with room.running(pace=SLOW):
            await goes_down(room)
            await pass_time(HOUR)
            chat.down = False
            await pass_time(HOUR)
            await comes_up(room)
            await pass_time(10 * MINUTE)
        assert pager.titles == chat.titles == [DOWN, UP]

    in_virtual_time(story)


async def test_a_channel_that_was_told_of_a_warning_hears_the_end_of_what_became_critical(db: Database) -> None:
    room = a_newsroom(db)
    warned, paged = (
        await room.add("a", routing=hears(Severity.WARNING)),
        await room.add("b", routing=hears(Severity.CRITICAL)),
    )
    end = {"not_after": "2030", "in_hand": False}
    await room.happen("certificate.expires", "x", threshold=1, left_s=14 * 86400, **end)
    await room.happen("certificate.expires", "x", threshold=3, left_s=3 * 86400, **end)
    await room.add("c")  # has heard nothing, and need not hear that it is over
    await room.happen("certificate.well", "x", key="certificate/x")
    await sent(room)
    assert [len(each.came) for each in (warned, paged, room.boxes["c"])] == [2, 2, 0]
    assert all(each.came[-1].resolved for each in (warned, paged))


async def test_whoever_a_certificate_belongs_to_now_the_end_is_for_those_who_were_told(db: Database) -> None:
    room = a_newsroom(db)
    web, shop = (
        await room.add("web", routing=Routing(owners=("web",))),
        await room.add("shop", routing=Routing(owners=("shop",))),
    )
    await db.write(lambda tx: certificates.insert(tx, a_certificate(tx, "x", "web", "prod")))
    await room.happen("approval.asked", "x", approval="approval_1")

    def change(tx: Tx) -> None:
        found = certificates.get(tx, "x", lock=True)
        assert found is not None
        certificates.save(tx, found, wanted=replace(found.wanted, owner="shop"))

    await db.write(change)
    await duties.watch(db, timedelta(minutes=2))
    await sent(room)
    assert [each.resolved for each in web.came] == [False, True]
    assert shop.came == []


async def dead_and_over(room: Newsroom) -> None:
    """The pager did not take the alert, and what it told of is over."""
    room.boxes["pager"].troubles[DOWN] = Refused("401", reason="CHANNEL_MISCONFIGURED")
    await goes_down(room)
    await sent(room)
    await comes_up(room)
    await sent(room)
    room.boxes["pager"].troubles.clear()


@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside-another"])
async def test_an_alert_that_is_requeued_when_all_is_over_is_followed_by_its_end(db: Database, others: bool) -> None:
    room = a_newsroom(db)
    pager = await room.add("pager", kind="pagerduty")
    if others:
        await room.add("chat")
    await dead_and_over(room)
    assert UP not in pager.titles  # there is nothing to end
    assert await notifications.requeue_all(room.db.write, actor="local:alice") == 1
    await sent(room)
    assert [each for each in pager.titles if "Issuer le" in each] == [DOWN, UP]
    [again] = await room.all(channel="pager", event="issuer.down")
    await room.write(notifications.requeue, again.id, actor="local:alice")
    await sent(room)
    assert [each for each in pager.titles if "Issuer le" in each] == [DOWN, UP] * 2


async def test_an_alert_that_is_requeued_while_it_lasts_again_is_not_ended_by_an_old_end(db: Database) -> None:
    room = a_newsroom(db)
    pager = await room.add("pager")
    await dead_and_over(room)
    await room.db.write(lambda tx: issuers.save_breaker(tx, "le", Breaker(failures=5, until=tx.now() + HOUR)))
    await room.happen("issuer.down", "le", error="no answer")
    await notifications.requeue_all(room.db.write, actor="local:alice")
    await sent(room)
    assert [each for each in pager.titles if "Issuer le" in each] == [DOWN, DOWN]


async def test_what_nobody_wanted_to_hear_is_followed_by_its_end_once_somebody_does(db: Database) -> None:
    room = a_newsroom(db)
    await goes_down(room)
    await comes_up(room)
    late = await room.add("late")
    assert await notifications.requeue_all(room.db.write, actor="local:alice") == 1
    await sent(room)
    assert late.titles == [DOWN, UP]


async def test_words_about_what_lasts_are_kept_until_it_is_over(db: Database) -> None:
    """Otherwise nobody would know who is to hear of its end."""
    room = a_newsroom(db)
    box = await room.add("ops")
    await goes_down(room)
    await room.fail("other")
    await sent(room)
    await db.write(lambda tx: tx.run("UPDATE notifications SET created_at = 0"))
    assert await duties.forget(db, timedelta(days=90)) == 1
    await room.db.write(lambda tx: tx.run("UPDATE channels SET severities = '[]' WHERE name = 'ops'"))
    await comes_up(room)
    await sent(room)
    assert box.titles[-1] == UP
