"""The outbox: owed in the transaction of its cause, sent by one replica, requeued whole; on both stores."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.support.ca import a_vault
from tests.support.engine import Moody, eventually
from tests.support.notifications import HOUR, Newsroom, a_newsroom
from tests.support.secrets_planted import KEPT_ADDRESS, KEPT_FIRST, KEPT_SECOND, MARK
from tests.support.stores import open_store

from holdfast.core.certificate import Certificate, CertificateSpec, CertificateState
from holdfast.core.issuers.breaker import Breaker
from holdfast.core.issuers.budget import Limit
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.notifications.notification import Message, Missed, Notification, NotificationState, Routing, Severity
from holdfast.core.own_ca.acme import Identifier
from holdfast.engine.kind import Work
from holdfast.engine.notifications import delivery, duties
from holdfast.errors import OutcomeUnknown, Refused, StoreUnavailable, TryLater, UserError
from holdfast.operations import remotes
from holdfast.operations.installation.observe import refresh
from holdfast.operations.notifications import channels, notifications
from holdfast.operations.notifications.routing import route
from holdfast.operations.runner import Options
from holdfast.ports import no_points
from holdfast.store import certificates, issuers, journal
from holdfast.store.database import Database, Engine, conclude
from holdfast.store.notifications import channels as channel_rows
from holdfast.store.notifications import notifications as rows
from holdfast.store.notifications.notifications import Filter
from holdfast.store.tx import Tx
from holdfast.store.work import jobs
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio
CRITICAL_ONLY = Routing(severities=frozenset({Severity.CRITICAL}))


@pytest.fixture
def room(db: Database) -> Newsroom:
    return a_newsroom(db)


async def settled(room: Newsroom) -> bool:
    return not {"pending", "failed"} & set(await room.states())


# ── The outbox ──


async def test_a_notification_is_owed_in_the_transaction_of_its_cause_or_not_at_all(room: Newsroom) -> None:
    await room.add("ops")

    def cause(tx: Tx) -> None:
        journal.event(tx, "issuer.down", "le", error="no answer")
        raise ValueError("and then something else went wrong")

    with pytest.raises(ValueError, match="something else"):
        await room.db.write(cause)
    assert await room.all() == []
    await room.happen("issuer.down", "le", error="no answer")
    [owed] = await room.all()
    assert (owed.state.value, owed.channel, owed.title) == ("pending", "ops", "Issuer le is down")
    owed_jobs = await room.db.read(lambda tx: tx.rows("SELECT kind, subject FROM jobs"))
    assert [(row["kind"], row["subject"]) for row in owed_jobs] == [("notify", "ops")]


async def test_it_is_sent_and_its_history_tells_on_which_attempt(room: Newsroom) -> None:
    box = await room.add("ops")
    async with room.running():
        await room.happen("issuer.down", "le", error="no answer")
        await eventually(lambda: settled(room))
    [owed] = await room.all()
    assert (owed.state.value, owed.retry_count) == ("sent", 0)
    assert [(each.id, each.key, each.attempt) for each in box.came] == [(owed.id, "issuer/le", 1)]
    assert [each.name for each in await room.read(notifications.history, owed.id)] == ["notification.sent"]
    assert room.watch.metric("notification_deliveries_total", channel="ops", outcome="delivered") == 1
    assert box.closed >= 1
    await eventually(lambda: no_job(room))


async def test_a_transaction_that_tells_nobody_costs_no_statement_more(room: Newsroom) -> None:
    await room.add("ops")
    asked: list[str] = []

    def quiet(tx: Tx) -> None:
        plain = tx._session.execute, tx._session.query
        tx._session.execute = lambda sql, params: asked.append(sql) or plain[0](sql, params)  # type: ignore
        tx._session.query = lambda sql, params: asked.append(sql) or plain[1](sql, params)  # type: ignore
        try:
            journal.event(tx, "certificate.issued", "x")
            journal.event(tx, "job.failed", "x")
            conclude(tx, route)
        finally:
            tx._session.execute, tx._session.query = plain  # type: ignore[method-assign]

    await room.db.write(quiet)
    assert [sql.split()[0] for sql in asked] == ["UPDATE", "INSERT"]  # the journal's own
    assert not any("channels" in sql or "notifications" in sql for sql in asked)


async def test_what_others_said_never_costs_the_transaction_that_tells_of_it(room: Newsroom) -> None:
    await room.add("ops")
    await room.happen("issuer.down", "le", error="a\0b\ud800c\r\nSubject: d\u202e", called="x\0y\ud800")
    await room.happen("approval.asked", "a", strange=True)  # without the facts that its words are made of
    first, second = await room.all()
    assert "Subject: d" in first.text
    assert second.title == "a: approval asked"


async def test_one_outage_is_one_alert_and_one_all_clear_however_many_suffer(room: Newsroom) -> None:
    box = await room.add("ops")

    def down(tx: Tx) -> None:
        issuers.insert(tx, IssuerRow(name="le", kind="acme", created_at=tx.now()))
        issuers.save_breaker(tx, "le", Breaker(failures=5, until=tx.now() + HOUR))

    await room.db.write(down)
    async with room.running():
        for _ in range(20):
            await room.happen("issuer.down", "le", error="no answer")
        await room.happen("issuer.up", "le")
        await room.happen("issuer.up", "le")
        await eventually(lambda: settled(room))
    assert box.titles == ["Issuer le is down", "Issuer le answers again"]


async def test_what_no_channel_wants_stays_visible_and_goes_out_once_there_is_one(room: Newsroom) -> None:
    await room.add("pager", routing=CRITICAL_ONLY)
    await room.fail("a")
    [unpaid] = await room.all()
    assert (unpaid.state.value, unpaid.channel, unpaid.why) == ("dead", "", "NO_CHANNEL")
    assert (await room.db.read(notifications.summarize)).dead == 1
    with pytest.raises(UserError, match="nowhere to go"):
        await room.write(notifications.requeue, unpaid.id, actor="local:alice")
    box = await room.add("ops")
    await room.write(notifications.requeue, unpaid.id, actor="local:alice")
    async with room.running():
        await eventually(lambda: box.came)
        await eventually(lambda: settled(room))
    after = await room.read(notifications.found, unpaid.id)
    assert (after.state.value, after.note) == ("resolved", "sent on to ops")


async def test_it_goes_to_those_who_want_its_severity_owner_and_labels(room: Newsroom) -> None:
    boxes = {
        "all": await room.add("all"),
        "shop": await room.add("shop", routing=Routing(owners=("shop",))),
        "prod": await room.add("prod", routing=Routing(labels={"env": "prod"})),
        "pager": await room.add("pager", routing=CRITICAL_ONLY),
    }
    for name, owner, env in (("a", "shop", "test"), ("b", "bank", "prod")):
        await room.db.write(lambda tx, n=name, o=owner, e=env: certificates.insert(tx, a_certificate(tx, n, o, e)))  # type: ignore[misc]
    async with room.running():
        await room.fail("a", "b")
        await room.happen("selfcheck.failed", "audit-chain", problem="row 7")
        await eventually(lambda: settled(room))
    heard = {name: sorted(each.subject for each in box.came) for name, box in boxes.items()}
    assert heard == {"all": ["a", "audit-chain", "b"], "shop": ["a"], "prod": ["b"], "pager": ["audit-chain"]}


def a_certificate(tx: Tx, name: str, owner: str, env: str) -> Certificate:
    spec = CertificateSpec(
        name=name,
        identifiers=(Identifier(type="dns", value=f"{name}.example"),),
        issuers=("ca",),
        owner=owner,
        labels={"env": env},
    )
    return Certificate(
        id=name,
        wanted=spec,
        state=CertificateState.PAUSED,
        generation=1,
        version=1,
        fingerprint=spec.fingerprint(),
        changed_by="x",
        created_at=tx.now(),
    )


async def test_two_replicas_never_both_send(make_engine: Callable[[], Engine], db: Database) -> None:
    """Each with its own connections where the store can be shared; on SQLite two workers of one process."""
    first = a_newsroom(db)
    other = open_store(make_engine()) if db.engine.shared else db
    second = replace(a_newsroom(other), boxes=first.boxes)
    box = await first.add("ops")
    under_way: list[str] = []

    async def slowly(message: Message) -> None:
        assert not under_way  # never two at a time
        under_way.append(message.id)
        await asyncio.sleep(0.002)
        under_way.clear()

    box.sending = slowly
    async with first.running("a"), second.running("b"):
        await asyncio.gather(first.fail(*map(str, range(10))), second.fail(*map(str, range(10, 20))))
        await eventually(lambda: settled(first))
    if other is not db:
        await other.close()
    assert sorted(each.subject for each in box.came) == sorted(map(str, range(20)))


async def test_whoever_lost_the_job_meanwhile_writes_nothing(room: Newsroom) -> None:
    """The message may come twice, under one id; it is never marked by one who does not hold it any more."""
    box = await room.add("ops")

    async def stolen(message: Message) -> None:
        if len(box.tried) == 1:
            await room.db.write(lambda tx: tx.run("UPDATE jobs SET fence = fence + 1, state = 'ready', holder = NULL"))

    box.sending = stolen
    async with room.running():
        await room.fail("a")
        await eventually(lambda: settled(room))
    assert [each.id for each in box.came] == [box.came[0].id] * 2
    [owed] = await room.all()
    assert owed.state.value == "sent"
    assert [each.name for each in await room.read(notifications.history, owed.id)] == ["notification.sent"]


async def test_many_are_drained_with_little_memory(db: Database) -> None:
    """Ten thousand of them: make bench-notifications."""
    room = a_newsroom(db)
    box = await room.add("ops", limit=Limit(burst=10_000, every=timedelta(milliseconds=1)))
    number = 400
    await room.fail(*(f"cert-{n:04}" for n in range(number)))
    await room.db.read(lambda tx: tx.now())
    gc.collect()
    tracemalloc.start()
    try:
        async with room.running():
            await eventually(lambda: len(box.tried) == number)
            _, most = tracemalloc.get_traced_memory()
            await eventually(lambda: settled(room))
    finally:
        tracemalloc.stop()
    assert most < 20_000_000
    assert len({each.id for each in box.came}) == number
    assert box.titles == sorted(box.titles)  # oldest first


async def test_a_channels_budget_bounds_what_it_is_sent(room: Newsroom) -> None:
    box = await room.add("ops", limit=Limit(burst=3, every=HOUR))
    async with room.running():
        await room.fail(*"abcdefgh")
        await eventually(lambda: len(box.came) == 3)

        async def waits_for_its_turn() -> bool:
            found = await room.db.read(lambda tx: tx.row("SELECT reason, state FROM jobs WHERE kind = 'notify'"))
            return found is not None and found["state"] == "ready" and found["reason"] == "BUDGET"

        await eventually(waits_for_its_turn)
    assert len(box.came) == 3
    assert await room.states() == {"sent": 3, "pending": 5}
    assert {each.begun for each in await room.all(state="pending")} == {0}


async def test_whoever_dies_three_times_over_one_message_is_not_asked_a_fourth_time(room: Newsroom) -> None:
    """Those that were in its batch go alone then, and are delivered."""
    box = await room.add("ops")
    await room.fail("a", "poison", "z")

    class Killed(BaseException):
        pass

    async def deadly(message: Message) -> None:
        if message.title.startswith("poison"):
            raise Killed

    box.sending = deadly
    deaths = 0
    while not await settled(room):
        try:
            work = await a_claim(room)
            await delivery.kind(room.tools).handler(work)
        except Killed:
            deaths += 1
        assert deaths <= 3
    assert deaths == 3
    [poison] = await room.all(subject="poison")
    assert (poison.state.value, poison.why) == ("dead", "POISON")
    assert {each.subject for each in box.came} == {"a", "z"}


async def a_claim(room: Newsroom) -> Work:
    """As a worker would take it after the last holder's lease has run out."""

    def take(tx: Tx) -> Work:
        tx.run("UPDATE jobs SET state = 'ready', due_at = 0, crashes = 0, holder = NULL WHERE kind = 'notify'")
        [claim] = jobs.claim(tx, holder="x", free={"notify": 1}, ttl=timedelta(minutes=5))
        return Work(claim=claim, check=lambda: None, point=no_points)

    return await room.db.write(take)


