"""A channel that is down: nothing dies of six hours, everything of three days, and nothing is lost by either."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.notifications import DAYS, HOUR, MINUTE, SLOW, Newsroom, in_virtual_time, pass_time

from holdfast.core.notifications.notification import OPENS_AFTER, Message, Missed, Routing, Severity
from holdfast.errors import Refused, TryLater
from holdfast.operations.notifications import channels, notifications
from holdfast.store.notifications import channels as channel_rows

MANY = 300
FEWER = 100
NOTHING = Routing(severities=frozenset())


def names(number: int) -> list[str]:
    return [f"cert-{n:04}" for n in range(number)]


def test_six_hours_down_kill_nothing_and_all_arrive_within_the_hour_of_its_return() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("ops")
        box.down = True
        async with room.running(pace=SLOW):
            await room.fail(*names(MANY))
            await pass_time(MINUTE)
            assert {each.begun for each in await room.all()} == {0}  # nobody thinks that they are under way
            await pass_time(6 * HOUR)
            waiting = await room.all(channel="ops")
            assert {each.state.value for each in waiting} <= {"pending", "failed"}
            assert sum(each.retry_count for each in waiting) == OPENS_AFTER  # the others spent no attempt
            box.down = False
            await pass_time(HOUR)
            owed = await room.all(channel="ops")
            assert {each.state.value for each in owed} == {"sent"}
            heard = box.heard_of(owed)
            assert [each.title for each in owed if heard[each.id] != 1] == []
            assert [each.event for each in box.came].count("digest") == MANY // 50

    in_virtual_time(story)


def test_replies_that_were_lost_repeat_a_message_under_its_own_id_and_nothing_else() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("ops")
        box.loses_replies = 2
        async with room.running(pace=SLOW):
            await room.fail("a", "b", "c")
            await pass_time(HOUR)
        heard = box.heard_of(await room.all(channel="ops"))
        assert sorted(heard.values()) == [1, 2, 2]
        assert {each.state.value for each in await room.all()} == {"sent"}
        assert sorted(each.retry_count for each in await room.all()) == [0, 1, 1]  # "delivered on attempt 2"

    in_virtual_time(story)


def test_seventy_two_hours_down_kill_all_with_a_reason_and_a_requeue_delivers_all() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("ops")
        box.down = True
        async with room.running(pace=DAYS):
            await room.fail(*names(FEWER))
            await pass_time(71 * HOUR)
            assert (await room.states())["dead"] == 0
            await pass_time(2 * HOUR)
            dead = await room.all(state="dead")
            assert len(dead) == FEWER
            assert {each.why for each in dead} == {"CHANNEL_DOWN"}
            assert all(each.next_retry_at is None and each.last_error for each in dead)
            box.down = False
            assert await notifications.requeue_all(room.db.write, actor="local:alice") == FEWER
            await pass_time(HOUR)
        owed = await room.all(channel="ops")
        assert {each.state.value for each in owed} == {"sent"}
        assert set(box.heard_of(owed).values()) == {1}

    in_virtual_time(story)


def test_what_came_late_in_an_outage_has_its_own_seventy_two_hours() -> None:
    async def story(room: Newsroom) -> None:
        (await room.add("ops")).down = True
        async with room.running(pace=DAYS):
            await room.fail("early")
            await pass_time(48 * HOUR)
            await room.fail("late")
            await pass_time(30 * HOUR)
            assert {each.subject: each.state.value for each in await room.all()} == {"early": "dead", "late": "pending"}

    in_virtual_time(story)


def test_a_poison_message_dies_at_its_fifth_attempt_while_its_channel_goes_on() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("ops")
        box.troubles["poison had lost its next step"] = TryLater("500 Internal Server Error")
        began = room.clock.monotonic()
        async with room.running(pace=SLOW):
            await room.fail("poison")
            for number in range(30):
                await room.fail(f"good-{number}")
                await pass_time(MINUTE)
        [poison] = await room.all(subject="poison")
        assert (poison.state.value, poison.retry_count, poison.why) == ("dead", 5, "ATTEMPTS_USED_UP")
        assert poison.last_error == "500 Internal Server Error"
        assert box.tried.count(poison.id) == 5
        dead = "SELECT details FROM events WHERE name = 'notification.dead' AND subject = :id"
        [told] = await room.db.read(lambda tx: tx.rows(dead, id=poison.id))
        assert '"attempts":5' in told["details"].replace(" ", "")
        assert poison.tried_at is not None
        took = (poison.tried_at - poison.created_at).total_seconds()
        assert 15 * 60 <= took < 24 * 60  # 1 + 2 + 4 + 8 minutes, each found by the next poll
        assert len(box.came) == 30
        assert room.clock.monotonic() - began < 31 * 60

    in_virtual_time(story)


def test_a_message_that_is_refused_dies_at_its_fifth_attempt_and_says_why_while_the_channel_goes_on() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("ops")
        box.troubles["bad had lost its next step"] = Refused("550 no such user", reason="REFUSED")
        async with room.running(pace=SLOW):
            await room.fail("bad", "good")
            await pass_time(30 * MINUTE)
        [bad] = await room.all(subject="bad")
        assert (bad.state.value, bad.why, bad.last_error, bad.retry_count) == ("dead", "REFUSED", "550 no such user", 5)
        assert box.titles == ["good had lost its next step"]
        assert (await room.read(channel_rows.get, "ops")).down_since is None

    in_virtual_time(story)


def test_a_channel_that_worked_and_now_refuses_us_is_down_and_kills_nothing_for_three_days() -> None:
    """An ingress that answers 404 for six hours is an outage; so is a token that somebody will renew."""

    async def story(room: Newsroom) -> None:
        box = await room.add("ops")
        refusal = Refused("404 page not found", reason="CHANNEL_MISCONFIGURED")
        async with room.running(pace=SLOW):
            await room.fail("before")
            await pass_time(MINUTE)
            box.sending = lambda _: _raised(refusal)
            await room.fail(*names(FEWER))
            await pass_time(6 * HOUR)
            assert (await room.states())["dead"] == 0
            box.sending = None
            await pass_time(HOUR)
        assert (await room.states())["sent"] == FEWER + 1

    in_virtual_time(story)


def test_a_channel_that_never_worked_with_these_settings_is_misconfigured_at_once() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("ops")
        async with room.running(pace=SLOW):
            await room.fail("before")
            await pass_time(MINUTE)
            await room.run(channels.change, name="ops", actor="local:alice", settings={"url": "x"})
            box.sending = lambda _: _raised(Refused("404", reason="CHANNEL_MISCONFIGURED"))
            await room.fail("after")
            await pass_time(MINUTE)
        [after] = await room.all(subject="after")
        assert (after.state.value, after.why) == ("dead", "CHANNEL_MISCONFIGURED")

    in_virtual_time(story)


async def _raised(why: Exception) -> None:
    raise why


def test_a_channel_that_says_too_many_for_a_quarter_of_an_hour_is_down_and_its_fallback_hears() -> None:
    async def story(room: Newsroom) -> None:
        mail = await room.add("mail")
        slack = await room.add("slack", fallback="mail")
        slack.sending = lambda _: _raised(TryLater("429", reason="RATE_LIMITED"))
        async with room.running(pace=SLOW):
            await room.fail("a")
            await pass_time(10 * MINUTE)
            assert not [each for each in mail.came if each.event == "channel.down"]
            await pass_time(50 * MINUTE)
        assert [each.subject for each in mail.came if each.event == "channel.down"] == ["slack"]
        [owed] = await room.all(channel="slack", subject="a")
        assert (owed.state.value, owed.retry_count) == ("pending", 0)

    in_virtual_time(story)


def test_whoever_a_channel_does_not_reach_is_told_of_once_and_the_others_hear_it_once() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("ops")
        box.missed = Missed(said="bob@example.com (550 no such user)", never=("bob@example.com",))
        async with room.running(pace=SLOW):
            await room.fail("a", "b")
            await pass_time(HOUR)
        assert sorted(box.titles) == [
            "Channel ops does not reach all its recipients", "a had lost its next step", "b had lost its next step",
        ]  # fmt: skip

    in_virtual_time(story)


def test_while_a_channel_is_down_one_at_a_time_probes_it_and_never_the_same_twice_running() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("ops")
        box.down = True
        async with room.running(pace=SLOW):
            await room.fail(*names(10))
            await pass_time(3 * HOUR)
        probes = box.tried[OPENS_AFTER:]
        assert 10 <= len(probes) <= 25  # 1, 2, 4, 8, 15, 15 … minutes apart
        assert len(set(probes)) == 10

    in_virtual_time(story)


def test_a_channel_that_asks_for_patience_gets_it_and_no_attempt_is_spent() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("ops")
        box.next += [TryLater("429", after=timedelta(minutes=10), reason="RATE_LIMITED") for _ in range(6)]
        async with room.running(pace=SLOW):
            await room.fail("a", "b")
            await pass_time(9 * MINUTE)
            assert len(box.tried) == 1
            await pass_time(3 * HOUR)
        assert {(each.state.value, each.retry_count) for each in await room.all()} == {("sent", 0)}
        assert len(box.came) == 2

    in_virtual_time(story)


def test_people_hear_that_a_channel_is_down_and_that_it_is_back_through_another() -> None:
    async def story(room: Newsroom) -> None:
        broken, other = await room.add("ops"), await room.add("boss")
        broken.down = True
        async with room.running(pace=SLOW):
            await room.fail("a", "b", "c")
            await pass_time(HOUR)
            broken.down = False
            await pass_time(HOUR)
        assert [each for each in other.titles if "ops" in each] == ["Channel ops is down", "Channel ops works again"]
        assert [each for each in broken.titles if "ops" in each] == []

    in_virtual_time(story)


def test_the_fallback_of_a_channel_that_is_down_hears_all_of_it_soon_and_once() -> None:
    async def story(room: Newsroom) -> None:
        mail = await room.add("mail", routing=NOTHING)
        slack = await room.add("slack", fallback="mail")
        slack.down = True
        async with room.running(pace=SLOW):
            await room.fail(*names(5))
            await pass_time(HOUR)
            assert sorted(mail.titles) == [f"{each} had lost its next step" for each in names(5)]
            slack.down = False
            await pass_time(HOUR)
        assert len(mail.came) == 5
        assert set(slack.heard_of(await room.all(channel="slack")).values()) == {1}

    in_virtual_time(story)


def test_the_fallback_hears_of_what_its_channel_refused() -> None:
    async def story(room: Newsroom) -> None:
        mail = await room.add("mail", routing=NOTHING)
        slack = await room.add("slack", fallback="mail")
        slack.troubles["a had lost its next step"] = Refused("too long")
        async with room.running(pace=SLOW):
            await room.fail("a", "b")
            await pass_time(30 * MINUTE)
        assert mail.titles == ["a had lost its next step"]
        assert slack.titles == ["b had lost its next step"]

    in_virtual_time(story)


def test_dead_letters_are_told_once_through_another_channel_and_once_more_when_none_is_left() -> None:
    async def story(room: Newsroom) -> None:
        broken, other = await room.add("ops"), await room.add("boss")
        for each in names(3):
            broken.troubles[f"{each} had lost its next step"] = Refused("no")
        async with room.running(pace=SLOW):
            await room.fail(*names(3))
            await pass_time(HOUR)
            assert [each for each in other.titles if "letters" in each] == ["There are dead letters of channel ops"]
            await notifications.resolve_all(room.db.write, note="told them by phone", actor="local:alice")
            await pass_time(HOUR)
        assert other.titles[-1] == "No dead letters of channel ops are left"
        assert (await room.states())["dead"] == 0

    in_virtual_time(story)


def test_an_all_clear_never_overtakes_what_it_clears() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("ops")
        box.next += [TryLater("no")]
        async with room.running(pace=SLOW):
            await room.happen("issuer.down", "le", error="no answer")
            await room.happen("issuer.up", "le")
            await pass_time(HOUR)
        assert box.titles == ["Issuer le is down", "Issuer le answers again"]
        assert [each.resolved for each in box.came] == [False, True]
        assert len({each.key for each in box.came}) == 1

    in_virtual_time(story)


def test_critical_notifications_that_waited_long_come_by_themselves_and_others_in_a_digest() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("ops")
        box.down = True
        async with room.running(pace=SLOW):
            await room.happen("selfcheck.failed", "audit-chain", problem="row 7")
            await room.fail(*names(4))
            await pass_time(5 * HOUR)
            box.down = False
            await pass_time(HOUR)
        events = [each.event for each in box.came]
        assert events.count("digest") == 1
        assert "selfcheck.failed" in events
        digest = next(each for each in box.came if each.event == "digest")
        assert digest.severity is Severity.WARNING

    in_virtual_time(story)


def test_services_that_keep_incidents_get_no_digest() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("pager", kind="pagerduty")
        box.down = True
        async with room.running(pace=SLOW):
            await room.fail(*names(4))
            await pass_time(5 * HOUR)
            box.down = False
            await pass_time(HOUR)
        assert [each.event for each in box.came] == ["certificate.stranded"] * 4

    in_virtual_time(story)


def test_a_quiet_channel_gets_one_digest_for_each_stretch_and_critical_things_at_once() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("ops", digest_every=6 * HOUR)
        async with room.running(pace=SLOW):
            await pass_time(HOUR)
            await room.fail("a", "b")
            await room.happen("selfcheck.failed", "audit-chain", problem="row 7")
            await pass_time(2 * HOUR)
            assert [each.event for each in box.came] == ["selfcheck.failed"]
            await room.fail("c")
            await pass_time(4 * HOUR)
        assert [each.event for each in box.came] == ["selfcheck.failed", "digest"]
        assert len(box.came[-1].text.splitlines()) == 3
        assert {each.state.value for each in await room.all()} == {"sent"}

    in_virtual_time(story)


def test_a_digest_whose_reply_was_lost_is_repeated_as_it_was_under_its_own_id() -> None:
    """Although more has come due by then."""

    async def story(room: Newsroom) -> None:
        box = await room.add("ops", digest_every=10 * MINUTE)
        box.loses_replies = 1
        async with room.running(pace=SLOW):
            await room.fail("a", "b")
            await pass_time(12 * MINUTE)
            await room.fail("c")
            await pass_time(2 * HOUR)
        first, again, last = box.came
        assert (first.id, first.text) == (again.id, again.text)
        assert last.id != first.id
        assert [len(each.text.splitlines()) for each in box.came] == [2, 2, 1]

    in_virtual_time(story)


def test_a_heartbeat_comes_as_often_as_asked_and_does_not_pile_up_while_its_channel_is_down() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("deadman", routing=NOTHING, heartbeat_every=HOUR)
        async with room.running(pace=SLOW):
            await pass_time(10 * HOUR + 5 * MINUTE)
            assert 10 <= len(box.came) <= 11
            box.down = True
            await pass_time(10 * HOUR)
            assert len(await room.all()) <= 13
            box.down = False
            await pass_time(HOUR + 30 * MINUTE)
        assert {each.event for each in box.came} == {"heartbeat"}
        assert len(box.came) >= 12

    in_virtual_time(story)


def test_a_channel_that_was_changed_is_tried_at_once_and_counts_as_down_until_it_answers() -> None:
    async def story(room: Newsroom) -> None:
        broken, other = await room.add("ops"), await room.add("boss")
        broken.down = True
        async with room.running(pace=SLOW):
            await room.fail("a", "b", "c")
            await pass_time(3 * HOUR)
            tried = len(broken.tried)
            await room.run(channels.change, name="ops", actor="x", settings={"host": "other"})
            await pass_time(timedelta(seconds=5))
            assert len(broken.tried) == tried + 1  # one tries for all
            await pass_time(MINUTE)
            assert "Channel ops works again" not in other.titles
            broken.down = False
            await pass_time(HOUR)
        assert other.titles[-1] == "Channel ops works again"
        assert other.titles.count("Channel ops is down") == 1

    in_virtual_time(story)


@pytest.mark.parametrize("closes", [False, True], ids=["as-it-is", "as-it-was-left-once"])
def test_whoever_changes_a_channel_that_is_down_costs_its_notifications_nothing(closes: bool) -> None:
    """Also where its breaker was closed by that, while it still counts as down."""
    closed = "UPDATE channels SET breaker_failures = 0, breaker_until = NULL, breaker_probe = NULL"

    async def story(room: Newsroom) -> None:
        (await room.add("ops")).down = True
        async with room.running(pace=SLOW):
            await room.fail("a")
            await pass_time(30 * MINUTE)
            for number in range(3):
                await room.run(channels.change, name="ops", actor="x", settings={"host": f"h{number}"})
                if closes:
                    await room.db.write(lambda tx: tx.run(closed))
                await pass_time(30 * MINUTE)
        [owed] = await room.all()
        assert (owed.state.value, owed.retry_count) == ("failed", OPENS_AFTER)

    in_virtual_time(story)


@pytest.mark.parametrize("changed", [False, True], ids=["as-it-was", "changed-first"])
def test_a_test_that_arrives_ends_an_outage_as_any_message_does(changed: bool) -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("ops")
        box.down = True
        async with room.running(pace=SLOW):
            await room.fail(*names(10))
            await pass_time(3 * HOUR)
        if changed:
            await room.run(channels.change, name="ops", actor="x", settings={"host": "other"})
        box.down = False
        await room.run(channels.test, name="ops", actor="local:alice")
        assert (await room.read(channel_rows.get, "ops")).down_since is None
        async with room.running("replica-b", pace=SLOW):
            await pass_time(HOUR)
        assert [each.event for each in box.came] == ["test", "digest"]
        assert await room.states() == {"sent": 10}

    in_virtual_time(story)


def test_a_fallback_that_is_gone_keeps_nobody_from_looking_whether_its_channel_is_back() -> None:
    """However much waits: there is a page of it to pass on, and nobody takes it."""

    async def story(room: Newsroom) -> None:
        box = await room.add("ops")
        box.down = True
        await room.db.write(lambda tx: tx.run("UPDATE channels SET fallback = 'gone'"))
        async with room.running(pace=SLOW):
            await room.fail(*names(FEWER * 2))
            await pass_time(HOUR)
            box.down = False
            await pass_time(HOUR)
        assert (await room.states())["sent"] >= FEWER * 2

    in_virtual_time(story)


def test_a_slow_channel_is_drained_in_turns_and_leaves_no_dead_job() -> None:
    async def story(room: Newsroom) -> None:
        box = await room.add("ops")

        async def slowly(message: Message) -> None:
            await pass_time(timedelta(seconds=16))

        box.sending = slowly
        async with room.running(pace=SLOW):
            await room.fail(*names(21))
            await pass_time(HOUR)
            assert await room.db.read(lambda tx: tx.rows("SELECT state FROM jobs WHERE kind = 'notify'")) == []
        assert len(box.came) == len(set(box.tried)) == len(box.tried) == 21

    in_virtual_time(story)
