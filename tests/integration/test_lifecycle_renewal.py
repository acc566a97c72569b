"""What happens without being asked: renewal, renewal windows, breakers, budgets, clean-up."""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from tests.support.lifecycle import DAY, House, TruthfulCa, a_house, a_moving_house

from holdfast.core.certificate import RenewalPolicy
from holdfast.core.status import Phase
from holdfast.core.windows import MaintenanceWindow
from holdfast.engine.issuance import duties as issuance_duties
from holdfast.engine.issuance import renewals
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import RenewalWindow
from holdfast.operations.issuers import manage as manage_issuers
from holdfast.store import certificates as rows
from holdfast.store import issuances
from holdfast.store.database import Database
from holdfast.store.tx import Tx

pytestmark = pytest.mark.anyio
NAME = "www.example.com"
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


async def asked(house: House) -> None:
    """Renewal information is asked for, and heard."""
    assert await renewals.sweep_ari(house.certificate_context) >= 1
    async with house.working():
        await house.until_no_job("ari")


async def quiet(house: House) -> None:
    """Whatever is due by now has had its turn."""

    async def nothing_due() -> bool:
        due = "SELECT id FROM jobs WHERE state = 'running' OR (state = 'ready' AND due_at <= now_us()) LIMIT 1"
        return not await house.db.read(lambda tx: tx.rows(due))

    await house.until(nothing_due)


# ── Renewal ──


async def test_a_certificate_is_renewed_when_its_time_comes_and_not_before(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path) as (house, clock):
        await house.ask(NAME)
        first = await house.worked(NAME)
        assert await renewals.sweep_due(house.certificate_context) == 0
        clock.ahead += 60 * DAY
        second = await house.attempt(NAME)
        assert first.current is not None
        assert second.current is not None
        assert second.current.not_after > first.current.not_after
        [newest, oldest] = await house.db.read(lambda tx: issuances.of(tx, first.certificate.id))
        assert (newest.cause, oldest.cause) == ("DUE_LIFETIME", "FIRST")
        assert newest.requested_by == "system"