async def test_what_comes_just_as_a_drain_ends_does_not_wait_for_a_sweep(room: Newsroom) -> None:
    """It has found nothing more, and is not over yet: whoever owes something now finds its job at work."""
    box = await room.add("ops")

    async def one_more() -> None:
        if box.closed == 1:
            await room.fail("late")

    box.closing = one_more
    async with room.running():
        await room.fail("early")
        await eventually(lambda: len(box.came) == 2)


async def test_a_channel_that_lost_its_job_gets_it_back(room: Newsroom) -> None:
    box = await room.add("ops")
    await room.fail("a")
    await room.db.write(lambda tx: tx.run("DELETE FROM jobs"))
    assert await delivery.retry(room.db, room.tools.random) == 1
    async with room.running():
        await eventually(lambda: box.came)


# ── Requeue, resolve ──


async def dead_ones(room: Newsroom, *subjects: str) -> list[Notification]:
    box = room.boxes["ops"]
    refused = Refused("no such user", reason="CHANNEL_MISCONFIGURED")
    box.troubles |= {f"{each} had lost its next step": refused for each in subjects}
    async with room.running():
        await room.fail(*subjects)
        await eventually(lambda: settled(room))
    box.troubles.clear()
    return await room.all(state="dead")


async def test_a_requeue_gives_everything_back_at_once_and_the_history_keeps_it(room: Newsroom) -> None:
    await room.add("ops")
    [dead] = await dead_ones(room, "a")
    again = await room.write(notifications.requeue, dead.id, actor="local:alice")
    cleared = again.retry_count, again.next_retry_at, again.last_error, again.why
    assert (again.state.value, cleared) == ("pending", (0, None, None, None))
    requeued = (await room.read(notifications.history, dead.id))[-1]
    assert (requeued.name, requeued.details["error"], requeued.details["by"]) == (
        "notification.requeued", "no such user", "local:alice",
    )  # fmt: skip
    async with room.running():
        await eventually(lambda: settled(room))
    assert room.boxes["ops"].came[-1].id == dead.id
    names = [each.name for each in await room.read(notifications.history, dead.id)]
    assert names == ["notification.dead", "notification.requeued", "notification.sent"]


