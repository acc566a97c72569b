"""What people hear of the life of a certificate, and of what it depends on: each thing once, and its end."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.lifecycle import DAY, House, a_house, a_moving_house
from tests.support.notifications import MINUTE, Box, Newsroom, a_newsroom

from holdfast.core.notifications.notification import Routing, Severity
from holdfast.core.own_ca.ca import CaOptions, CaState
from holdfast.core.work.job import JobFailed, Spec
from holdfast.engine import selfcheck
from holdfast.engine.issuance import expiry, renewals
from holdfast.engine.kind import Work
from holdfast.engine.notifications import duties
from holdfast.errors import Refused, TryLater
from holdfast.operations.issuance import approvals
from holdfast.operations.notifications import notifications
from holdfast.operations.own_ca import authorities
from holdfast.operations.own_ca import manage as manage_ca
from holdfast.pki.ceremony import CeremonyPlan
from holdfast.ports import no_points
from holdfast.store import journal
from holdfast.store.database import Database
from holdfast.store.notifications import outages as open_outages
from holdfast.store.tx import Tx
from holdfast.store.work import cluster, jobs
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio
ALL = Routing(severities=frozenset(Severity))
LOST = timedelta(minutes=2)


class Teller:
    """A house, and the newsroom beside it; nothing is sent, what is owed is looked at."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.room: Newsroom = a_newsroom(house.db, vault=house.certificate_context.secret_store)

    async def listen(self) -> Box:
        return await self.room.add("ops", routing=ALL)

    async def told(self, **which: Any) -> list[str]:
        return [f"{each.severity}: {each.title}" for each in await self.room.all(channel="ops", **which)]


async def a_teller(house: House) -> Teller:
    teller = Teller(house)
    await teller.listen()
    return teller


# ── Our own CAs ──


async def test_the_end_of_our_own_issuer_is_told_at_each_threshold_until_it_is_closed(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path) as (house, clock):
        teller = Teller(house)
        await teller.listen()
        plan, secret_store = CeremonyPlan(name="Example", intermediate_years=1), house.certificate_context.secret_store
        row = await manage_ca.create(secret_store, ca="corp", plan=plan, options=CaOptions(), actor="local:alice")
        ends = authorities.expiry_of(row).not_after
        for left, told in ((92, 0), (89, 1), (80, 0), (10, 1), (0.9, 1)):  # days; what it signs lives for 90
            clock.ahead += ends - left * DAY - clock.now()
            assert [await expiry.sweep(house.db), await expiry.sweep(house.db)] == [told, 0]
        ended = [each for each in await teller.room.all() if each.event == "ca.issuer_ends"]
        assert [each.severity.value for each in ended] == ["warning", "warning", "critical"]
        assert "expires in 10 days" in ended[1].title
        assert "holdfast ca renew corp" in ended[1].text
        await duties.watch(house.db, LOST)
        assert await house.db.read(lambda tx: open_outages.is_open(tx, "ca-issuer/corp"))
        await house.db.write(lambda tx: manage_ca.set_state(tx, "corp", CaState.CLOSED, actor="local:alice"))
        await duties.watch(house.db, LOST)
        assert not await house.db.read(lambda tx: open_outages.is_open(tx, "ca-issuer/corp"))


# ── Ends ──


async def test_each_threshold_is_told_once_and_a_missed_run_is_harmless(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path, life=90 * DAY) as (house, clock):
        teller = await a_teller(house)
        await house.ask("a.example")
        await house.attempt("a.example")
        began = clock.ahead

        async def looked_at(days: float) -> list[str]:
            clock.ahead = began + days * DAY
            await expiry.sweep(house.db)
            await expiry.sweep(house.db)
            return await teller.told(event="certificate.expires")

        assert await looked_at(59) == []
        assert await looked_at(61) == ["info: a.example expires in 29 days"]
        assert (await looked_at(76.2))[1:] == ["warning: a.example expires in 14 days"]
        assert (await looked_at(77)) == await looked_at(82)
        assert (await looked_at(88))[2:] == ["critical: a.example expires in 48 hours"]  # two at once are one word
        assert (await looked_at(91))[3:] == ["critical: a.example has expired"]
        assert len(await looked_at(200)) == 4
        crossed = await house.db.read(lambda tx: tx.rows("SELECT threshold FROM crossings ORDER BY threshold"))
        assert [row["threshold"] for row in crossed] == [0, 1, 2, 3, 4, 5]


