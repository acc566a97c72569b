"""Who does the duties that one replica does for all, on both stores: taken, kept, lost, handed over."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from tests.simulation.stage import Stage
from tests.support.engine import Moody, Watch, done, eventually, kind, on_stage, stage_node
from tests.support.jobs import MovableClock

from holdfast.core.work.cluster import Lease
from holdfast.core.work.job import Spec
from holdfast.engine.leader import MARGIN, NAME, Leader
from holdfast.engine.replica import Pace, RunningReplica
from holdfast.engine.worker import WorkerIdentity
from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.ports import Clock, no_points
from holdfast.store.database import Database, Store
from holdfast.store.tx import Tx
from holdfast.store.work import cluster
from holdfast.world import SystemClock, SystemRandom

pytestmark = pytest.mark.anyio

TTL, HOUR = timedelta(seconds=30), timedelta(hours=1)
SHORT = timedelta(seconds=0.6)  # for tests in which the lease is to be lost
BRISK = timedelta(
    seconds=4
)  # short, and ten times that is longer than TTL: it is not absurd to whoever asks for so much


class Race:
    """A leader in the race, and what became of it."""

    def __init__(
        self,
        db: Store,
        holder: str,
        ttl: timedelta = TTL,
        clock: Clock | None = None,
    ) -> None:
        self.watch = Watch()
        self.stop = asyncio.Event()
        self.led = self.looked = 0
        self.leader = Leader(
            db,
            holder=holder,
            ttl=ttl,
            clock=clock or SystemClock(),
            points=no_points,
            telemetry=self.watch.telemetry,
            may_lead=self.note_look,
        )

    def note_look(self) -> bool:
        self.looked += 1
        return True

    def has_looked(self) -> bool:
        return self.watch.metrics.registry.get_sample_value("holdfast_lease_held", {"lease": NAME}) is not None

    def on_lead(self) -> None:
        self.led += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Race"]:
        task = asyncio.create_task(self.leader.run(self.stop, self.on_lead))
        try:
            yield self
        finally:
            self.stop.set()
            await task


async def held(db: Database) -> list[Lease]:
    return await db.read(cluster.held_leases)


async def test_a_free_lease_is_taken_and_the_duties_tick_at_once(db: Database) -> None:
    async with Race(db, "a").running() as a:
        await eventually(a.leader.leads)
        assert a.led == 1
        assert [lease.holder for lease in await held(db)] == ["a"]
        assert a.watch.metric("lease_held", lease=NAME) == 1
        assert [line["lease"] for line in a.watch.log.told("lease.taken")] == [NAME]


async def test_a_lease_is_renewed_under_the_same_fence(db: Database) -> None:
    async with Race(db, "a", timedelta(seconds=6)).running() as a:
        await eventually(a.leader.leads)
        [first] = await held(db)

        async def renewed() -> bool:
            return [lease.until > first.until for lease in await held(db)] == [True]

        await eventually(renewed)
        assert a.led == 1
        assert [lease.fence for lease in await held(db)] == [first.fence]


def test_a_leader_leads_for_hours_and_a_dead_one_is_followed_within_its_lease() -> None:
    async def story(stage: Stage) -> None:
        a, b = stage_node(stage, "a"), stage_node(stage, "b")
        first, second = Race(a.store, "a", clock=a.clock), Race(b.store, "b", clock=b.clock)
        leading = asyncio.create_task(first.leader.run(first.stop, first.on_lead))
        await asyncio.sleep(1)
        async with second.running():
            await asyncio.sleep(4 * 3600)
            assert (first.led, second.led) == (1, 0)
            assert first.leader.leads()
            a.node.kill()
            await asyncio.sleep(1.5 * TTL.total_seconds())  # the rest of its lease, and a third for the next look
            assert second.leader.leads()
        await asyncio.wait({leading})

    on_stage(story)


async def test_only_one_of_two_leads_and_the_other_follows_when_it_leaves(db: Database) -> None:
    async with Race(db, "a").running() as a:
        await eventually(a.leader.leads)
        async with Race(db, "b", BRISK).running() as b:
            assert not b.leader.leads()
            a.stop.set()  # releases at once: b need not wait for half a minute
            await eventually(b.leader.leads)
            assert not a.leader.leads()
            assert (a.led, b.led) == (1, 1)


async def test_a_stop_frees_the_lease(db: Database) -> None:
    async with Race(db, "a").running() as a:
        await eventually(a.leader.leads)
    assert await held(db) == []
    assert a.watch.metric("lease_held", lease=NAME) == 0


async def test_one_that_does_not_lead_releases_nothing(db: Database) -> None:
    async with Race(db, "a").running() as a:
        await eventually(a.leader.leads)
        async with Race(db, "b").running():
            pass
        assert [lease.holder for lease in await held(db)] == ["a"]


async def test_a_lease_that_is_let_go_moves_at_once_and_not_at_the_next_look(db: Database) -> None:
    """The next look would be twenty minutes later: by then this test has failed."""
    async with Race(db, "a", HOUR).running() as a:
        await eventually(a.leader.leads)
        async with Race(db, "b", HOUR).running() as b:
            await eventually(b.has_looked)
            a.stop.set()
            await eventually(b.leader.leads)


def test_a_dead_leader_is_followed_when_its_lease_ends_and_not_at_the_next_look() -> None:
    async def story(stage: Stage) -> None:
        a, b = stage_node(stage, "a"), stage_node(stage, "b")
        first, second = Race(a.store, "a", clock=a.clock), Race(b.store, "b", clock=b.clock)
        leading = asyncio.create_task(first.leader.run(first.stop, first.on_lead))
        await asyncio.sleep(5)  # its looks come half-way between the renewals
        async with second.running():
            await asyncio.sleep(21.5)
            a.node.kill()
            [lease] = stage.truth.look(cluster.held_leases)
            rest = (lease.until - b.clock.now()).total_seconds()
            await asyncio.sleep(rest + 2)
            assert second.leader.leads()
        await asyncio.wait({leading})

    on_stage(story)


def test_a_lone_replica_leads_again_as_soon_as_its_store_is_back() -> None:
    async def story(stage: Stage) -> None:
        a = stage_node(stage, "a")
        race = Race(a.store, "a", clock=a.clock)
        async with race.running():
            await asyncio.sleep(1)
            stage.chances["fail before commit"] = 1.0
            await asyncio.sleep(2 * TTL.total_seconds())
            assert not race.leader.leads()
            stage.chances.clear()
            await asyncio.sleep(TTL.total_seconds() / 3 + 2)  # it asks again at least as often as it would renew
            assert race.leader.leads()
            assert race.led == 2

    on_stage(story)


async def test_one_whose_lease_ran_out_takes_it_anew_in_the_same_step(db: Database) -> None:
    async with Race(db, "a", BRISK).running() as a:
        await eventually(a.leader.leads)
        steps = a.looked
        await db.write(lambda tx: tx.run("UPDATE leases SET until = 0"))
        await eventually(lambda: len(a.watch.log.told("lease.taken")) == 2)
        assert a.watch.log.told("lease.lost")
        assert a.looked == steps + 1


def steal(tx: Tx) -> None:
    tx.run("UPDATE leases SET until = 0")
    assert cluster.take_lease(tx, NAME, "b", 0.8 * TTL) is not None


async def test_a_lease_taken_by_another_is_noticed_and_said(db: Database) -> None:
    async with Race(db, "a", BRISK).running() as a:
        await eventually(a.leader.leads)
        await db.write(steal)
        await eventually(lambda: a.watch.log.told("lease.lost"))
        assert not a.leader.leads()
        assert a.watch.metric("lease_held", lease=NAME) == 0
    assert [lease.holder for lease in await held(db)] == ["b"]  # and its stop released nothing of b's


async def test_a_lease_is_trusted_a_little_less_long_than_it_lasts_while_the_store_is_away(db: Database) -> None:
    clock, moody = MovableClock(), Moody(db)
    async with Race(moody, "a", clock=clock).running() as a:
        await eventually(a.leader.leads)
        moody.before = StoreUnavailable("down")
        clock.at += TTL * (1 - MARGIN) - timedelta(seconds=1)
        assert a.leader.leads()
        clock.at += timedelta(seconds=1)
        assert not a.leader.leads()
        assert [lease.holder for lease in await held(db)] == ["a"]  # while nobody else can have it yet


async def test_the_gauge_says_what_is_believed_and_not_what_was_once_held(db: Database) -> None:
    moody = Moody(db)
    async with Race(moody, "a", SHORT).running() as a:
        await eventually(lambda: a.watch.metric("lease_held", lease=NAME))
        moody.before = StoreUnavailable("down")
        await eventually(lambda: not a.watch.metric("lease_held", lease=NAME))
        assert not a.leader.leads()


async def test_time_spent_waiting_for_the_answer_counts_against_the_lease(db: Database) -> None:
    clock, moody = MovableClock(), Moody(db)
    moody.hangs = asyncio.Event()
    async with Race(moody, "a", clock=clock).running() as a:
        await eventually(lambda: moody.tried)
        clock.at += TTL * (1 - MARGIN)  # the answer is on its way for almost as long as the lease lasts
        moody.hangs.set()
        await eventually(lambda: a.watch.log.told("lease.taken"))
        assert not a.leader.leads()
        assert a.led == 0


@pytest.mark.parametrize("stops", [False, True])
def test_a_lease_whose_answer_was_lost_is_ours_at_the_next_step_and_free_at_a_stop(stops: bool) -> None:
    async def story(stage: Stage) -> None:
        a = stage_node(stage, "a")
        race = Race(a.store, "a", clock=a.clock)
        stage.chances["fail after commit"] = 1.0
        async with race.running():
            await asyncio.sleep(1)
            assert [lease.holder for lease in stage.truth.look(cluster.held_leases)] == ["a"]
            assert not race.leader.leads()  # nobody here has heard of it
            stage.chances.clear()
            if not stops:
                await asyncio.sleep(TTL.total_seconds() / 3)
                assert race.leader.leads()
                assert race.led == 1
        assert stage.truth.look(cluster.held_leases) == []

    on_stage(story)


async def test_a_lease_whose_answer_was_lost_is_not_believed(db: Database) -> None:
    moody = Moody(db)
    moody.after = OutcomeUnknown("lost")
    async with Race(moody, "a").running() as a:
        await eventually(lambda: moody.tried)
        assert not a.leader.leads()
        assert a.led == 0


async def test_becoming_the_leader_while_stopping_starts_no_duty(db: Database) -> None:
    moody = Moody(db)
    moody.hangs = asyncio.Event()
    async with Race(moody, "a").running() as a:
        await eventually(lambda: moody.tried)
        a.stop.set()
        moody.hangs.set()
    assert a.led == 0
    assert await held(db) == []


async def test_a_stop_with_the_store_away_ends_and_says_so(db: Database) -> None:
    moody = Moody(db)
    async with Race(moody, "a").running() as a:
        await eventually(a.leader.leads)
        moody.before = StoreUnavailable("down")
    assert [line["error"] for line in a.watch.log.told("lease.not_released")] == ["down"]
    assert not a.leader.leads()


# ── the duties of whole replicas ──


def replica(db: Store, name: str, looked: list[str]) -> RunningReplica:
    """A replica whose reconciler notes who looked."""

    def owed(tx: Tx) -> Sequence[Spec]:
        looked.append(name)
        return ()

    return RunningReplica(
        db=db,
        identity=WorkerIdentity(holder=name, name=name),
        pace=Pace(ttl=timedelta(seconds=6), reconcile=timedelta(seconds=0.05), poll=timedelta(seconds=0.1)),
        kinds=[kind("k", done)],
        families=[owed],
        clock=SystemClock(),
        random=SystemRandom(),
        points=no_points,
        telemetry=Watch().telemetry,
    )


@asynccontextmanager
async def at_work(member: RunningReplica) -> AsyncIterator[asyncio.Event]:
    stop = asyncio.Event()
    task = asyncio.create_task(member.run(stop))
    try:
        yield stop
    finally:
        stop.set()
        await task


async def test_the_sweeps_run_on_the_leader_alone_and_move_with_the_lease(db: Database) -> None:
    looked: list[str] = []
    async with at_work(replica(db, "a", looked)) as stop_a:
        await eventually(lambda: looked.count("a") >= 3)
        async with at_work(replica(db, "b", looked)):
            seen = looked.count("a")
            await eventually(lambda: looked.count("a") >= seen + 5)
            assert "b" not in looked
            stop_a.set()
            await eventually(lambda: "b" in looked)
    assert await held(db) == []