async def test_a_requeue_by_filter_takes_those_and_no_others(room: Newsroom) -> None:
    await room.add("ops")
    await dead_ones(room, "a", "b", "c")
    which = Filter(state=NotificationState.DEAD, subject="b")
    assert await notifications.requeue_all(room.db.write, which, actor="local:alice") == 1
    assert [each.subject for each in await room.all(state="pending")] == ["b"]
    async with room.running():
        await eventually(lambda: settled(room))
    assert (
        await notifications.requeue_all(room.db.write, Filter(channel="ops"), actor="local:alice") == 2
    )  # not what was sent
    assert await notifications.requeue_all(room.db.write, actor="local:alice") == 0


async def test_one_that_is_on_its_way_cannot_be_requeued_and_one_that_never_was_is_unknown(room: Newsroom) -> None:
    await room.add("ops")
    await room.fail("a")
    [pending] = await room.all()
    with pytest.raises(UserError, match="pending"):
        await room.write(notifications.requeue, pending.id, actor="x")
    with pytest.raises(UserError, match="no notification 'nope'"):
        await room.write(notifications.requeue, "nope", actor="x")


async def test_a_note_settles_a_dead_letter_and_is_kept(room: Newsroom) -> None:
    await room.add("ops")
    [dead] = await dead_ones(room, "a")
    with pytest.raises(UserError, match="note"):
        await room.write(notifications.resolve, dead.id, note=" ", actor="x")
    after = await room.write(notifications.resolve, dead.id, note="told them by phone", actor="local:alice")
    assert (after.state.value, after.note, after.settled_by) == ("resolved", "told them by phone", "local:alice")
    assert (await room.db.read(notifications.summarize)).dead == 0


