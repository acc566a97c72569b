"""The worker on both stores: what it claims, what becomes of the work, whose it is, and how it stops."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from tests.simulation.stage import Stage
from tests.support.engine import (
    Blocked,
    Moody,
    Watch,
    done,
    eventually,
    in_state,
    kind,
    on_stage,
    row,
    stage_node,
    working,
)
from tests.support.jobs import ON_POSTGRES, audits, claim, enqueue, history, opened, put, spec, update
from tests.support.reaper import PATIENCE
from tests.support.secrets_planted import HANDLER_TOKEN, MARK
from tests.support.stores import migrated

from holdfast.core.backoff import Ladder
from holdfast.core.work.job import Again, Done, Outcome
from holdfast.engine.kind import JobHandler, Work
from holdfast.engine.worker import CLOCK_JUMP
from holdfast.errors import LeaseLost, OutcomeUnknown, Refused, StoreUnavailable, TryLater, TxConflict
from holdfast.secret import Secret
from holdfast.store.database import Database, Engine, EngineSession
from holdfast.store.tx import Tx
from holdfast.store.work import cluster, jobs
from holdfast.telemetry import make_log

pytestmark = pytest.mark.anyio

NEVER = timedelta(hours=1)  # a poll that no test waits for
SHORT = timedelta(seconds=0.6)  # a lease that is to be lost
MINUTE = timedelta(minutes=1)


def answering(*outcomes: Outcome | Exception) -> JobHandler:
    """A handler that answers these in turn, the last one for ever."""
    left = list(outcomes)

    async def handler(work: Work) -> Outcome:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return handler


async def after_one_try(db: Database, answer: Outcome | Exception, **wishes: Any) -> tuple[dict[str, Any], Watch]:
    """The row of a job whose handler answered so, and what was reported."""
    job_id = await enqueue(db, **wishes)
    async with working(db, [kind("k", answering(answer))], poll=NEVER) as worker:
        await eventually(lambda: worker.watch.metric("job_duration_seconds_count", queue="k"))
    return await row(db, job_id), worker.watch


# ── claiming ──


async def test_due_jobs_of_every_kind_are_done_and_moved_to_the_history(db: Database) -> None:
    ids = [await enqueue(db, str(n), kind=name) for n in range(3) for name in ("k", "other")]
    async with working(db, [kind("k", done), kind("other", done)]) as worker:
        await eventually(lambda: worker.watch.attempts("done") == 3)
        await eventually(lambda: worker.watch.attempts("done", "other") == 3)
    assert await history(db) == dict.fromkeys(ids, "done")


async def test_a_kind_whose_slots_are_all_busy_never_starves_another(db: Database) -> None:
    slow = Blocked()
    for n in range(5):
        await enqueue(db, f"slow-{n}", kind="slow")
        await enqueue(db, f"quick-{n}", kind="quick")
    async with working(db, [kind("slow", slow, slots=2), kind("quick", done, slots=1)]) as worker:
        await eventually(lambda: worker.watch.attempts("done", "quick") == 5)
        assert len(slow.began) == 2
        assert await db.read(jobs.counts) == {("slow", "running"): 2, ("slow", "ready"): 3}
        slow.go.set()
        await eventually(lambda: len(slow.ended) == 5)


async def test_a_freed_slot_is_filled_and_new_work_is_found_without_waiting_for_the_poll(db: Database) -> None:
    async with working(db, [kind("k", done, slots=1)], poll=NEVER) as worker:
        for n in range(4):
            await enqueue(db, str(n))  # the first wakes the worker, the others wait for its only slot
        await eventually(lambda: worker.watch.attempts("done") == 4)


async def test_work_whose_wake_up_was_lost_is_found_by_polling(db: Database) -> None:
    async with working(db, [kind("k", done)]) as worker:
        job = spec("quiet")

        def silently(tx: Tx) -> None:
            jobs.enqueue(tx, job)
            tx.wakes = False

        await db.write(silently)
        await eventually(lambda: worker.watch.attempts("done") == 1)


async def test_a_kind_that_nobody_here_handles_is_left_alone(db: Database) -> None:
    await enqueue(db, kind="elsewhere")
    await enqueue(db, kind="k")
    async with working(db, [kind("k", done)]) as worker:
        await eventually(lambda: worker.watch.attempts("done") == 1)
    assert await db.read(jobs.counts) == {("elsewhere", "ready"): 1}


# ── outcomes ──


async def test_a_remote_that_asks_for_time_gets_it_and_the_attempt_counts(db: Database) -> None:
    after = timedelta(hours=3)
    job, watch = await after_one_try(db, TryLater("busy", after=after, reason="CA_DOWN"))
    assert (job["state"], job["reason"], job["last_error"], job["attempts"]) == ("failed", "CA_DOWN", "busy", 1)
    assert await db.read(lambda tx: job["due_at"] > (tx.now() + after - MINUTE).timestamp() * 1_000_000)
    assert watch.attempts("failed") == 1
    assert watch.log.told("job.failed")[0]["reason"] == "CA_DOWN"


async def test_a_kind_may_have_a_ladder_of_its_own(db: Database) -> None:
    ladder = Ladder(first=timedelta(days=3), factor=1, cap=timedelta(days=3))
    job_id = await enqueue(db)
    async with working(db, [kind("k", answering(TryLater("busy")), ladder=ladder)]):
        await eventually(in_state(db, job_id, "failed"))
    due_at = (await row(db, job_id))["due_at"]
    assert await db.read(lambda tx: due_at > (tx.now() + timedelta(days=2)).timestamp() * 1_000_000)


async def test_a_refusal_ends_the_job_at_once_and_visibly(db: Database) -> None:
    job, _ = await after_one_try(db, Refused("never", reason="POLICY"), max_attempts=9)
    assert (job["state"], job["reason"], job["last_error"], job["attempts"]) == ("dead", "POLICY", "never", 1)
    assert ("system", "job_dead", "s") in await audits(db)


async def test_the_last_attempt_that_fails_ends_the_job(db: Database) -> None:
    job, _ = await after_one_try(db, TryLater("no"), max_attempts=1)
    assert (job["state"], job["attempts"]) == ("dead", 1)


async def test_work_that_takes_too_long_is_cancelled_and_fails_as_timed_out(db: Database) -> None:
    blocked, job_id = Blocked(), await enqueue(db)
    async with working(db, [kind("k", blocked, timeout=timedelta(seconds=0.2))]):
        await eventually(in_state(db, job_id, "failed"))
    job = await row(db, job_id)
    assert (job["reason"], job["last_error"]) == ("TIMEOUT", "did not end within 0.2 s")
    assert blocked.ended == ["cancelled"]


async def test_a_timeout_of_the_handlers_own_is_not_mistaken_for_the_limit_of_its_kind(db: Database) -> None:
    job, _ = await after_one_try(db, TimeoutError("its own"))
    assert (job["state"], job["reason"], job["last_error"]) == ("failed", "INTERNAL", "TimeoutError: its own")


async def test_more_to_do_later_costs_no_attempt(db: Database) -> None:
    job, watch = await after_one_try(db, Again(after=NEVER, reason="POLL"))
    assert (job["state"], job["reason"], job["attempts"]) == ("ready", "POLL", 0)
    assert watch.attempts("again") == 1


@pytest.mark.parametrize("blip", [StoreUnavailable("down"), OutcomeUnknown("lost"), TxConflict("busy")])
async def test_a_store_that_fails_under_a_handler_costs_the_job_no_attempt(db: Database, blip: Exception) -> None:
    job, _ = await after_one_try(db, blip)
    assert (job["state"], job["reason"], job["attempts"]) == ("ready", "STORE_UNAVAILABLE", 0)
    assert job["last_error"] is None


async def test_an_unexpected_exception_fails_the_job_with_its_traceback_logged_and_no_secret(
    db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    token = Secret(HANDLER_TOKEN)

    async def buggy(work: Work) -> Outcome:
        raise KeyError(token)

    job_id = await enqueue(db)
    watch = Watch(log=make_log("debug", "json"))
    async with working(db, [kind("k", buggy)], watch=watch):
        await eventually(in_state(db, job_id, "failed"))
    job, said = await row(db, job_id), capsys.readouterr().err
    assert job["reason"] == "INTERNAL"
    assert job["last_error"].startswith("KeyError")
    assert "job.crashed" in said
    assert "in buggy" in said
    assert MARK not in said + str(job)


async def test_an_answer_that_cannot_be_written_is_a_failed_attempt_and_not_a_silent_worker(db: Database) -> None:
    def broken(tx: Tx) -> None:
        put(tx, "half")
        raise ValueError("the write has a bug")

    job, watch = await after_one_try(db, Done(write=broken))
    assert (job["state"], job["reason"], job["attempts"]) == ("failed", "INTERNAL", 1)
    assert job["last_error"] == "ValueError: the write has a bug"
    assert job["crashes"] == 0
    assert len(watch.log.told("job.crashed")) == 1
    assert await db.read(lambda tx: tx.rows("SELECT name FROM self_checks")) == []


# ── whose work it is ──


async def test_a_lease_is_kept_for_as_long_as_the_work_lasts(db: Database) -> None:
    blocked, job_id = Blocked(), await enqueue(db)
    async with working(db, [kind("k", blocked)], ttl=timedelta(seconds=3)) as worker:
        await eventually(lambda: blocked.began)
        first = (await row(db, job_id))["lease_until"]

        async def kept() -> bool:
            return ((await row(db, job_id))["lease_until"] or 0) > first

        await eventually(kept)
        blocked.go.set()
        await eventually(lambda: worker.watch.attempts("done") == 1)


def test_work_of_hours_is_done_once_although_its_lease_lasts_half_a_minute() -> None:
    began: list[int] = []

    async def story(stage: Stage) -> None:
        a, b = stage_node(stage, "a"), stage_node(stage, "b")

        async def long(work: Work) -> Outcome:
            began.append(work.claim.attempt)
            await asyncio.sleep(3 * 3600)
            work.check()
            return Done()

        kinds = [kind("k", long, timeout=timedelta(hours=4))]
        stage.truth.transact(lambda tx: jobs.enqueue(tx, spec("s")))
        async with (
            working(a.store, kinds, holder="a", clock=a.clock, poll=MINUTE),
            working(b.store, kinds, holder="b", clock=b.clock, poll=MINUTE),
        ):
            await asyncio.sleep(3 * 3600 + 60)

    on_stage(story)
    assert began == [1]


async def test_a_job_that_went_to_another_is_cancelled_here_and_nothing_is_written(db: Database) -> None:
    blocked, job_id = Blocked(), await enqueue(db)
    async with working(db, [kind("k", blocked)]) as worker:
        await eventually(lambda: blocked.began)
        await update(db, "UPDATE jobs SET holder = 'another', fence = fence + 1, lease_until = now_us() + 200000000")
        await worker.worker._beat()
        await eventually(lambda: blocked.ended == ["cancelled"])
        await eventually(lambda: worker.watch.log.told("job.lease_lost"))
    assert worker.watch.attempts("lost") == 1
    job = await row(db, job_id)
    assert (job["state"], job["holder"], job["attempts"]) == ("running", "another", 1)


def test_a_lost_job_is_ended_at_the_next_beat_and_not_only_when_its_lease_would_have_ended() -> None:
    async def story(stage: Stage) -> float:
        a, blocked = stage_node(stage, "a"), Blocked()
        stage.truth.transact(lambda tx: jobs.enqueue(tx, spec("s")))
        async with working(a.store, [kind("k", blocked)], holder="a", clock=a.clock, poll=MINUTE):
            await asyncio.sleep(12)  # it has just been renewed
            stage.truth.transact(lambda tx: tx.run("UPDATE jobs SET fence = fence + 1"))
            while not blocked.ended:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.1)
            return stage.loop.time()

    assert on_stage(story) < 21


def test_a_job_that_comes_back_to_a_replica_that_had_not_noticed_its_loss_is_kept_like_any_other() -> None:
    async def story(stage: Stage) -> list[str]:
        a, blocked = stage_node(stage, "a"), Blocked()
        stage.truth.transact(lambda tx: jobs.enqueue(tx, spec("s")))
        async with working(a.store, [kind("k", blocked)], holder="a", clock=a.clock, poll=MINUTE) as worker:
            await asyncio.sleep(12)
            stage.truth.transact(lambda tx: tx.run("UPDATE jobs SET state = 'ready', fence = fence + 1, holder = NULL"))
            a.store.wake.fire()
            await asyncio.sleep(300)  # ten times as long as a lease
            assert len(blocked.began) == 2
            assert stage.truth.look(lambda tx: tx.row("SELECT crashes, state FROM jobs")) == {
                "crashes": 0,
                "state": "running",
            }
            blocked.go.set()
            await asyncio.sleep(1)
            assert worker.watch.attempts("done") == 1
        return blocked.ended

    assert on_stage(story) == ["cancelled", "done"]


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_a_worker_that_cannot_heartbeat_cancels_its_work(db: Database, how: str) -> None:
    blocked, moody = Blocked(), Moody(db)
    await enqueue(db)
    async with working(moody, [kind("k", blocked)], ttl=SHORT) as worker:
        await eventually(lambda: blocked.began)
        if how == "fails":
            moody.before = StoreUnavailable("down")
        else:
            moody.hangs = asyncio.Event()
        await eventually(lambda: "cancelled" in blocked.ended)
        assert worker.watch.log.told("job.lease_lost")
        moody.before = None
        if moody.hangs:
            moody.hangs.set()


async def test_a_short_outage_of_the_store_costs_no_work(db: Database) -> None:
    blocked, moody = Blocked(), Moody(db)
    await enqueue(db)
    async with working(moody, [kind("k", blocked)]) as worker:
        await eventually(lambda: blocked.began)
        moody.before = StoreUnavailable("down")
        await worker.worker._beat()
        assert worker.watch.log.told("beat.failed")
        assert worker.watch.metric("store_up") == 0
        moody.before = None
        await worker.worker._beat()
        assert worker.watch.metric("store_up") == 1
        blocked.go.set()
        await eventually(lambda: worker.watch.attempts("done") == 1)
    assert blocked.ended == ["done"]


async def test_an_effect_is_refused_once_the_lease_cannot_be_trusted(db: Database) -> None:
    """Even before the beat found out: the handler asks right before it acts."""
    moody, acted, checked = Moody(db), list[str](), asyncio.Event()

    async def handler(work: Work) -> Outcome:
        moody.hangs = asyncio.Event()  # from here on no beat is answered
        try:
            async with asyncio.timeout(SHORT.total_seconds() * 2):
                await asyncio.Event().wait()
        except (TimeoutError, asyncio.CancelledError):
            try:
                work.check()
                acted.append("acted")
            finally:
                moody.hangs.set()
                moody.hangs = None
                checked.set()
        return Done()

    await enqueue(db)
    async with working(moody, [kind("k", handler)], ttl=SHORT, poll=NEVER):
        await checked.wait()
    assert acted == []


async def test_a_handler_that_finds_its_lease_gone_writes_nothing(db: Database) -> None:
    job_id = await enqueue(db)
    async with working(db, [kind("k", answering(LeaseLost("k")))], poll=NEVER) as worker:
        await eventually(lambda: worker.watch.log.told("job.lease_lost"))
        assert (await row(db, job_id))["state"] == "running"  # until its lease runs out


@ON_POSTGRES
async def test_a_second_replica_takes_over_what_the_first_can_no_longer_hold(make_engine: Callable[[], Engine]) -> None:
    stuck, second = Blocked(), Blocked()
    async with opened(make_engine()) as db_a, opened(make_engine()) as db_b:
        cut_off = Moody(db_a)
        job_id = await enqueue(db_b)
        async with working(cut_off, [kind("k", stuck)], holder="a", ttl=timedelta(seconds=2)) as a:
            await eventually(lambda: stuck.began)
            cut_off.before = StoreUnavailable("cut off")
            async with working(db_b, [kind("k", second)], holder="b", ttl=timedelta(seconds=10)) as b:
                await eventually(lambda: second.began)
                assert (await row(db_b, job_id))["holder"] == "b"
                await eventually(lambda: stuck.ended == ["cancelled"])
                second.go.set()
                await eventually(lambda: b.watch.attempts("done") == 1)
            cut_off.before = None
        assert a.watch.attempts("done") == 0
        assert second.began[0].claim.attempt == 2
        assert await history(db_b) == {job_id: "done"}
        assert ("system", "job_taken_back", "s") in await audits(db_b)


@ON_POSTGRES
async def test_two_replicas_share_the_work_and_do_each_job_once(make_engine: Callable[[], Engine]) -> None:
    did: list[str] = []

    async def handler(work: Work) -> Outcome:
        did.append(work.claim.subject)
        return Done()

    async with opened(make_engine()) as db_a, opened(make_engine()) as db_b:
        for n in range(60):
            await enqueue(db_a, str(n))
        kinds = [kind("k", handler, slots=4)]
        async with working(db_a, kinds, holder="a"), working(db_b, kinds, holder="b"):
            await eventually(lambda: len(did) >= 60)
        assert sorted(did, key=int) == [str(n) for n in range(60)]
        assert len(await history(db_a)) == 60


async def test_a_claim_whose_answer_was_lost_is_handed_back_and_claimed_again(db: Database) -> None:
    moody = Moody(db)
    moody.after = OutcomeUnknown("lost")
    job_id = await enqueue(db)
    began = Blocked()
    async with working(moody, [kind("k", began)], ttl=NEVER):
        await eventually(in_state(db, job_id, "running"))
        assert began.began == []  # nobody here knows of it
        moody.after = None
        await eventually(lambda: began.began)
        began.go.set()
    assert began.began[0].claim.attempt == 1  # the unheard claim cost nothing
    assert await history(db) == {job_id: "done"}


async def test_jobs_in_our_hands_are_no_strays(db: Database) -> None:
    moody, blocked = Moody(db), Blocked()
    job_id = await enqueue(db)
    async with working(moody, [kind("k", blocked)], ttl=NEVER):
        await eventually(lambda: blocked.began)
        moody.after, tried = OutcomeUnknown("lost"), moody.tried
        await eventually(lambda: moody.tried > tried)
        moody.after, tried = None, moody.tried
        await eventually(lambda: moody.tried > tried + 1)
        assert (await row(db, job_id))["state"] == "running"
        blocked.go.set()
    assert await history(db) == {job_id: "done"}


async def test_a_job_that_silences_its_worker_three_times_is_quarantined_and_harms_no_other(db: Database) -> None:
    job_id, other = await enqueue(db, "poison"), Blocked()
    for n in range(3):
        [_] = await claim(db, holder=f"victim-{n}")
        await update(db, "UPDATE jobs SET lease_until = now_us() - 1")
        if n == 2:
            await enqueue(db, "harmless")
        async with working(db, [kind("other", other)], poll=timedelta(seconds=0.02)):
            await eventually(in_state(db, job_id, "dead" if n == 2 else "ready"))
    async with working(db, [kind("k", done)]) as worker:
        await eventually(lambda: worker.watch.attempts("done") == 1)
    job = await row(db, job_id)
    assert (job["state"], job["reason"], job["crashes"]) == ("dead", "POISON", 3)


# ── the database's clock, and its timeline ──


def test_a_database_clock_that_jumps_pauses_claiming_for_one_lease_time_and_is_said() -> None:
    ran_at: list[float] = []

    async def story(stage: Stage) -> Watch:
        a = stage_node(stage, "a")

        async def handler(work: Work) -> Outcome:
            ran_at.append(stage.loop.time())
            return Done()

        ten = timedelta(seconds=10)
        async with working(a.store, [kind("k", handler)], clock=a.clock, poll=ten) as worker:
            await asyncio.sleep(100)
            stage.truth.offset = timedelta(hours=2)
            await asyncio.sleep(10)  # it looks at the clock at every poll
            stage.truth.transact(lambda tx: jobs.enqueue(tx, spec("s")))
            a.store.wake.fire()
            await asyncio.sleep(60)
        return worker.watch

    watch = on_stage(story)
    assert [round(line["seconds"] / 60) for line in watch.log.told("clock.jumped")] == [120]
    assert len(ran_at) == 1
    assert 130 < ran_at[0] < 152  # a lease time after the jump was seen, and a poll


def test_a_replica_whose_own_clock_is_wrong_goes_on_working_and_says_so() -> None:
    async def story(stage: Stage) -> Watch:
        a = stage_node(stage, "a")
        a.node.wall_offset = timedelta(hours=-1)
        stage.truth.transact(lambda tx: jobs.enqueue(tx, spec("s")))
        async with working(a.store, [kind("k", done)], clock=a.clock) as worker:
            await asyncio.sleep(5)
        return worker.watch

    watch = on_stage(story)
    assert watch.attempts("done") == 1
    assert watch.metric("clock_skew_seconds") == pytest.approx(-3600, abs=1)
    assert watch.log.told("clock.skewed")


def test_a_small_step_of_the_clock_is_no_jump() -> None:
    async def story(stage: Stage) -> Watch:
        a = stage_node(stage, "a")
        async with working(a.store, [kind("k", done)], clock=a.clock, poll=timedelta(seconds=5)) as worker:
            await asyncio.sleep(60)
            stage.truth.offset = CLOCK_JUMP - timedelta(seconds=1)
            await asyncio.sleep(60)
        return worker.watch

    assert on_stage(story).log.told("clock.jumped") == []


class Later:
    """An engine as it is after a promotion: on a later timeline."""

    def __init__(self, engine: Engine, by: int = 1) -> None:
        self._engine = engine
        self._by = by

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def connect(self, *, write: bool, deadline: float) -> EngineSession:
        session = self._engine.connect(write=write, deadline=deadline)
        session.epoch += self._by
        return session


@asynccontextmanager
async def ready(engine: Engine) -> AsyncIterator[Database]:
    async with opened(engine) as db:
        yield await migrated(db)


async def test_after_a_failover_work_under_way_is_taken_back_at_once_and_marked_for_a_second_look(
    make_engine: Callable[[], Engine],
) -> None:
    lost, checked = Blocked(), Blocked()
    async with ready(make_engine()) as db:
        job_id = await enqueue(db)
        async with working(db, [kind("k", lost)], holder="a", ttl=NEVER) as a:
            await eventually(lambda: lost.began)
            assert lost.began[0].claim.recheck is False
            a.task.cancel()  # killed, as far as the database can see
            await asyncio.wait({a.task})
    async with ready(Later(make_engine())) as db:
        async with working(db, [kind("k", checked)], holder="b", ttl=NEVER) as b:
            await eventually(lambda: checked.began)
            checked.go.set()
        assert checked.began[0].claim.recheck is True
        assert checked.began[0].claim.fence > lost.began[0].claim.fence + 2**31
        assert len(b.watch.log.told("store.failover")) == 1
        assert ("system", "store_failover", "store") in await audits(db)
        assert await history(db) == {job_id: "done"}
        with pytest.raises(LeaseLost):
            await db.write(lambda tx: jobs.settle(tx, lost.began[0].claim, Again()))


async def test_a_server_behind_the_newest_timeline_is_not_worked_on(make_engine: Callable[[], Engine]) -> None:
    async with ready(Later(make_engine(), by=5)) as db, working(db, [kind("k", done)]):
        await eventually(lambda: _epoch(db))
    async with ready(make_engine()) as db:
        job_id = await enqueue(db)
        async with working(db, [kind("k", done)]) as worker:
            await eventually(lambda: worker.watch.log.told("store.unavailable"))
            assert "timeline" in worker.watch.log.told("store.unavailable")[0]["error"]
            assert (await row(db, job_id))["state"] == "ready"


async def _epoch(db: Database) -> int:
    return await db.read(lambda tx: int(tx.rows("SELECT epoch FROM store_epoch")[0]["epoch"]))


# ── stopping ──


async def test_a_stop_hands_back_interruptible_work_at_once_and_waits_for_the_other(db: Database) -> None:
    background, important = Blocked(), Blocked()
    first = await enqueue(db, kind="background")
    second = await enqueue(db, kind="important")
    kinds = [kind("background", background, interruptible=True), kind("important", important)]
    async with working(db, kinds) as worker:
        await eventually(lambda: background.began and important.began)
        worker.stop.set()
        await eventually(in_state(db, first, "ready"))
        job = await row(db, first)
        assert (job["attempts"], job["reason"], job["holder"]) == (0, "RELEASED", None)
        assert background.ended == ["cancelled"]
        assert important.ended == []  # it is still waited for
        important.go.set()
    assert important.ended == ["done"]
    assert await history(db) == {second: "done"}
    assert await db.read(cluster.all_replicas) == []


async def test_work_that_does_not_end_in_the_drain_time_is_handed_back(db: Database) -> None:
    blocked, job_id = Blocked(), await enqueue(db)
    async with working(db, [kind("k", blocked)], drain=timedelta(seconds=0.1)) as worker:
        await eventually(lambda: blocked.began)
        await worker.drained()
    job = await row(db, job_id)
    assert (job["state"], job["attempts"], job["reason"], job["crashes"]) == ("ready", 0, "RELEASED", 0)
    assert worker.watch.log.told("worker.drained") == [{"handed_back": 1}]


async def test_a_handler_that_ignores_its_cancellation_cannot_hold_up_a_stop(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engine.worker.CLEAN_UP_FOR", 0.1)
    go, began = asyncio.Event(), asyncio.Event()

    async def stubborn(work: Work) -> Outcome:
        began.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        return Done()

    job_id = await enqueue(db)
    async with working(db, [kind("k", stubborn)], drain=timedelta(0)) as worker:
        await began.wait()
        await worker.drained()
        assert (await row(db, job_id))["state"] == "ready"
        go.set()
        await eventually(lambda: job_id not in {task.get_name() for task in asyncio.all_tasks()})
    assert (await row(db, job_id))["state"] == "ready"  # its late answer changed nothing


async def test_nothing_is_claimed_after_the_stop(db: Database) -> None:
    blocked = Blocked()
    await enqueue(db, "first")
    async with working(db, [kind("k", blocked)]) as worker:
        await eventually(lambda: blocked.began)
        worker.stop.set()
        await eventually(lambda: worker.worker.handover.taker is None)  # a claim that was on its way has ended
        late = await enqueue(db, "late")
        blocked.go.set()
        await worker.task
        assert (await row(db, late))["attempts"] == 0


async def test_a_stop_with_the_store_away_ends_and_leaves_no_task_behind(db: Database) -> None:
    moody, before = Moody(db), asyncio.all_tasks()
    await enqueue(db)
    blocked = Blocked()
    async with working(moody, [kind("k", blocked)], drain=timedelta(seconds=0.2)) as worker:
        await eventually(lambda: blocked.began)
        moody.before = StoreUnavailable("down")
        blocked.go.set()  # its answer cannot be written
        await worker.drained()
    assert [line["error"] for line in worker.watch.log.told("worker.not_drained")] == ["down"]
    assert asyncio.all_tasks() - before == set()


async def test_all_that_a_stop_waits_for_shares_one_deadline_while_the_store_hangs(db: Database) -> None:
    """One job's answer is being written, another is at work; neither write, nor the farewell, ever comes back."""
    moody, blocked = Moody(db), Blocked()
    await enqueue(db, "works")
    await enqueue(db, "settles", kind="s")
    answered = asyncio.Event()

    async def handler(work: Work) -> Outcome:
        moody.hangs = asyncio.Event()
        answered.set()
        return Done()

    kinds = [kind("k", blocked), kind("s", handler)]
    async with working(moody, kinds, drain=timedelta(seconds=0.4), leave=timedelta(seconds=0.2)) as worker:
        await eventually(lambda: blocked.began)
        await answered.wait()
        try:
            async with asyncio.timeout(PATIENCE):
                await worker.drained()
        finally:
            moody.hangs.set()  # type: ignore[union-attr]
    assert [line["error"] for line in worker.watch.log.told("worker.not_drained")] == ["there was no time left for it"]


