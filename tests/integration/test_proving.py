"""Proofs of many names by slow solvers: nothing is published twice, nothing is left behind, and whose fault it was."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.lifecycle import Board, House, a_house
from tests.support.stores import migrated, open_store

from holdfast.core.inventory import InventoryFilter
from holdfast.core.issuance import IssuanceState
from holdfast.core.status import Phase
from holdfast.engine import sweep
from holdfast.engine.issuance import challenges, issue
from holdfast.engine.issuance import duties as issuance_duties
from holdfast.engine.issuance.challenges import AT_ONCE, ROOM
from holdfast.engine.kind import JobKind, Work
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import ChallengeResponse
from holdfast.operations.certificates.views import views_of
from holdfast.operations.issuers import manage as manage_issuers
from holdfast.ports import no_points
from holdfast.store import inventory, issuances, journal
from holdfast.store.database import Database
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx
from holdfast.store.work import jobs
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio
NAME = "www.example.com"


@pytest.fixture
async def lite(tmp_path: Path) -> AsyncIterator[Database]:
    """For what is the same on every store."""
    store = open_store(SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock()))
    await migrated(store)
    yield store
    await store.close()


class SlowBoard(Board):
    """A solver that counts its calls and how many there are at a time, and that can be held up or made to fail."""

    def __init__(self, *, side_by_side: bool = False, takes: float = 0.0) -> None:
        super().__init__()
        self.side_by_side, self.takes = side_by_side, takes  # type: ignore[misc]
        self.calls: Counter[tuple[str, str]] = Counter()
        self.at_once: Counter[str] = Counter()
        self.most_at_once: Counter[str] = Counter()
        self.troubles: dict[tuple[str, str], list[Exception]] = {}
        self.held = asyncio.Event()
        self.held.set()

    async def publish(self, response: ChallengeResponse) -> None:
        await self._call("publish", response)
        await super().publish(response)

    async def visible(self, response: ChallengeResponse) -> bool:
        await self._call("visible", response)
        return await super().visible(response)

    async def clean(self, response: ChallengeResponse) -> None:
        await self._call("clean", response)
        await super().clean(response)

    async def _call(self, what: str, response: ChallengeResponse) -> None:
        name = response.identifier.value
        self.calls[what, name] += 1
        self.at_once[what] += 1
        self.most_at_once[what] = max(self.most_at_once[what], self.at_once[what])
        await asyncio.sleep(self.takes)
        if what == "publish":
            await self.held.wait()
        self.at_once[what] -= 1
        if troubles := self.troubles.get((what, name)):
            raise troubles.pop(0)

    def published(self) -> dict[str, int]:
        return {name: times for (what, name), times in self.calls.items() if what == "publish"}


async def a_slow_house(db: Database, folder: Path, board: SlowBoard | None = None) -> tuple[House, SlowBoard]:
    house = await a_house(db, folder, proofs=True)
    await house.change_issuer("ca", {"limits": {"requests": [1000, 0.001]}}, actor="local:op")
    house.board = board = board or SlowBoard()
    return house, board


def names(many: int) -> list[str]:
    return [NAME, *(f"n{n}.example.com" for n in range(1, many))]


async def not_seen_yet(house: House, *asked: str) -> None:
    """An attempt that has published its proofs, and waits for them to be seen."""
    house.board.seen = False
    await house.ask(*asked)

    async def waits() -> bool:
        return (await house.view(asked[0])).status.reason_code == "PROOF_NOT_VISIBLE"

    await house.until(waits)


# ── Many names ──


async def claimed(house: House, kind: JobKind, *, left: Callable[[], float]) -> bool:
    """One claim, and what it answered written down; False if there was nothing to claim."""
    await house.hurry()
    ttl = timedelta(minutes=1)
    claims = await house.db.write(lambda tx: jobs.claim(tx, holder="p", free={kind.name: 1}, ttl=ttl))
    for claim in claims:
        outcome = await kind.handler(Work(claim=claim, check=lambda: None, point=no_points, left=left))
        await house.db.write(lambda tx, claim=claim, outcome=outcome: jobs.settle(tx, claim, outcome, kind.ladder))  # type: ignore[misc]
    return bool(claims)


async def test_a_claim_without_time_for_another_name_leaves_it_to_the_next(lite: Database, tmp_path: Path) -> None:
    house, board = await a_slow_house(lite, tmp_path)
    await house.ask(*names(5))
    kind, claims = issue.kind(house.tools), 0
    while (await house.view(NAME)).issuance is not None:
        assert await claimed(house, kind, left=lambda: ROOM - 1)
        claims += 1
        assert sum(board.published().values()) <= claims <= 20
    assert board.published() == dict.fromkeys(names(5), 1)
    assert (await house.view(NAME)).status.phase is Phase.OK


async def test_the_worker_says_how_much_time_is_left_so_that_many_slow_names_are_proved(
    lite: Database, tmp_path: Path
) -> None:
    house, board = await a_slow_house(lite, tmp_path, SlowBoard(takes=0.1))
    short = replace(issue.kind(house.tools), timeout=timedelta(seconds=ROOM + 0.15))
    async with house.working(kinds=[short, challenges.kind(house.tools)], only=True):
        await house.ask(*names(6))
        view = await house.settled_soon(NAME)
        await house.until_no_job("clean")
    assert view.status.phase is Phase.OK
    assert house.cas["ca"].calls.count("look") > 4, "one claim has time for two names"
    assert board.published() == dict.fromkeys(names(6), 1)
    assert board.shown == {}


@pytest.mark.parametrize(("side_by_side", "most"), [(True, AT_ONCE), (False, 1)])
async def test_names_are_published_together_where_the_solver_allows_it(
    lite: Database, tmp_path: Path, side_by_side: bool, most: int
) -> None:
    house, board = await a_slow_house(lite, tmp_path, SlowBoard(side_by_side=side_by_side))
    async with house.working():
        await house.ask(*names(12))
        view = await house.settled_soon(NAME)
        await house.until_no_job("clean")
    assert view.status.phase is Phase.OK
    assert dict(board.most_at_once) == {"publish": most, "visible": AT_ONCE, "clean": most}
    assert board.shown == {}


async def test_a_name_that_fails_does_not_have_the_others_published_again(lite: Database, tmp_path: Path) -> None:
    house, board = await a_slow_house(lite, tmp_path)
    board.troubles["publish", "n2.example.com"] = [TryLater("not now"), TryLater("not now")]
    async with house.working():
        await house.ask(*names(4))
        await house.settled_soon(NAME)
    assert board.published() == {**dict.fromkeys(names(4), 1), "n2.example.com": 3}


async def test_a_proof_that_somebody_removed_is_published_once_more(lite: Database, tmp_path: Path) -> None:
    house, board = await a_slow_house(lite, tmp_path)
    async with house.working():
        await not_seen_yet(house, *names(2))
        board.shown.pop(next(token for token in board.shown if "n1" in token))
        board.seen = True
        await house.settled_soon(NAME)
    assert board.published() == {NAME: 1, "n1.example.com": 2}
    assert board.calls["visible", NAME] == 2, "once before, and once when all could be seen: then it is marked"


# ── Whose fault it is ──


async def test_a_solver_that_hangs_is_not_a_ca_that_is_down(lite: Database, tmp_path: Path) -> None:
    house, board = await a_slow_house(lite, tmp_path)
    board.troubles["publish", NAME] = [TryLater("/bin/hook did not end in 120 s", reason="TIMEOUT")] * 5
    async with house.working():
        await house.ask(NAME)

        async def told() -> bool:
            return (await house.view(NAME)).status.reason_code == "SOLVER_FAILED"

        await house.until(told)
        view = await house.view(NAME)
        assert (view.status.acts_next, view.status.last_error) == ("operator", "/bin/hook did not end in 120 s")
        explained = view.explain()
        assert explained.would_change_it.startswith("An operator of Holdfast")
        assert "did not end in 120 s" in explained.checks[-1].saw
        failed = await house.settled_soon(NAME)
    assert failed.status.reason_code == "SOLVER_FAILED"
    assert (await house.read(manage_issuers.found, "ca")).breaker.failures == 0


async def test_a_solver_that_refuses_is_not_a_ca_that_does(lite: Database, tmp_path: Path) -> None:
    house, board = await a_slow_house(lite, tmp_path)
    board.troubles["publish", NAME] = [Refused("there is no such zone")]
    async with house.working():
        await house.ask(NAME)
        assert (await house.settled(NAME)).status.reason_code == "SOLVER_FAILED"


@pytest.mark.parametrize(("reason", "shown"), [("WHATEVER", "INTERNAL"), ("NONCES_REFUSED", "NONCES_REFUSED")])
async def test_what_does_not_say_that_a_ca_is_down_does_not_open_its_breaker(
    lite: Database, tmp_path: Path, reason: str, shown: str
) -> None:
    house, _ = await a_slow_house(lite, tmp_path)
    house.cas["ca"].always["place"] = TryLater("what is this?", reason=reason)
    async with house.working():
        await house.ask(NAME)
        failed = await house.settled_soon(NAME)
    assert (failed.status.reason_code, failed.status.last_error) == (shown, "what is this?")
    breaker = (await house.read(manage_issuers.found, "ca")).breaker
    assert (breaker.failures, breaker.until) == (0, None)


# ── Taking away ──


async def _cancelled(house: House) -> None:
    await house.cancel(NAME, actor="local:alice", why="a mistake")


async def _paused(house: House) -> None:
    await house.set_state(NAME, "paused", actor="local:alice")


async def _archived(house: House) -> None:
    await house.set_state(NAME, "archived", actor="local:alice")


@pytest.mark.parametrize("stop", [_cancelled, _paused, _archived])
async def test_what_was_published_is_taken_away_when_the_attempt_is_stopped(
    db: Database, tmp_path: Path, stop: Callable[[House], None]
) -> None:
    house, board = await a_slow_house(db, tmp_path)
    async with house.working():
        await not_seen_yet(house, *names(3))
        assert len(board.shown) == 3
        await stop(house)  # type: ignore[misc, func-returns-value]
        await house.until_no_job("clean")
    assert board.shown == {}
    [attempt] = await db.read(lambda tx: issuances.of(tx, _id(tx)))
    assert (attempt.state, attempt.proofs) == (IssuanceState.CANCELLED, ())


async def test_a_changed_wish_takes_the_proofs_of_the_old_one_away(lite: Database, tmp_path: Path) -> None:
    house, board = await a_slow_house(lite, tmp_path)
    async with house.working():
        await not_seen_yet(house, NAME, "old.example.com")
        await house.change(NAME, names=[NAME, "new.example.com"])
        board.seen = True
        view = await house.settled_soon(NAME)
        await house.until_no_job("clean")
    assert view.status.phase is Phase.OK
    assert board.calls["clean", "old.example.com"] == 1
    assert board.shown == {}


def _id(tx: Tx) -> str:
    [row] = tx.rows("SELECT id FROM certificates")
    return str(row["id"])


async def test_nothing_more_is_published_for_an_attempt_that_was_stopped(lite: Database, tmp_path: Path) -> None:
    house, board = await a_slow_house(lite, tmp_path)
    board.held.clear()
    async with house.working():
        await house.ask(*names(4))
        await house.until(lambda: board.at_once["publish"] == 1)
        await _cancelled(house)

        async def looked() -> bool:
            rows = await lite.read(lambda tx: tx.rows("SELECT reason FROM jobs WHERE kind = 'clean'"))
            return [row["reason"] for row in rows] in ([], ["UNDER_WAY"])

        await house.until(looked)
        board.held.set()
        await house.until_no_job("issue")

        async def hurried() -> bool:
            await house.hurry()
            return not await lite.read(lambda tx: tx.rows("SELECT id FROM jobs WHERE kind = 'clean'"))

        await house.until(hurried)
    assert board.published() == {NAME: 1}
    assert board.shown == {}, "what was published while it was stopped is taken away after that"


async def test_an_attempt_that_was_stopped_while_the_ca_was_asked_publishes_nothing(
    lite: Database, tmp_path: Path
) -> None:
    house, board = await a_slow_house(lite, tmp_path)
    board.troubles["publish", NAME] = [TryLater("not now")]
    await house.ask(NAME)
    assert await claimed(house, issue.kind(house.tools), left=lambda: 300.0)
    look = house.cas["ca"].order_status

    async def stopped_meanwhile(ref: Any, wish: Any) -> Any:
        await _cancelled(house)
        return await look(ref, wish)

    house.cas["ca"].order_status = stopped_meanwhile
    assert await claimed(house, issue.kind(house.tools), left=lambda: 300.0)
    assert board.published() == {NAME: 1}


async def test_what_cannot_be_taken_away_now_is_tried_again(lite: Database, tmp_path: Path) -> None:
    house, board = await a_slow_house(lite, tmp_path)
    board.troubles["clean", "n1.example.com"] = [TryLater("the name server is away")]
    async with house.working():
        await house.ask(*names(3))
        view = await house.settled_soon(NAME)
        assert view.status.phase is Phase.OK, "the certificate does not wait for that"

        async def failed() -> bool:
            rows = await lite.read(lambda tx: tx.rows("SELECT id FROM jobs WHERE kind = 'clean' AND state = 'failed'"))
            return bool(rows)

        await house.until(failed)
        assert [token for token in board.shown if "n1" not in token] == []
        assert len(board.shown) == 1
        await lite.write(lambda tx: tx.run("UPDATE jobs SET due_at = now_us() WHERE state = 'failed'"))
        await sweep.retry_failed(lite, no_points)
        await house.until_no_job("clean")
    assert board.shown == {}
    assert board.calls["clean", NAME] == 1, "what is gone is not asked for again"


async def test_one_that_hangs_does_not_hide_the_others_from_being_taken_away(lite: Database, tmp_path: Path) -> None:
    house, board = await a_slow_house(lite, tmp_path)
    async with house.working():
        await not_seen_yet(house, *names(3))
    board.troubles["clean", NAME] = [TryLater("it hangs")] * 9
    await _cancelled(house)
    for _ in range(3):
        assert await claimed(house, challenges.kind(house.tools), left=lambda: ROOM - 1)
        await lite.write(lambda tx: tx.run("UPDATE jobs SET state = 'ready' WHERE state = 'failed'"))
    assert [token for token in board.shown if NAME not in token] == []


async def test_what_nobody_can_take_away_is_seen_by_a_person(lite: Database, tmp_path: Path) -> None:
    house, board = await a_slow_house(lite, tmp_path)
    board.troubles["clean", NAME] = [Refused("the zone is gone")]
    async with house.working():
        await house.ask(NAME)
        view = await house.settled_soon(NAME)

        async def dead() -> bool:
            return await lite.read(lambda tx: jobs.any_dead(tx, "clean"))

        await house.until(dead)
    [job] = await lite.read(lambda tx: tx.rows("SELECT reason, last_error FROM jobs WHERE kind = 'clean'"))
    assert (job["reason"], job["last_error"]) == ("SOLVER_FAILED", "the zone is gone")
    told = await lite.read(lambda tx: journal.events_after(tx, 0, subject=view.certificate.id, limit=200))
    [left] = [each for each in told if each.name == "issuance.proofs_left"]
    assert left.details["proofs"] == [f"http-01 for {NAME}"]


async def test_a_proof_without_a_solver_is_not_forgotten(lite: Database, tmp_path: Path) -> None:
    house, _ = await a_slow_house(lite, tmp_path)
    async with house.working():
        await not_seen_yet(house, NAME)
    await _cancelled(house)
    others = replace(house.tools, solver_for=lambda offers, only=None: None)
    assert await claimed(house, challenges.kind(others), left=lambda: 300.0)
    [job] = await lite.read(lambda tx: tx.rows("SELECT state, last_error FROM jobs WHERE kind = 'clean'"))
    assert job["state"] == "dead"
    assert f"http-01 for {NAME}" in job["last_error"]


async def test_what_another_attempt_shows_as_well_is_left_to_it(db: Database, tmp_path: Path) -> None:
    house, board = await a_slow_house(db, tmp_path)
    async with house.working():
        await not_seen_yet(house, NAME)
        await not_seen_yet(house, "other.example.com")
        [token] = [each for each in board.shown if NAME in each]

        def same_challenge(tx: Tx) -> None:
            rows = tx.rows("SELECT id, proofs FROM issuances")
            [mine] = [row["proofs"] for row in rows if token in row["proofs"]]
            [other] = [row["id"] for row in rows if token not in row["proofs"]]
            tx.run("UPDATE issuances SET proofs = :mine WHERE id = :other", mine=mine, other=other)

        await db.write(same_challenge)
        await _cancelled(house)
        await house.until_no_job("clean")
    assert token in board.shown


# ── What a job that failed says ──


async def _job_is(db: Database, state: str) -> None:
    error = "did not end within 300 s"
    await db.write(
        lambda tx: tx.run(
            """UPDATE jobs SET state = :state, reason = 'TIMEOUT', last_error = :error, attempts = 3
                WHERE kind = 'issue'""",
            state=state,
            error=error,
        )
    )


@pytest.mark.parametrize("state", ["failed", "dead"])
async def test_the_status_says_why_the_job_failed(db: Database, tmp_path: Path, state: str) -> None:
    house = await a_house(db, tmp_path)
    await house.ask(NAME)
    await _job_is(db, state)
    [listed] = await db.read(lambda tx: views_of(tx, inventory.find(tx, InventoryFilter(), limit=10)))
    for view in (await house.view(NAME), listed):
        assert (view.status.reason_code, view.status.reason) == ("INTERNAL", "did not end within 300 s")
        assert view.status.last_error == "did not end within 300 s"
        assert view.status.blocked_by == ("INTERNAL",)
        assert (view.status.next_attempt_at is None) is (state == "dead")


async def test_an_attempt_whose_job_was_given_up_says_what_the_job_said(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.ask(NAME)
    await _job_is(db, "dead")
    await sweep.reconcile(db, issuance_duties.families(house.certificate_context), no_points)
    view = await house.view(NAME)
    assert view.status.phase is Phase.FAILING
    assert view.status.last_error == "Its job was given up after 3 attempts: did not end within 300 s"