# ── Channels ──


async def test_a_deleted_channel_leaves_dead_letters_with_a_reason_and_its_fallback_is_told(room: Newsroom) -> None:
    other = await room.add("other", routing=Routing(severities=frozenset()))
    await room.add("ops", fallback="other")
    await room.fail("a", "b")
    assert (await room.run(channels.delete, name="ops", actor="local:alice")).number == 2
    gone = await room.all(channel="ops")
    assert {(each.state.value, each.why) for each in gone} == {("dead", "CHANNEL_GONE")}
    async with room.running():
        await eventually(lambda: settled(room))
    assert [each.subject for each in other.came] == ["a", "b"]
    assert room.boxes["ops"].tried == []
    with pytest.raises(UserError, match="nowhere to go"):
        await room.write(notifications.requeue, gone[0].id, actor="x")
    again = await room.add("ops")
    assert await notifications.requeue_all(room.db.write, actor="x") == 2
    async with room.running():
        await eventually(lambda: settled(room))
    assert len(again.came) == 2


async def test_what_was_owed_to_a_channel_that_vanished_dies_and_is_never_sent(room: Newsroom) -> None:
    await room.add("ops")
    await room.fail("a")
    await room.db.write(lambda tx: tx.run("DELETE FROM channels"))
    async with room.running():
        await eventually(lambda: settled(room))
    [owed] = await room.all()
    assert (owed.state.value, owed.why) == ("dead", "CHANNEL_GONE")
    assert room.boxes["ops"].tried == []


