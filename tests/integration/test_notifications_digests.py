"""Digests: the same lines under the same id or another id; and one that cannot go holds nothing else up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.engine import eventually
from tests.support.notifications import HOUR, MINUTE, SLOW, Box, Newsroom, a_newsroom, in_virtual_time, pass_time

from holdfast.core.notifications.notification import Delivery, Message, Missed
from holdfast.errors import Refused, TryLater
from holdfast.operations import kinds
from holdfast.operations.notifications import notifications
from holdfast.store.database import Database
from holdfast.store.notifications import channels as channel_rows
from holdfast.store.notifications import deliveries
from holdfast.store.notifications import notifications as rows
from holdfast.store.tx import Tx


async def no_digests(message: Message) -> None:
    if message.event == "digest":
        raise TryLater("500 Internal Server Error")


async def after_an_outage(room: Newsroom, box: Box, subjects: Sequence[str]) -> None:
    """These have waited so long for their channel that they come in a digest; three of them have failed once."""
    box.down = True
    await room.fail(*subjects)
    await pass_time(3 * HOUR)
    box.down = False


def test_a_digest_that_failed_once_comes_again_whole_under_its_id() -> None:
    """Although some of what is in it had failed before, and some had not: a receiver drops an id that it has seen."""

    async def story(room: Newsroom) -> None:
        box = await room.add("ops")
        digests: list[Message] = []

        async def once(message: Message) -> None:
            digests.extend([message] if message.event == "digest" else [])
            if len(digests) == 1 and message.event == "digest":
                raise TryLater("503")

        async with room.running(pace=SLOW):
            await after_an_outage(room, box, "abcdef")
            box.sending = once
            await pass_time(2 * HOUR)
        first, again = digests
        assert (first.id, first.text) == (again.id, again.text)
        assert len(first.text.splitlines()) == 5
        assert await room.states() == {"sent": 6}

    in_virtual_time(story)


@pytest.mark.anyio
async def test_a_digest_that_lost_a_line_meanwhile_has_another_id(db: Database) -> None:
    room = a_newsroom(db)
    await room.add("ops", digest_every=HOUR)
    await room.fail("a", "b", "c")
    await db.write(lambda tx: tx.run("UPDATE notifications SET digest_at = 0"))

    def picked(tx: Tx) -> Delivery:
        [found] = deliveries.pick(tx, "ops", tx.now(), 20)
        deliveries.put_back(tx, [found])
        deliveries.put_back(tx, [found])  # its COMMIT was unheard of
        return found

    first, same = await db.write(picked), await db.write(picked)
    assert (first.digest, len(first.notifications)) == (same.digest, 3)
    assert {each.begun for each in await room.all()} == {0}
    await room.write(notifications.resolve, first.notifications[0].id, note="told by phone", actor="local:alice")
    other = await db.write(picked)
    assert [each.subject for each in other.notifications] == ["b", "c"]
    assert other.digest != first.digest


def test_a_digest_that_its_service_cannot_take_is_taken_apart_and_holds_up_no_critical_alert() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("ops")
        async with room.running(pace=SLOW):
            await after_an_outage(room, box, "abcde")
            box.sending = no_digests
            await pass_time(30 * MINUTE)
            await room.happen("selfcheck.failed", "audit-chain", problem="row 7")
            await pass_time(30 * MINUTE)
        assert (await room.states()) == {"sent": 6}
        assert len(box.came) == 6
        assert (await room.read(channel_rows.get, "ops")).down_since is None

    in_virtual_time(story)


@pytest.mark.parametrize(
    ("trouble", "end"),
    [
        (Refused("400", reason="REFUSED"), ("REFUSED", 5)),
        (TryLater("500"), ("ATTEMPTS_USED_UP", 5)),
    ],
    ids=["refused", "failed"],
)
def test_one_line_that_is_not_taken_costs_the_others_of_its_digest_nothing(
    trouble: Exception, end: tuple[str, int]
) -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("ops", digest_every=HOUR)

        async def picky(message: Message) -> None:
            if "evil" in f"{message.title} {message.text}":
                raise trouble

        box.sending = picky
        async with room.running(pace=SLOW):
            await room.fail("evil", "b", "c", "d")
            await pass_time(3 * HOUR)
        [dead] = await room.all(state="dead")
        assert (dead.subject, dead.why, dead.retry_count) == ("evil", *end)
        assert sorted(each.subject for each in box.came) == ["b", "c", "d"]

    in_virtual_time(story)


@pytest.mark.anyio
async def test_whether_a_channel_is_back_is_tried_with_one_notification_critical_ones_first_and_a_digest_last(
    db: Database,
) -> None:
    room = a_newsroom(db)
    await room.add("ops", digest_every=HOUR)
    await room.fail("in a digest", "in it, too", "alone")
    await room.happen("selfcheck.failed", "audit-chain", problem="row 7")
    await db.write(
        lambda tx: tx.run("UPDATE notifications SET digest_at = CASE WHEN subject = 'alone' THEN NULL ELSE 0 END")
    )
    await db.write(lambda tx: tx.run("UPDATE notifications SET digest_at = NULL WHERE severity = 'critical'"))

    def probe(tx: Tx) -> list[str]:
        """As it is tried, and does not go."""
        [found] = deliveries.pick(tx, "ops", tx.now(), 20, probe=True)
        rows.tried(tx, found.notifications, "no answer", tx.now())
        return [each.subject for each in found.notifications]

    tried = [await db.write(probe) for _ in range(3)]
    assert tried == [["audit-chain"], ["alone"], ["audit-chain"]]
    await db.write(lambda tx: tx.run("DELETE FROM notifications WHERE digest_at IS NULL"))
    assert await db.write(probe) == ["in a digest", "in it, too"]


def test_a_quiet_channel_that_was_down_is_quiet_again_when_it_is_back() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("ops", digest_every=10 * MINUTE)
        box.down = True
        async with room.running(pace=SLOW):
            await room.fail(*"abcdefgh")
            await pass_time(35 * MINUTE)
            box.down = False
            await pass_time(HOUR)
        assert [each.event for each in box.came].count("digest") == 1
        assert len(box.came) == 2  # the one that found out, and all others
        assert await room.states() == {"sent": 8}

    in_virtual_time(story)


def test_digests_are_cut_where_services_take_little_and_none_is_left_out() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("chat", kind="apprise", digest_every=HOUR)
        subjects = [f"certificate-number-{n:03}.example.com" for n in range(45)]
        async with room.running(pace=SLOW):
            await room.fail(*subjects)
            await pass_time(3 * HOUR)
        assert max(len(each.text) for each in box.came) <= (kinds.channel_limits("apprise").digest_size or 0)
        assert len({each.id for each in box.came}) == len(box.came) == 3
        assert set(box.heard_of(await room.all()).values()) == {1}

    in_virtual_time(story)


# ── Some of those behind a channel ──

BOB = "bob@example.com"


def a_grey_one(box: Box, times: int) -> list[tuple[str, ...]]:
    """Bob's server says "later" so often; for whom each message was is kept."""
    asked: list[tuple[str, ...]] = []

    async def grey(message: Message) -> None:
        asked.append(message.only)
        box.missed = Missed(said=f"not for {BOB} (450 grey)", again=(BOB,)) if len(asked) <= times else None

    box.sending = grey
    return asked