async def test_an_answer_that_is_being_written_is_waited_for(db: Database) -> None:
    moody, job_id = Moody(db), await enqueue(db)
    answered = asyncio.Event()

    async def handler(work: Work) -> Outcome:
        moody.hangs = asyncio.Event()
        answered.set()
        return Done()

    async with working(moody, [kind("k", handler, interruptible=True)]) as worker:
        await answered.wait()
        await asyncio.sleep(0)
        worker.stop.set()
        await asyncio.sleep(0.05)
        assert moody.hangs is not None
        moody.hangs.set()
        moody.hangs = None
        await worker.task
    assert await history(db) == {job_id: "done"}


async def test_a_worker_that_is_cancelled_takes_its_handlers_with_it(db: Database) -> None:
    blocked = Blocked()
    await enqueue(db)
    async with working(db, [kind("k", blocked)]) as worker:
        await eventually(lambda: blocked.began)
        worker.task.cancel()
        await asyncio.wait({worker.task})
        assert blocked.ended == ["cancelled"]


async def test_a_replica_is_listed_while_it_lives(db: Database) -> None:
    async with working(db, [kind("k", done)], holder="me"):

        async def listed() -> bool:
            return [replica.holder for replica in await db.read(cluster.all_replicas)] == ["me"]

        await eventually(listed)
    assert await db.read(cluster.all_replicas) == []