async def test_a_misconfigured_channel_makes_dead_letters_that_say_so(room: Newsroom) -> None:
    await room.add("ops")
    room.boxes.wrong["ops"] = Refused("Channel ops: its url is no address.", reason="CHANNEL_MISCONFIGURED")
    async with room.running():
        await room.fail("a", "b")
        await eventually(lambda: settled(room))
        owed = await room.all()
        assert {(each.state.value, each.why) for each in owed} == {("dead", "CHANNEL_MISCONFIGURED")}
        assert owed[0].last_error == "Channel ops: its url is no address."
        room.boxes.wrong.clear()
        await room.run(channels.change, name="ops", actor="x", settings={"url": "right"})
        await notifications.requeue_all(room.db.write, actor="x")
        await eventually(lambda: settled(room))
    assert len(room.boxes["ops"].came) == 2


async def test_a_paused_channel_keeps_what_it_is_owed_until_it_is_resumed(room: Newsroom) -> None:
    box = await room.add("ops")
    await room.run(channels.pause, name="ops", actor="x")
    async with room.running():
        await room.fail("a")
        await eventually(lambda: no_job(room))
        assert box.tried == []
        await room.run(channels.resume, name="ops", actor="x")
        await eventually(lambda: box.came)


async def no_job(room: Newsroom) -> bool:
    return not await room.db.read(lambda tx: tx.rows("SELECT id FROM jobs WHERE kind = 'notify'"))


async def test_a_test_goes_past_everything_that_waits_and_says_what_is_wrong(room: Newsroom) -> None:
    box = await room.add("ops")
    said = await room.run(channels.test, name="ops", actor="local:alice")
    assert (said.ok, box.came[0].id in said.detail) == (True, True)
    assert await room.all() == []
    box.down = True
    said = await room.run(channels.test, name="ops", actor="local:alice")
    assert (said.ok, "ops could not be reached: connection refused" in said.detail) == (False, True)


async def test_each_test_of_a_service_that_keeps_incidents_is_one_of_its_own_and_ends(room: Newsroom) -> None:
    box = await room.add("pager", kind="pagerduty")
    for _ in range(2):
        await room.run(channels.test, name="pager", actor="local:alice")
    first, over, second, _ = box.came
    assert (first.key, first.resolved, over.resolved) == (over.key, False, True)
    assert second.key != first.key
    assert len({each.id for each in box.came}) == 4