async def test_a_certificate_that_was_renewed_is_not_told_about_and_is_well_again(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path, life=6 * DAY) as (house, clock):
        teller = await a_teller(house)
        await house.ask("a.example")
        await house.attempt("a.example")
        clock.ahead += 5 * DAY + timedelta(hours=12)
        await expiry.sweep(house.db)
        assert await teller.told() == ["warning: a.example expires in 12 hours"]
        await house.attempt("a.example")
        await expiry.sweep(house.db)
        await duties.watch(house.db, LOST)
        await duties.watch(house.db, LOST)
        assert (await teller.told())[1:] == ["warning: a.example is healthy again"]
        keys = {each.key for each in await teller.room.all()}
        assert len(keys) == 1


async def test_the_look_at_ends_costs_what_is_due_and_not_what_exists(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    for number in range(3):
        await house.ask(f"{number}.example")
        await house.attempt(f"{number}.example")
    assert await expiry.sweep(house.db) == 0
    due = await db.read(lambda tx: tx.rows("SELECT id FROM certificate_versions WHERE look_at <= now_us()"))
    assert due == []


# ── Failures ──


async def test_failures_are_told_at_first_at_every_doubling_and_when_they_become_unsafe(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path, life=90 * DAY) as (house, clock):
        teller = await a_teller(house)
        await house.ask("a.example")
        await house.attempt("a.example")
        house.cas["ca"].always["place"] = Refused("CAA says no", reason="CAA_FORBIDS")
        clock.ahead += 61 * DAY
        made = await house.view("a.example")
        assert made.current is not None
        while clock.now() < made.current.not_after:
            view = await house.attempt("a.example")
            assert view.certificate.next_action_at is not None
            clock.ahead += max(view.certificate.next_action_at - clock.now(), timedelta(0)) + timedelta(seconds=1)
        told = await teller.room.all(channel="ops", event="issuance.failed")
        warned = [each.facts["attempts"] for each in told if each.severity is Severity.WARNING]
        assert warned == ["1", "2", "4", "8", "16"]
        assert [each.severity for each in told][-1] is Severity.CRITICAL  # the next attempt would come too late
        assert {each.reason for each in told} == {"CAA_FORBIDS"}


async def test_a_ca_that_is_down_is_one_alert_for_a_hundred_certificates_and_one_all_clear(
    db: Database, tmp_path: Path
) -> None:
    house = await a_house(db, tmp_path)
    teller = await a_teller(house)
    house.cas["ca"].always["place"] = TryLater("no answer", reason="CA_DOWN")
    for number in range(12):
        await house.ask(f"{number}.example")
    async with house.working():
        await house.until(lambda: house.cas["ca"].calls.count("place") >= 5)

        async def down() -> bool:
            return bool(await teller.told(event="issuer.down"))

        await house.until(down)
        house.cas["ca"].always.clear()

        async def up() -> bool:
            await db.write(lambda tx: tx.run("UPDATE issuers SET breaker_until = now_us() WHERE breaker_until > 0"))
            await house.hurry()
            return bool(await teller.told(event="issuer.up"))

        await house.until(up)
    told = await teller.told()
    assert told.count("warning: Issuer ca is down") == 1
    assert told.count("warning: Issuer ca answers again") == 1
    assert len([each for each in told if "could not be issued" in each]) == 0


async def test_an_approval_that_is_wanted_and_its_refusal_are_told(db: Database, tmp_path: Path) -> None:

    house = await a_house(db, tmp_path)
    teller = await a_teller(house)
    await house.ask("a.example", approval_required=True)

    await renewals.sweep_due(house.certificate_context)
    [waiting] = await house.pending()
    [owed] = await teller.room.all()
    assert owed.next == f"holdfast approvals approve {waiting.id}"
    await house.reject(waiting.id, actor="local:bob", note="not this month")
    told = await teller.told()
    assert told == ["warning: a.example waits for an approval", "warning: a.example could not be issued (attempt 1)"]
    [_, refused] = await teller.room.all()
    assert "not this month" in refused.text


# ── What it depends on ──


async def test_a_broken_audit_chain_is_critical_and_told_once(db: Database) -> None:
    room = a_newsroom(db)
    await room.add("ops")
    await db.write(lambda tx: journal.audit(tx, "something", "x"))
    check = selfcheck.kind(db, timedelta(minutes=1), room.watch.telemetry)
    await db.write(lambda tx: tx.run("UPDATE journal_head SET audit_hash = 'another'"))
    for _ in range(2):
        outcome = await check.handler(Work(claim=None, check=lambda: None, point=no_points))  # type: ignore[arg-type]
        assert outcome.write is not None
        await db.write(outcome.write)
    [owed] = await room.all()
    assert (owed.severity.value, owed.title) == ("critical", "The audit log does not verify")


async def test_a_replica_that_falls_silent_is_told_once_and_again_when_it_is_back(db: Database) -> None:
    room = a_newsroom(db)
    await room.add("ops")

    def beat(tx: Tx, holder: str, name: str) -> None:
        cluster.replica_seen(tx, holder, name, "1", draining=False)

    await db.write(lambda tx: beat(tx, "h1", "east"))
    await db.write(lambda tx: beat(tx, "h2", "west"))
    await db.write(lambda tx: tx.run("UPDATE replicas SET seen_at = seen_at - 600000000 WHERE name = 'west'"))
    for _ in range(3):
        await duties.watch(db, LOST)
    assert [each.title for each in await room.all()] == ["Replica west is lost"]
    told = await db.read(lambda tx: journal.events_after(tx, 0, subject="west"))
    assert [each.name for each in told] == ["replica.lost"]
    await db.write(lambda tx: beat(tx, "h3", "west"))
    for _ in range(3):
        await duties.watch(db, LOST)
    assert [each.title for each in await room.all()] == ["Replica west is lost", "Replica west is back"]


async def test_a_replica_that_left_in_good_order_or_restarted_is_not_lost(db: Database) -> None:
    room = a_newsroom(db)
    await room.add("ops")

    def story(tx: Tx) -> None:
        cluster.replica_seen(tx, "old", "west", "1", draining=False)
        tx.run("UPDATE replicas SET seen_at = seen_at - 600000000")
        cluster.replica_seen(tx, "new", "west", "1", draining=False)
        cluster.replica_seen(tx, "gone", "east", "1", draining=False)
        cluster.remove_replica(tx, "gone")

    await db.write(story)
    await duties.watch(db, LOST)
    assert await room.all() == []


async def test_dead_jobs_are_told_once_for_a_kind_and_so_is_that_none_is_left(db: Database) -> None:
    room = a_newsroom(db)
    await room.add("ops")

    def die(tx: Tx) -> None:
        jobs.enqueue(tx, Spec(id=SystemRandom().new_id("job"), kind="k", subject=SystemRandom().new_id("s")))
        [claim] = jobs.claim(tx, holder="x", free={"k": 1}, ttl=MINUTE)
        jobs.settle(tx, claim, JobFailed(error="no", reason="X", final=True))

    await db.write(die)
    await db.write(die)
    await duties.watch(db, LOST)
    assert [each.title for each in await room.all()] == ["A job of kind k is dead"]
    await db.write(lambda tx: tx.run("DELETE FROM jobs"))
    await duties.watch(db, LOST)
    assert [each.title for each in await room.all()][1:] == ["No dead jobs of kind k are left"]


async def test_certificates_that_nobody_collects_are_told_once_for_an_account(db: Database) -> None:
    room = a_newsroom(db)
    await room.add("ops")
    for serial in ("01", "02"):
        details = {"account": "acct_1", "names": ["a.example"], "serial": serial}
        await room.happen("certificate.uncollected", f"cert-{serial}", **details)
    assert [each.title for each in await room.all()] == [
        "A certificate for a.example was issued, and no download of it is on record"
    ]


async def test_a_window_that_moves_is_told(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    teller = await a_teller(house)
    made = await house.ask("a.example")
    await teller.room.happen(
        "ari.moved", made.certificate.id, before="2030-02-01", after="2030-01-01", explanation="https://ca.example/x"
    )
    assert await teller.told() == ["warning: Its issuer wants a.example renewed earlier"]


async def test_a_ca_that_hurries_many_is_one_alert_and_calm_after_a_day(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path, life=90 * DAY) as (house, clock):
        teller = await a_teller(house)
        for name in ("a.example", "b.example", "c.example"):
            await house.ask(name)
            await house.attempt(name)
            found = await house.view(name)
            facts = {"before": "2030-02-01", "after": "2030-01-01", "explanation": ""}
            await teller.room.happen("ari.moved", found.certificate.id, **facts)
        assert await teller.told() == ["warning: Issuer ca wants a.example renewed earlier"]
        await duties.watch(house.db, LOST)
        assert len(await teller.told()) == 1
        clock.ahead += timedelta(hours=25)
        await duties.watch(house.db, LOST)
        assert (await teller.told())[1:] == ["warning: Issuer ca asks for no earlier renewals any more"]


async def test_a_ca_that_refuses_our_account_is_one_alert_however_many_suffer(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path, life=90 * DAY) as (house, clock):
        teller = await a_teller(house)
        house.cas["ca"].always["place"] = Refused("401 bad key", reason="ACCOUNT_REFUSED")
        await house.ask("a.example")
        await house.attempt("a.example")
        for name in ("b.example", "c.example"):
            await house.ask(name)
        await _one_round(house)  # they find the door shut, and do not knock
        assert await teller.told() == ["warning: Issuer ca refuses our account"]
        await duties.watch(house.db, LOST)
        assert len(await teller.told()) == 1
        house.cas["ca"].always.clear()
        for _ in range(2):  # one tries for all
            clock.ahead += timedelta(hours=3)
            await _one_round(house)
        await duties.watch(house.db, LOST)
        assert (await teller.told())[1:] == ["warning: Issuer ca accepts our account again"]
        assert len(house.cas["ca"].issued) == 3


async def _one_round(house: House) -> None:
    """Every attempt that is due by now has had its turn."""
    due = "SELECT id FROM jobs WHERE kind = 'issue' AND (state = 'running' OR (state = 'ready' AND due_at <= now_us()))"

    async def none() -> bool:
        return not await house.db.read(lambda tx: tx.rows(due))

    await renewals.sweep_due(house.certificate_context)
    async with house.working():
        await house.until(none)


async def test_an_approval_that_was_decided_is_cleared(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    teller = await a_teller(house)
    await house.ask("a.example", approval_required=True)
    await renewals.sweep_due(house.certificate_context)
    await duties.watch(house.db, LOST)
    assert await teller.told() == ["warning: a.example waits for an approval"]
    [waiting] = await house.pending()
    await house.approve(waiting.id, actor="local:bob", note="")
    await duties.watch(house.db, LOST)
    assert (await teller.told())[1:] == ["warning: a.example no longer waits for an approval"]


@pytest.mark.parametrize("end", ["approved", "rejected", "timed_out", "withdrawn"])
async def test_word_of_an_approval_that_nobody_got_is_settled_when_the_approval_ends(
    db: Database, tmp_path: Path, end: str
) -> None:
    house = await a_house(db, tmp_path)
    room, by = (
        a_newsroom(house.db, vault=house.certificate_context.secret_store),
        {"actor": "local:bob", "note": "seen"},
    )
    view = await house.ask("a.example", approval_required=True)
    [waiting] = await house.pending()
    [owed] = await room.all()
    assert (owed.state, owed.why) == ("dead", "NO_CHANNEL")
    match end:
        case "approved":
            await house.approve(waiting.id, **by)
        case "rejected":
            await house.reject(waiting.id, **by)
        case "timed_out":
            await db.write(lambda tx: tx.run("UPDATE approvals SET expires_at = 0"))
            await approvals.time_out(house.certificate_context)
        case _:
            await house.cancel(view.certificate.id, actor="local:bob", why="not needed")
    after = next(each for each in await room.all() if each.id == owed.id)
    assert (after.state, after.note) == ("resolved", f"the approval is {end.replace('_', ' ')}")


async def test_the_owner_of_a_certificate_hears_of_it(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    teller = Teller(house)
    await teller.room.add("shop", routing=Routing(owners=("shop",)))
    await teller.room.add("bank", routing=Routing(owners=("bank",)))
    made = await house.ask("a.example", owner="shop")
    await teller.room.fail(made.certificate.id)
    assert [each.channel for each in await teller.room.all()] == ["shop"]
    assert (await house.db.read(notifications.summarize)).by_state == {"pending": 1}
