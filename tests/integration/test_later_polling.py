"""Orders that a CA finishes later: how often it is asked, what that costs, what becomes of doubts."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import PATIENCE
from tests.support.later import Days, LaterCa, a_still_house
from tests.support.lifecycle import DAY, House, MovedClock, TruthfulCa, a_house

from holdfast.core.backoff import POLL, next_poll
from holdfast.core.issuance import Issuance, IssuanceState
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.engine import sweep
from holdfast.engine.issuance import duties as issuance_duties
from holdfast.errors import Refused, StoreUnavailable, TryLater
from holdfast.issuers.base import NeedsProof
from holdfast.operations.issuers.manage import IssuerRefused
from holdfast.ports import no_points
from holdfast.store import issuances
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
NAME = "www.example.com"
LADDER = [5, 15, 45, 135, 300, 300, 300]
WIDE = {"limits": {"requests": [1000, 0.001], "orders": [1000, 0.001]}}
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


class Office:
    """One house with one CA that issues later."""

    def __init__(self, house: House, clock: MovedClock, ca: LaterCa) -> None:
        self.house, self.clock, self.ca = house, clock, ca
        self.days = Days(house, clock)

    async def pass_by(self, span: timedelta) -> None:
        await self.days.go_on(self.clock.now() + span)

    async def attempt(self) -> Issuance:
        view = await self.house.view(NAME)
        return (await self.house.db.read(lambda tx: issuances.of(tx, view.certificate.id)))[0]

    async def events(self, subject: str = NAME) -> list[str]:
        return [each.name for each in await self.house.timeline(subject)]


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    async with a_still_house(tmp_path) as (house, clock):
        ca = LaterCa()
        ca.now = clock.now
        await house.add("later", ca, **WIDE)
        yield Office(house, clock, ca)


# ── How often ──


async def test_a_pending_order_is_asked_by_the_ladder_with_a_jitter_of_its_own(office: Office) -> None:
    names = [f"n{n}.example.com" for n in range(12)]
    for name in names:
        await office.house.ask(name, issuers=["later"])
    await office.pass_by(9 * MINUTE)
    shares: list[float] = []
    for at_once, *waits in office.ca.gaps():
        assert at_once < 1
        assert len(waits) >= 4
        for wait, rung in zip(waits, LADDER, strict=False):
            assert 0.8 * rung - 0.01 <= wait <= 1.2 * rung + 0.01
            shares.append(wait / rung)
    assert min(shares) < 0.9
    assert max(shares) > 1.1
    assert len({round(share, 3) for share in shares}) > 40, "each wait has a jitter of its own"


@pytest.mark.parametrize(("own", "of_kind", "window"), [(0, 0, 600), (60, 0, 60), (0, 120, 120), (60, 1200, 60)])
async def test_the_window_is_the_cas_own_or_that_of_its_kind_or_600_seconds(
    office: Office, own: int, of_kind: int, window: int
) -> None:
    settings = {**WIDE, "poll_max_wait_seconds": own}
    await office.house.change_issuer("later", settings, actor="local:op")
    services = replace(office.house.tools, poll_windows={"test": timedelta(seconds=of_kind)})
    office.days = Days(office.house, office.clock, issuance_duties.kinds(services))
    await office.house.ask(NAME, issuers=["later"])
    began = office.clock.now()
    await office.pass_by(timedelta(seconds=window - 1))
    assert (await office.house.view(NAME)).status.reason_code == "UNDER_WAY"
    await office.pass_by(timedelta(seconds=2))
    view = await office.house.view(NAME)
    assert (view.status.reason_code, view.status.blocked_by) == ("CA_STILL_PENDING", ("CA_STILL_PENDING",))
    assert view.status.last_error == "An admin must approve it."
    last = office.ca.times[-1][0] - began
    assert last.total_seconds() == pytest.approx(window, abs=0.5), "the last look is at the end of the window"


async def test_after_its_window_an_order_is_asked_never_denser_than_the_cap_and_at_least_hourly(office: Office) -> None:
    await office.house.ask(NAME, issuers=["later"])
    await office.pass_by(3 * DAY)
    [gaps] = office.ca.gaps()
    rest = gaps[next(n for n in range(len(gaps)) if sum(gaps[:n]) > 599) :]
    assert min(rest) >= POLL.cap.total_seconds() - 0.01
    assert max(rest) <= HOUR.total_seconds() + 1
    assert rest[0] < rest[30] < rest[-1] * 1.2, "ever more seldom"
    assert len(gaps) < 120


@pytest.mark.parametrize("after", [None, timedelta(seconds=1), timedelta(minutes=20)], ids=["none", "short", "long"])
async def test_a_ca_that_says_too_many_for_ever_is_asked_no_more_often_than_the_ladder_allows(
    office: Office, after: timedelta | None
) -> None:
    await office.house.ask(NAME, issuers=["later"])
    await office.days.round()
    office.ca.always["look"] = TryLater("too many requests", after=after, reason="CA_RATE_LIMITED")
    before = len(office.ca.times)
    await office.pass_by(10 * MINUTE)
    assert len(office.ca.times) - before <= 8
    await office.pass_by(DAY - 10 * MINUTE)
    assert len(office.ca.times) - before <= _allowed(DAY)
    assert (await office.house.view(NAME)).certificate.failing is None
    del office.ca.always["look"]
    office.ca.approved = True
    await office.pass_by(2 * HOUR)
    assert (await office.house.view(NAME)).current is not None
    assert len(office.ca.orders) == 1


def _allowed(span: timedelta) -> int:
    """How many looks the ladder has in this time, if every wait were as short as jitter makes it."""
    at, polls = timedelta(0), 0
    while at < span:
        polls += 1
        wait, _ = next_poll(polls, waited=at, window=timedelta(0), age=at, asked=None, key="x")
        at += wait * 0.8
    return polls


async def test_a_ca_that_is_away_for_days_keeps_its_binding_order(office: Office) -> None:
    await office.house.ask(NAME, issuers=["later"])
    await office.pass_by(HOUR)
    office.ca.always["look"] = TryLater("no route", reason="CA_DOWN")
    await office.pass_by(3 * DAY)
    assert (await office.house.view(NAME)).issuance is not None
    office.ca.always.clear()
    office.ca.approved = True
    await office.pass_by(2 * HOUR)
    view = await office.house.view(NAME)
    assert view.current is not None
    assert view.certificate.failing is None
    assert len(office.ca.orders) == 1


async def test_a_key_that_the_ca_refuses_for_a_while_does_not_cost_the_order(office: Office) -> None:
    await office.house.ask(NAME, issuers=["later"])
    await office.pass_by(HOUR)
    office.ca.always["look"] = Refused("401: the key is not known; see api_key", reason="ACCOUNT_REFUSED")
    await office.pass_by(DAY)
    view = await office.house.view(NAME)
    assert (view.status.reason_code, view.status.acts_next) == ("ACCOUNT_REFUSED", "operator")
    assert (await office.events()).count("issuance.barred") == 1
    office.ca.always.clear()
    office.ca.approved = True
    await office.pass_by(2 * HOUR)
    assert (await office.house.view(NAME)).current is not None
    assert len(office.ca.orders) == 1


async def test_with_another_ca_a_pending_order_is_left_before_the_certificate_ends(office: Office) -> None:
    quick, office.ca.life = TruthfulCa(), 2 * DAY
    quick.now = office.clock.now
    await office.house.add("quick", quick, **WIDE)
    office.ca.approved = True
    view = await office.house.ask(NAME, issuers=["later", "quick"])
    await office.pass_by(HOUR)
    office.ca.approved = False
    await office.house.renew(NAME, actor="local:alice")
    view = await office.house.view(NAME)
    assert view.current is not None
    await office.pass_by(view.current.not_after - office.clock.now() - view.current.life / 20 - HOUR)
    assert (await office.house.view(NAME)).issuance is not None
    await office.pass_by(3 * HOUR)
    attempt = await office.attempt()
    assert (attempt.state, attempt.reason, attempt.withdrawal) == (IssuanceState.FAILED, "CA_STILL_PENDING", "done")
    assert [order.cancelled for order in office.ca.orders.values()] == [False, True]


# ── What it costs ──


async def test_orders_that_wait_for_approval_hold_no_worker_and_all_are_issued(office: Office) -> None:
    """`make pending` does it with 1,000 orders for 14 days."""
    names = [f"n{n}.example.com" for n in range(10)]
    for name in names:
        await office.house.ask(name, issuers=["later"])
    await office.pass_by(DAY / 2)
    running = await office.house.db.read(lambda tx: tx.rows("SELECT id FROM jobs WHERE state = 'running'"))
    assert (running, office.days.most_at_once) == ([], 0)
    office.ca.approved = True
    await office.pass_by(HOUR + MINUTE)
    views = [await office.house.view(name) for name in names]
    assert all(view.current is not None for view in views)
    assert (len(office.ca.orders), len(office.ca.issued)) == (10, 10)


# ── Words ──


async def test_a_word_that_nobody_knows_is_waited_for_and_told_once(office: Office) -> None:
    office.ca.word, office.ca.unknown = "pending_moon_phase", True
    for name in ("a.example.com", "b.example.com"):
        await office.house.ask(name, issuers=["later"])
    await office.pass_by(HOUR)
    told = await office.house.db.read(
        lambda tx: tx.rows("SELECT details FROM events WHERE name = 'issuer.unknown_word'")
    )
    assert len(told) == 1
    assert "pending_moon_phase" in str(dict(told[0]))
    office.ca.word = "another"
    await office.pass_by(HOUR)
    told = await office.house.db.read(lambda tx: tx.rows("SELECT id FROM events WHERE name = 'issuer.unknown_word'"))
    assert len(told) == 2
    assert (await office.house.view("a.example.com")).issuance is not None


# ── Giving up ──


async def test_an_order_that_is_cancelled_is_cancelled_at_the_ca_too(office: Office) -> None:
    await office.house.ask(NAME, issuers=["later"])
    await office.pass_by(HOUR)
    looks = office.ca.calls.count("look")
    await office.house.cancel(NAME, actor="local:alice", why="a mistake")
    await office.pass_by(MINUTE)
    assert [order.cancelled for order in office.ca.orders.values()] == [True]
    attempt = await office.attempt()
    assert (attempt.state, attempt.withdrawal) == (IssuanceState.CANCELLED, "done")
    assert attempt.key_secret is not None, "the CA has its CSR: the key is not forgotten"
    assert office.ca.calls.count("look") == looks
    assert "order.withdrawn" in await office.events()


async def test_a_ca_that_is_away_hears_of_it_later_and_one_that_refuses_is_told_of(
    db: Database, tmp_path: Path
) -> None:
    house = await a_house(db, tmp_path)
    ca = LaterCa()
    await house.add("later", ca, **WIDE)
    calls = 0

    async def cancel(ref: object) -> None:
        nonlocal calls
        calls += 1
        raise TryLater("no route", reason="CA_DOWN") if calls == 1 else Refused("too late", reason="CA_REFUSED")

    ca.cancel = cancel  # type: ignore[method-assign]
    async with house.working():
        await house.ask(NAME, issuers=["later"])
        await house.until(lambda: "look" in ca.calls)
        await house.cancel(NAME, actor="local:alice", why="a mistake")
        await house.until(lambda: calls == 1)

        async def waits() -> bool:
            asked = "SELECT id FROM jobs WHERE kind = 'withdraw' AND state = 'ready' AND reason = 'CA_DOWN'"
            return bool(await db.read(lambda tx: tx.rows(asked)))

        await house.until(waits)
        # The row is gone: the reconciler must know by itself that the CA is still to be told.
        await db.write(lambda tx: tx.run("DELETE FROM jobs WHERE kind = 'withdraw'"))
        await sweep.reconcile(db, issuance_duties.families(house.certificate_context), no_points)
        await house.until_no_job("withdraw")
    assert calls == 2
    told = [each for each in await house.timeline(NAME) if each.name == "order.withdrawn"]
    assert [(each.details["how"], each.details["alert"]) for each in told] == [("refused", True)]


async def test_whoever_cancels_while_the_order_is_on_its_way_leaves_none_behind(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    ca = LaterCa()
    await house.add("later", ca, **WIDE)
    place = ca.place_order

    async def cancelled_meanwhile(wish: object) -> object:
        placed = await place(wish)  # type: ignore[arg-type]
        await house.cancel(NAME, actor="local:alice", why="a mistake")
        return placed

    ca.place_order = cancelled_meanwhile  # type: ignore[assignment,method-assign]
    async with house.working():
        await house.ask(NAME, issuers=["later"])

        async def withdrawn() -> bool:
            return [order.cancelled for order in ca.orders.values()] == [True]

        await house.until(withdrawn)
        await house.until_no_job("withdraw")
    assert ca.calls.count("place") == 1


# ── Stopping ──


async def test_a_stop_does_not_wait_for_a_ca_that_lets_us_wait(db: Database, tmp_path: Path) -> None:
    house, ca = await a_house(db, tmp_path), LaterCa()
    await house.add("later", ca, **WIDE)
    looking, for_ever = asyncio.Event(), asyncio.Event()

    async def hang(ref: object, wish: object) -> Any:
        looking.set()
        await for_ever.wait()

    ca.order_status = hang  # type: ignore[method-assign]
    async with house.working(drain=timedelta(hours=1)) as running:
        await house.ask(NAME, issuers=["later"])
        await looking.wait()
        async with asyncio.timeout(PATIENCE):
            await running.drained()
    [job] = await db.read(lambda tx: tx.rows("SELECT state, reason, attempts FROM jobs WHERE kind = 'issue'"))
    assert (job["state"], job["reason"], job["attempts"]) == ("ready", "RELEASED", 0)


async def test_a_stop_waits_for_the_answer_to_an_order_and_for_nothing_after_it(db: Database, tmp_path: Path) -> None:
    house, ca = await a_house(db, tmp_path), LaterCa(can_find=False)
    await house.add("later", ca, **WIDE)
    placing, go_on, place = asyncio.Event(), asyncio.Event(), ca.place_order

    async def slow(wish: object) -> Any:
        placing.set()
        await go_on.wait()
        return await place(wish)  # type: ignore[arg-type]

    ca.place_order = slow  # type: ignore[method-assign]
    async with house.working(drain=timedelta(hours=1)) as running:
        await house.ask(NAME, issuers=["later"])
        await placing.wait()
        running.stop.set()
        await house.until(lambda: running.worker._draining)
        go_on.set()
        async with asyncio.timeout(PATIENCE):
            await running.drained()
    view = await house.view(NAME)
    assert view.issuance is not None
    assert (view.issuance.state, view.issuance.ref) == (IssuanceState.WAITING, {"order": "order-1"})
    assert "look" not in ca.calls
    [job] = await db.read(lambda tx: tx.rows("SELECT state FROM jobs WHERE kind = 'issue'"))
    assert job["state"] == "ready"


# ── Doubts ──


async def test_the_reference_survives_a_store_that_is_away_when_the_order_is_placed(
    db: Database, tmp_path: Path
) -> None:
    house = await a_house(db, tmp_path)
    ca = LaterCa(can_find=False)
    ca.approved = True
    await house.add("later", ca, **WIDE)
    write, away = db.write, 0

    async def failing(fn: object, *, key: str | None = None) -> object:
        nonlocal away
        if ca.orders and not away:
            away += 1
            raise StoreUnavailable("it is away")
        return await write(fn, key=key)  # type: ignore[arg-type]

    store = type("Away", (), {"read": staticmethod(db.read), "write": staticmethod(failing), "wake": db.wake})()
    services = replace(house.tools, certificate_context=replace(house.certificate_context, db=store))
    async with house.working(kinds=issuance_duties.kinds(services), only=True):
        await house.ask(NAME, issuers=["later"])
        view = await house.settled_soon(NAME)
    assert away == 1
    assert view.current is not None
    assert ca.calls.count("place") == 1


async def test_an_order_whose_answer_was_lost_is_found_and_not_placed_again(office: Office) -> None:
    await _lose_an_answer(office)
    await office.pass_by(10 * MINUTE)
    office.ca.approved = True
    await office.pass_by(HOUR)
    assert (await office.house.view(NAME)).current is not None
    assert office.ca.calls.count("place") == 1


async def _lose_an_answer(office: Office) -> None:
    """The CA took the order; nobody hears it."""
    place, ca = office.ca.place_order, office.ca

    async def lost(wish: object) -> object:
        await place(wish)  # type: ignore[arg-type]
        ca.place_order = place  # type: ignore[method-assign]
        raise TryLater("the connection was reset", reason="CA_DOWN")

    ca.place_order = lost  # type: ignore[assignment,method-assign]
    await office.house.ask(NAME, issuers=["later"])


async def test_where_it_cannot_be_found_it_is_flagged_and_ordered_once_more_only_after_a_day(office: Office) -> None:
    office.ca.can_find = False
    await _lose_an_answer(office)
    await office.pass_by(23 * HOUR)
    attempt = await office.attempt()
    assert office.ca.calls.count("place") == 1
    assert attempt.uncertain_since is not None
    assert not attempt.maybe_twice
    view = await office.house.view(NAME)
    assert (view.status.reason_code, view.status.acts_next) == ("ORDER_UNCERTAIN", "operator")
    assert (await office.events()).count("issuance.uncertain") == 1
    office.ca.approved = True
    await office.pass_by(3 * HOUR)
    assert office.ca.calls.count("place") == 2
    attempt = await office.attempt()
    assert (attempt.state, attempt.maybe_twice) == (IssuanceState.ISSUED, True)
    assert (await office.events()).count("issuance.ordered_again") == 1


async def test_an_answer_that_is_lost_for_ever_makes_two_orders_and_no_third(office: Office) -> None:
    office.ca.can_find = False
    place = office.ca.place_order

    async def lost(wish: object) -> object:
        await place(wish)  # type: ignore[arg-type]
        raise TryLater("the connection was reset", reason="CA_DOWN")

    office.ca.place_order = lost  # type: ignore[assignment,method-assign]
    await office.house.ask(NAME, issuers=["later"])
    await office.pass_by(40 * DAY)
    attempt = await office.attempt()
    assert (attempt.state, attempt.reason) == (IssuanceState.KEY_STORED, "ORDER_UNCERTAIN")
    assert len(office.ca.orders) == 2
    office.ca.place_order, office.ca.approved = place, True  # type: ignore[method-assign]
    await office.house.renew(NAME, actor="local:alice")
    await office.pass_by(HOUR)
    assert (await office.house.view(NAME)).current is not None
    assert len(office.ca.orders) == 3, "a person said so"


async def test_an_order_that_was_never_begun_is_in_no_doubt(office: Office) -> None:
    """Its CA could not even be made: there is nothing to look for."""
    office.ca.can_find = False
    make = office.house.make_issuer
    tries = 0

    async def not_yet(row: IssuerRow) -> Any:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise TryLater("its credentials cannot be opened here", reason="KEY_MISSING")
        return await make(row)

    office.days = Days(
        office.house, office.clock, issuance_duties.kinds(replace(office.house.tools, make_issuer=not_yet))
    )
    office.ca.approved = True
    await office.house.ask(NAME, issuers=["later"])
    await office.pass_by(HOUR)
    assert (await office.house.view(NAME)).current is not None
    assert "issuance.uncertain" not in await office.events()


async def test_the_next_order_knows_the_one_that_the_certificate_in_use_came_from(office: Office) -> None:
    office.ca.approved = True
    await office.house.ask(NAME, issuers=["later"])
    await office.pass_by(HOUR)
    await office.house.renew(NAME, actor="local:alice")
    await office.pass_by(HOUR)
    assert [request.previous for request in office.ca.wishes] == [None, {"order": "order-1"}]
    # Attempts are forgotten after a while; the one of the certificate in use is not.
    office.clock.ahead += 100 * DAY
    await issuance_duties.forget_issuances(office.house.certificate_context, 90 * DAY)
    kept = await office.house.db.read(lambda tx: tx.rows("SELECT ref FROM issuances"))
    assert [each["ref"] for each in kept] == ['{"order": "order-2"}']


# ── Proofs ──


class Forgetful(TruthfulCa):
    """It shows a challenge as pending for some looks after it was told."""

    shows = 3

    async def order_status(self, ref: object, wish: object) -> object:  # type: ignore[override]
        order = self.orders[ref["order"]]  # type: ignore[index]
        if order.answered and self.shows:
            self.shows -= 1
            self.calls.append("look")
            return NeedsProof(choices=tuple((each,) for each in order.proofs))
        return await super().order_status(ref, wish)  # type: ignore[arg-type]


async def test_a_challenge_is_answered_once_however_long_the_ca_shows_it(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    ca = Forgetful(proofs=True)
    await house.add("slow", ca, **WIDE)
    async with house.working():
        await house.ask(NAME, "b.example.com", issuers=["slow"])
        view = await house.settled_soon(NAME)
    assert view.current is not None
    assert ca.calls.count("answer") == 2, "one for each name"


async def test_an_answer_whose_reply_was_lost_is_given_again(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path, proofs=True)
    ca = house.cas["ca"]
    ca.troubles["answer"] = [TryLater("the connection was reset", reason="CA_DOWN")]
    async with house.working():
        await house.ask(NAME)
        view = await house.settled_soon(NAME)
    assert view.current is not None
    assert ca.calls.count("answer") == 2


# ── Settings ──


@pytest.mark.parametrize(
    "value", ["ten", -1, True, 86_401, float("nan")], ids=["word", "negative", "bool", "long", "nan"]
)
async def test_a_window_that_makes_no_sense_is_refused_by_its_name(office: Office, value: object) -> None:
    with pytest.raises(IssuerRefused, match="poll_max_wait_seconds"):
        await office.house.change_issuer("later", {"poll_max_wait_seconds": value}, actor="local:op")