async def test_a_test_says_whom_it_did_not_reach(room: Newsroom) -> None:
    box = await room.add("ops")
    box.missed = Missed(said="It is not for bob@example.com (450 grey).", again=("bob@example.com",))
    said = await room.run(channels.test, name="ops", actor="local:alice")
    assert (said.ok, "It is not for bob" in said.detail) == (False, True)
    assert (await room.read(channel_rows.get, "ops")).proven


async def test_a_fallback_is_not_removed_while_others_count_on_it(room: Newsroom) -> None:
    await room.add("mail")
    await room.add("chat", fallback="mail")
    for options in (Options(), Options(dry_run=True)):
        with pytest.raises(UserError, match="Channel mail is the fallback of chat") as caught:
            await room.run(channels.delete, name="mail", options=options)
        assert "holdfast notify channel set chat --fallback none" in caught.value.hint
    await room.run(channels.change, name="chat", actor="x", fallback=None)
    assert (await room.run(channels.delete, name="mail", actor="x")).number == 0


async def test_a_channel_whose_fallback_is_gone_can_be_changed_and_its_loss_is_told_until_it_is_put_right(
    room: Newsroom,
) -> None:
    """As it was left behind before that was refused."""
    box, boss = await room.add("chat"), await room.add("boss")
    box.troubles["a had lost its next step"] = Refused("401", reason="CHANNEL_MISCONFIGURED")
    await room.db.write(lambda tx: tx.run("UPDATE channels SET fallback = 'gone' WHERE name = 'chat'"))
    await room.run(channels.change, name="chat", actor="x", heartbeat_every_s=None)
    with pytest.raises(UserError, match="no channel named 'other'"):
        await room.run(channels.change, name="chat", actor="x", fallback="other")
    async with room.running():
        await room.fail("a")
        await eventually(lambda: "Channel chat has lost its fallback" in boss.titles)
        await room.run(channels.change, name="chat", actor="x", fallback="boss")
        await duties.watch(room.db, HOUR)
        await eventually(lambda: settled(room))
    assert "The fallback of channel chat is in order again" in boss.titles


async def test_what_is_wrong_with_a_channel_is_said_before_it_is_kept(room: Newsroom) -> None:
    room.boxes.wrong["bad"] = Refused("Channel bad: webhook needs the credential url.")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"name": "x", "kind": "pigeon"}, "no kind of channel 'pigeon'"),
        ({"name": "bad", "kind": "box", "settings": {"wrong": 1}}, "needs the credential url"),
        ({"name": "x", "kind": "box", "fallback": "x"}, "own fallback"),
        ({"name": "x", "kind": "box", "fallback": "y"}, "no channel named 'y'"),
        ({"name": "x", "kind": "pagerduty", "digest_every_s": 3600}, "pagerduty has no digest: it keeps incidents"),
    ]
    for wish, problem in cases:
        with pytest.raises(UserError, match=problem):
            await room.run(channels.add, **wish)
    for unreadable in ({"name": "Bad Name", "kind": "box"}, {"name": "x", "kind": "box", "digest_every_s": 1}):
        with pytest.raises(ValidationError):
            await room.run(channels.add, **unreadable)
    await room.add("x")
    with pytest.raises(UserError, match="already"):
        await room.add("x")
    assert [each.name for each in await room.db.read(channel_rows.all_channels)] == ["x"]


async def test_credentials_are_sealed_replaced_and_forgotten_with_their_channel(db: Database, tmp_path: Path) -> None:
    room = a_newsroom(db, vault=await a_vault(db, tmp_path))
    await room.run(channels.add, name="ops", kind="box", credentials={"url": KEPT_ADDRESS, "secret": KEPT_FIRST})
    row = await room.read(channel_rows.get, "ops")
    assert await secrets_kept(db) == 2
    await room.run(channels.change, name="ops", credentials={"secret": KEPT_SECOND})
    after = await room.read(channel_rows.get, "ops")
    assert after.credentials["url"] == row.credentials["url"]
    assert (
        await room.vault.reveal(after.credentials["secret"], remotes.owner_of("channel", "ops", None, "secret"))
    ).reveal() == KEPT_SECOND.encode()
    assert await secrets_kept(db) == 2
    with pytest.raises(UserError, match="version 2"):
        await room.run(channels.change, name="ops", options=Options(expected_version=1), fallback=None)
    told = await db.read(lambda tx: tx.rows("SELECT details FROM audit UNION ALL SELECT details FROM events"))
    assert not any(MARK in each["details"] for each in told)
    await room.run(channels.delete, name="ops", actor="x")
    assert await secrets_kept(db) == 0