@pytest.mark.anyio
async def test_whoever_says_later_is_owed_it_still_and_nobody_else_is(db: Database) -> None:
    room = a_newsroom(db)
    box = await room.add("ops")
    asked = a_grey_one(box, 1)
    async with room.running():
        await room.fail("a")

        async def waits() -> bool:
            return (await room.states())["failed"] == 1

        await eventually(waits)
        [owed] = await room.all()
        assert (owed.missed, owed.retry_count, owed.last_error) == ((BOB,), 0, f"not for {BOB} (450 grey)")
        assert (await room.read(channel_rows.get, "ops")).breaker.failures == 0
    await db.write(lambda tx: tx.run("UPDATE notifications SET next_retry_at = 0"))
    await db.write(lambda tx: tx.run("UPDATE jobs SET due_at = 0"))
    async with room.running("replica-b"):

        async def sent() -> bool:
            return await room.states() == {"sent": 1}

        await eventually(sent)
    [owed] = await room.all()
    assert (asked, owed.missed) == ([(), (BOB,)], ())
    assert [each.name for each in await room.read(notifications.history, owed.id)] == [
        "notification.missed_some",
        "notification.sent",
    ]


def test_whoever_says_later_five_times_is_told_of_and_the_notification_is_no_dead_letter() -> None:
    async def story(room: Newsroom) -> None:
        box, boss = await room.add("ops"), await room.add("boss")
        asked = a_grey_one(box, 5)
        async with room.running(pace=SLOW):
            await room.fail("a")
            await pass_time(HOUR)
        assert asked[:5] == [(), *[(BOB,)] * 4]
        assert "Channel ops does not reach all its recipients" in boss.titles
        assert (await room.states())["sent"] == len(await room.all())

    in_virtual_time(story)


def test_a_digest_goes_again_to_those_it_missed_as_it_was() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("ops", digest_every=HOUR)
        asked = a_grey_one(box, 3)
        async with room.running(pace=SLOW):
            await room.fail("a", "b", "c")
            await pass_time(HOUR + 3 * MINUTE)
            assert len(asked) <= 2  # it waits a minute, then two, then four
            await pass_time(HOUR)
        assert asked == [(), *[(BOB,)] * 3]
        assert len({(each.id, each.text) for each in box.came}) == 1
        assert await room.states() == {"sent": 3}

    in_virtual_time(story)