async def test_two_replicas_that_sweep_together_begin_each_renewal_once(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    for n in range(30):
        await house.ask(f"n{n}.example.com")
        await house.cancel(f"n{n}.example.com", actor="local:test", why="later")
    await db.write(lambda tx: tx.run("UPDATE certificates SET next_action_at = now_us()"))
    begun = await asyncio.gather(*(renewals.sweep_due(house.certificate_context) for _ in range(4)))
    assert sum(begun) == 30
    found = await db.read(lambda tx: tx.rows("SELECT certificate FROM issuances WHERE state = 'requested'"))
    assert len({row["certificate"] for row in found}) == len(found) == 30


async def test_a_sweep_of_more_than_a_page_finds_all(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.write(manage_issuers.ISSUERS.pause, "ca", actor="local:op")
    for n in range(renewals.DUE_PAGE + 5):
        await house.ask(f"n{n}.example.com")
    await house.write(manage_issuers.ISSUERS.resume, "ca", actor="local:op")
    assert await renewals.sweep_due(house.certificate_context) == renewals.DUE_PAGE + 5


async def test_those_with_the_least_time_left_go_first(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        for n in range(4):
            await house.ask(f"n{n}.example.com")
            await house.settled(f"n{n}.example.com")

    def age(tx: Tx) -> None:
        for n in range(4):
            tx.run(
                """UPDATE certificate_versions SET not_after = now_us() + :left, not_before = now_us() - :life
                    WHERE certificate = (SELECT id FROM certificates WHERE name = :name)""",
                name=f"n{n}.example.com",
                left=(4 - n) * DAY,
                life=90 * DAY,
            )
        tx.run("UPDATE certificates SET next_action_at = now_us()")

    await db.write(age)
    await renewals.sweep_due(house.certificate_context)
    async with house.working(slots=1):
        for n in range(4):
            await house.settled(f"n{n}.example.com")
    order = [order.request.identifiers[0].value for order in list(house.cas["ca"].orders.values())[4:]]
    assert order == [f"n{n}.example.com" for n in (3, 2, 1, 0)]


async def test_a_maintenance_window_is_waited_for_and_said(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path) as (house, clock):
        day = (clock.now() + 60 * DAY).weekday()
        window = MaintenanceWindow(days=frozenset({(day + 2) % 7}), opens=120, closes=180)
        await house.ask(NAME, windows=(window,), rule=RenewalPolicy(fraction=0.6))
        before = await house.worked(NAME)
        clock.ahead += 60 * DAY
        view = await house.attempt(NAME)
        assert view.current == before.current
        assert (view.status.phase, view.status.reason_code) == (Phase.WAITING, "WINDOW")
        assert view.status.next_attempt_at is not None
        assert (view.status.next_attempt_at.hour, view.status.next_attempt_at.minute) == (2, 0)
        explained = view.explain()
        assert explained.blocking == "WINDOW"
        assert [check.rule for check in explained.checks if check.blocks] == ["windows"]
        at = view.explain(at=view.status.next_attempt_at + MINUTE)
        assert at.blocking is None
        clock.ahead += view.status.next_attempt_at - clock.now() + MINUTE
        assert (await house.attempt(NAME)).current != before.current


async def test_a_certificate_that_nobody_would_come_back_to_is_found(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        await house.settled(NAME)
    await db.write(lambda tx: tx.run("UPDATE certificates SET next_action_at = NULL"))
    await renewals.sweep_due(house.certificate_context)
    view = await house.view(NAME)
    assert view.certificate.next_action_at == view.status.next_attempt_at
    assert view.certificate.next_action_at is not None


# ── ARI ──


def a_window(start: datetime, end: datetime, **more: object) -> RenewalWindow:
    return RenewalWindow(start=start.replace(microsecond=0), end=end.replace(microsecond=0), **more)  # type: ignore[arg-type]


async def test_an_issuer_with_a_session_is_kept_alive_when_windows_are_asked_for(tmp_path: Path) -> None:
    class Session(TruthfulCa):
        async def keep_alive(self) -> None:
            self._call("keep_alive")

    async with a_moving_house(tmp_path) as (house, _):
        await house.add("session", Session())
        await house.ask(NAME, issuers=["session"])
        await house.worked(NAME)
        await asked(house)
        assert house.cas["session"].calls.count("keep_alive") == 1


async def test_a_window_is_asked_for_after_issuing_and_one_instant_in_it_is_kept(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path) as (house, clock):
        house.cas["ca"].window = a_window(clock.now() + 50 * DAY, clock.now() + 70 * DAY)
        await house.ask(NAME)
        await house.worked(NAME)
        await asked(house)
        view = await house.view(NAME)
        assert view.certificate.ari is not None
        picked = view.certificate.ari.pick
        assert view.certificate.next_action_at == picked
        assert await renewals.sweep_ari(house.certificate_context) == 0  # not before the CA wants to be asked
        clock.ahead += 6 * HOUR + MINUTE
        await asked(house)
        view = await house.view(NAME)
        assert view.certificate.ari is not None
        assert view.certificate.ari.pick == picked
        house.cas["ca"].window = a_window(clock.now() + 50 * DAY, clock.now() + 71 * DAY)
        clock.ahead += 6 * HOUR + MINUTE
        await asked(house)
        view = await house.view(NAME)
        assert view.certificate.ari is not None
        assert view.certificate.ari.pick != picked


async def test_a_window_that_moves_to_now_renews_at_once_and_is_told(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path) as (house, clock):
        house.cas["ca"].window = a_window(clock.now() + 58 * DAY, clock.now() + 60 * DAY)
        await house.ask(NAME)
        before = await house.worked(NAME)
        await asked(house)
        clock.ahead += 7 * HOUR
        now = clock.now()
        house.cas["ca"].window = a_window(now - HOUR, now - HOUR / 2, explanation="https://ca.example/incident")
        await asked(house)
        view = await house.attempt(NAME)
        assert view.current != before.current
        events = [each for each in await house.timeline(NAME) if each.name == "ari.moved"]
        assert events[0].details["explanation"] == "https://ca.example/incident"
        assert view.certificate.ari_forced_at is not None
        # the same answer about the new certificate does not send us round in circles
        await asked(house)
        again = await house.attempt(NAME)
        assert again.current == view.current


async def test_a_ca_that_does_not_answer_is_asked_again_later(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path) as (house, clock):
        house.cas["ca"].always["renewal_window"] = TryLater("503")
        await house.ask(NAME)
        await house.worked(NAME)
        await asked(house)
        assert await renewals.sweep_ari(house.certificate_context) == 0
        clock.ahead += 31 * MINUTE
        await asked(house)
        assert house.cas["ca"].calls.count("renewal_window") == 2


async def test_an_archived_certificate_is_not_asked_about(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        await house.settled(NAME)
    await house.set_state(NAME, "archived", actor="local:alice")
    assert await renewals.sweep_ari(house.certificate_context) == 0


# ── A CA that is down ──


async def test_while_a_ca_is_down_one_probes_it_and_the_others_wait(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path) as (house, clock):
        ca: TruthfulCa = house.cas["ca"]
        ca.always["place"] = TryLater("connection refused", reason="CA_DOWN")
        for n in range(12):
            await house.ask(f"n{n}.example.com")
        async with house.working(slots=1):

            async def open_now() -> bool:
                return (await house.read(manage_issuers.found, "ca")).breaker.until is not None

            await house.until(open_now)
        assert ca.calls.count("place") == 5
        clock.ahead += timedelta(seconds=45)  # still open: those that wake see that without asking
        async with house.working(slots=1):
            await quiet(house)
        assert ca.calls.count("place") == 5
        clock.ahead += 10 * MINUTE
        async with house.working(slots=4):
            await house.until(lambda: ca.calls.count("place") >= 6)
            await quiet(house)
        assert ca.calls.count("place") == 6  # one asked for all
        del ca.always["place"]
        for _ in range(4):
            clock.ahead += 20 * MINUTE
            async with house.working():
                await quiet(house)
        views = [await house.view(f"n{n}.example.com") for n in range(12)]
        assert all(view.current is not None for view in views)
        assert (await house.read(manage_issuers.found, "ca")).breaker.until is None


# ── Clean-up ──


async def test_old_proofs_are_forgotten_and_new_ones_are_not(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)

    def put(tx: Tx) -> None:
        for token in ("old", "new"):
            issuances.put_response(tx, type="http-01", token=token, identifier=NAME, key_authorization=f"{token}.thumb")
        tx.run("UPDATE challenge_responses SET created_at = created_at - :age WHERE token = 'old'", age=11 * DAY)

    await db.write(put)
    assert await issuance_duties.forget_proofs(house.certificate_context) == 1
    assert await db.read(lambda tx: issuances.response_by_token(tx, "http-01", "old")) is None
    assert await db.read(lambda tx: issuances.response_by_token(tx, "http-01", "new")) == "new.thumb"


async def test_attempts_that_are_long_over_are_forgotten_and_the_keys_in_use_are_not(
    db: Database, tmp_path: Path
) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        view = await house.settled(NAME)
        house.cas["ca"].always["place"] = Refused("no", reason="CA_REFUSED")
        await house.renew(NAME, actor="local:alice")
        await house.settled(NAME)
    assert await issuance_duties.forget_issuances(house.certificate_context, 90 * DAY) == 0
    await db.write(lambda tx: tx.run("UPDATE issuances SET ended_at = ended_at - :age", age=91 * DAY))
    assert await issuance_duties.forget_issuances(house.certificate_context, 90 * DAY) == 2
    assert view.current is not None
    key = await house.key_of(view)
    assert key.reveal().startswith(b"-----BEGIN")
    assert (await house.view(NAME)).current == view.current


# ── The scan ──


async def test_the_scan_for_what_is_due_uses_its_index(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    view = await house.ask(NAME)

    def fill(tx: Tx) -> None:
        for n in range(2000):
            later = replace(
                view.certificate,
                id=f"certificate_{n}",
                wanted=replace(view.certificate.wanted, name=f"n{n}"),
                next_action_at=view.now + 30 * DAY,
            )
            rows.insert(tx, later)

    await db.write(fill)
    if db.engine.name == "sqlite":
        plan = await db.read(
            lambda tx: tx.rows(
                """EXPLAIN QUERY PLAN SELECT id FROM certificates WHERE state = 'active'
                     AND next_action_at IS NOT NULL AND next_action_at <= 5 ORDER BY next_action_at LIMIT 10"""
            )
        )
        assert "certificates_due" in str([dict(row) for row in plan])
    else:
        await db.write(lambda tx: tx.run("ANALYZE certificates"))
        plan = await db.read(
            lambda tx: tx.rows(
                """EXPLAIN SELECT id FROM certificates WHERE state = 'active'
                     AND next_action_at IS NOT NULL AND next_action_at <= 5 ORDER BY next_action_at LIMIT 10"""
            )
        )
        assert "certificates_due" in str([dict(row) for row in plan])
    assert await renewals.sweep_due(house.certificate_context) == 0


# ── Too many requests ──


async def test_a_day_of_rate_limits_with_hundreds_due_on_three_replicas_costs_few_requests(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path) as (house, clock):
        ca: TruthfulCa = house.cas["ca"]
        ca.always["place"] = TryLater("too many new orders", after=MINUTE, reason="CA_RATE_LIMITED")
        for n in range(300):
            await house.ask(f"n{n}.example.com")
        for _ in range(24 * 6):
            async with house.working(holder="a"), house.working(holder="b"), house.working(holder="c"):
                await quiet(house)
            clock.ahead += 10 * MINUTE
        # Up to 48 are under way together before the first answer comes. Then one asks when the CA's time is over, and
        # ever more seldom; moving the clock in steps lets a few turns come together.
        assert ca.calls.count("place") <= 300
        views = [await house.view(f"n{n}.example.com") for n in range(0, 300, 50)]
        assert all(view.certificate.failing is None for view in views)
        assert all(view.status.next_attempt_at is not None for view in views)


# ── Keys of attempts that failed ──


async def test_a_key_that_nobody_will_ever_use_is_forgotten(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    house.cas["ca"].always["place"] = Refused("no", reason="CA_REFUSED")
    async with house.working():
        await house.ask(NAME, reuse_key=True)
        await house.settled(NAME)
        for _ in range(3):
            await house.renew(NAME, actor="local:alice")
            await house.settled(NAME)
    assert await db.read(lambda tx: tx.rows("SELECT id FROM secrets")) == []
    del house.cas["ca"].always["place"]
    async with house.working():
        await house.renew(NAME, actor="local:alice")
        view = await house.settled(NAME)
        house.cas["ca"].always["place"] = Refused("no", reason="CA_REFUSED")
        await house.renew(NAME, actor="local:alice")
        await house.settled(NAME)
    assert view.current is not None
    kept = await db.read(lambda tx: tx.rows("SELECT id FROM secrets"))
    assert [row["id"] for row in kept] == [view.current.key_secret]  # used again by the attempt, and still needed


async def test_a_key_that_the_ca_may_have_certified_is_kept(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path, polls=10**6)
    async with house.working():
        await house.ask(NAME)
        await house.until(lambda: house.cas["ca"].calls.count("look") >= 3)
        await house.cancel(NAME, actor="local:alice", why="enough")
        await house.settled(NAME)
    assert len(await db.read(lambda tx: tx.rows("SELECT id FROM secrets"))) == 1