async def secrets_kept(db: Database) -> int:
    return int((await db.read(lambda tx: tx.rows("SELECT COUNT(*) AS n FROM secrets")))[0]["n"])


# ── Numbers ──


async def test_the_numbers_are_counted_over_all_rows(room: Newsroom) -> None:
    await room.add("ops")
    await dead_ones(room, "a", "b")
    await room.fail("c")
    found = await room.db.read(notifications.summarize)
    assert found.by_state == {"dead": 2, "pending": 1}
    assert found.by_channel == {"ops": {"dead": 2, "pending": 1}}
    assert set(found.oldest_waiting) == {"ops"}
    await refresh(room.db, room.watch.metrics, "x", timedelta(seconds=30))
    assert room.watch.metric("notifications_dead") == 2
    assert room.watch.metric("notifications", channel="ops", state="pending") == 1
    assert room.watch.metric("channel_down", channel="ops") == 0


async def test_pages_go_from_the_newest_down(room: Newsroom) -> None:
    await room.add("ops")
    for each in "abcde":
        await room.fail(each)
    first = await room.read(rows.page, Filter(), limit=2)
    rest = await room.read(rows.page, Filter(), before=first[-1].id)
    assert [each.subject for each in [*first, *rest]] == ["e", "d", "c", "b", "a"]
    assert await room.read(rows.page, Filter(severity=Severity.CRITICAL)) == []


async def test_what_was_paid_long_ago_is_forgotten_and_dead_letters_are_not(room: Newsroom) -> None:
    await room.add("ops")
    await dead_ones(room, "a")
    async with room.running():
        await room.fail("b")
        await eventually(lambda: settled(room))
    await room.db.write(lambda tx: tx.run("UPDATE notifications SET created_at = 0"))
    assert await duties.forget(room.db, timedelta(days=90)) == 1
    assert [each.subject for each in await room.all()] == ["a"]
    assert await room.db.read(rows.count_dead) == 1


def test_ids_are_the_same_for_the_same_message_in_the_same_channel() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    one = rows.notification_id(now, "msg_1", "ops")
    assert one == rows.notification_id(now, "msg_1", "ops")
    assert one != rows.notification_id(now, "msg_1", "boss")
    assert one < rows.notification_id(now + timedelta(microseconds=1), "msg_0", "a")


async def test_an_answer_that_the_store_could_not_take_is_written_down_later_and_counts_once(db: Database) -> None:
    """Also where it had taken it, and only its word was lost."""
    moody = Moody(db)
    room = a_newsroom(moody)
    box = await room.add("ops")
    await room.fail("a", "b")
    box.next += [TryLater("no")]
    lost: list[str] = []

    async def then_the_store_is_away(message: Message) -> None:
        if len(lost) < 2:
            lost.append(message.id)
            trouble = "after" if len(lost) == 1 else "before"
            setattr(moody, trouble, OutcomeUnknown("no word") if trouble == "after" else StoreUnavailable("away"))

    async def back(seconds: float) -> None:
        moody.before = moody.after = None
        await asyncio.sleep(0)

    box.sending = then_the_store_is_away
    services = replace(room.tools, clock=WaitsBy(back))
    await delivery.kind(services).handler(await a_claim(a_newsroom(db)))
    assert sorted((each.state.value, each.retry_count, each.begun) for each in await room.all()) == [
        ("failed", 1, 0), ("sent", 0, 0),
    ]  # fmt: skip
    assert len(lost) == len(set(lost)) == 2


class WaitsBy(SystemClock):
    def __init__(self, wait: Callable[[float], Coroutine[Any, Any, None]]) -> None:
        self._wait = wait

    async def sleep(self, seconds: float) -> None:
        await self._wait(seconds)
