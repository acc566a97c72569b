"""The loop: when a duty runs, what happens when it does not end, and how it stops. In virtual time, so exactly."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from tests.support.engine import START, LoopClock, Middle, Watch, virtually

from holdfast.engine.loop import HUNG_AT_MOST, Loop, always, patience_for, wait_for
from holdfast.errors import StoreUnavailable
from holdfast.ports import Random

PERIOD = timedelta(seconds=60)
DRAIN = timedelta(seconds=30)


class Duty:
    """A duty that notes when it ran, and takes as long as it is told."""

    def __init__(self, lasts: float = 0.0, error: Exception | None = None) -> None:
        self.began: list[float] = []
        self.ended: list[float] = []
        self.at_once = 0
        self.most_at_once = 0
        self.lasts = lasts
        self.error = error

    async def __call__(self) -> None:
        self.began.append(asyncio.get_running_loop().time())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.lasts)
            if self.error is not None:
                raise self.error
            self.ended.append(asyncio.get_running_loop().time())
        finally:
            self.at_once -= 1


def make(
    duty: Callable[[], Awaitable[object]],
    watch: Watch,
    may_tick: Callable[[], bool] = always,
    random: Random | None = None,
) -> Loop:
    return Loop(
        "sweep",
        PERIOD,
        duty,
        drain=DRAIN,
        clock=LoopClock(),
        random=random or Middle(),
        telemetry=watch.telemetry,
        may_tick=may_tick,
    )


async def run_for(loop: Loop, seconds: float) -> float:
    """Let the loop run so long, then stop it; the answer is how long it took to stop."""
    stop = asyncio.Event()
    running = asyncio.create_task(loop.run_every(stop))
    await asyncio.sleep(seconds)
    stop.set()
    asked_at = asyncio.get_running_loop().time()
    await running
    return asyncio.get_running_loop().time() - asked_at


def test_a_duty_runs_at_once_and_then_every_period() -> None:
    duty, watch = Duty(), Watch()
    virtually(run_for(make(duty, watch), 150))
    assert duty.began == [0, 60, 120]
    assert watch.metric("loop_skipped_ticks_total", loop="sweep") == 0


def test_the_period_is_spread_a_little_so_that_replicas_do_not_march_in_step() -> None:
    class Low(Middle):
        def uniform(self, low: float, high: float) -> float:
            assert (low, high) == (0.9, 1.1)
            return low

    duty, watch = Duty(), Watch()
    virtually(run_for(make(duty, watch, random=Low()), 100))
    assert duty.began == [0, 54]


def test_a_duty_never_runs_over_itself_and_a_skipped_tick_is_logged_and_counted() -> None:
    duty, watch = Duty(lasts=115), Watch()
    loop = make(duty, watch)
    virtually(run_for(loop, 140))
    assert duty.most_at_once == 1
    assert duty.began == [0, 120]  # the tick at 60 found it still running
    assert loop.skipped == 1
    assert watch.metric("loop_skipped_ticks_total", loop="sweep") == 1
    assert [line["skipped"] for line in watch.log.told("loop.tick_skipped")] == [1]


def test_a_failing_duty_costs_one_round_and_leaves_its_traceback() -> None:
    error = ValueError("a bug")
    duty, watch = Duty(error=error), Watch()
    virtually(run_for(make(duty, watch), 100))
    assert duty.began == [0, 60]
    assert watch.metric("loop_failures_total", loop="sweep") == 2
    first = watch.log.told("loop.failed")[0]
    assert (first["error"], first["exc_info"], first["again"]) == ("a bug", error, "in about 60 s")
    assert watch.metric("loop_last_tick_timestamp_seconds", loop="sweep") == 0


def test_a_store_that_is_away_costs_a_round_without_a_traceback() -> None:
    duty, watch = Duty(error=StoreUnavailable("down")), Watch()
    virtually(run_for(make(duty, watch), 100))
    assert duty.began == [0, 60]
    assert [line["exc_info"] for line in watch.log.told("loop.failed")] == [None, None]


def test_a_finished_tick_is_dated_for_the_metrics() -> None:
    duty, watch = Duty(lasts=5), Watch()
    virtually(run_for(make(duty, watch), 10))
    assert watch.metric("loop_last_tick_timestamp_seconds", loop="sweep") == (START.timestamp() + 5)


def test_a_hung_duty_is_cancelled_said_and_begun_again() -> None:
    duty, watch = Duty(lasts=1e9), Watch()
    virtually(run_for(make(duty, watch), HUNG_AT_MOST + 70))
    assert duty.began == [0, 120]
    assert watch.log.told("loop.failed")[0]["error"] == "did not end within 120 s"


@pytest.mark.parametrize(("period", "patience"), [(2, 20), (12, 120), (60, 120), (300, 300), (3600, 3600)])
def test_a_tick_may_take_ten_periods_two_minutes_or_one_long_period(period: float, patience: float) -> None:
    assert patience_for(period) == patience


def test_a_stop_waits_for_the_tick_under_way() -> None:
    duty, watch = Duty(lasts=20), Watch()
    took = virtually(run_for(make(duty, watch), 70))
    assert duty.ended == [20, 80]
    assert took == 10


def test_a_stop_waits_no_longer_than_the_drain_time() -> None:
    duty, watch = Duty(lasts=1000), Watch()
    took = virtually(run_for(make(duty, watch), 10))
    assert took == DRAIN.total_seconds()
    assert duty.at_once == 0
    assert duty.ended == []
    assert watch.log.told("loop.not_drained") == [{"loop": "sweep"}]


def test_a_loop_that_may_not_tick_does_not() -> None:
    duty, watch, leads = Duty(), Watch(), []
    virtually(run_for(make(duty, watch, may_tick=lambda: bool(leads)), 150))
    assert duty.began == []
    assert watch.metric("loop_skipped_ticks_total", loop="sweep") == 0  # it is another replica's, not late


def test_a_tick_can_be_asked_for_between_two_periods() -> None:
    duty, watch = Duty(), Watch()
    loop = make(duty, watch)

    async def story() -> bool:
        running = asyncio.create_task(run_for(loop, 50))
        await asyncio.sleep(30)
        started = loop.tick()
        await running
        return started

    assert virtually(story())
    assert duty.began == [0, 30]


def test_a_tick_after_the_stop_starts_nothing_that_nobody_waits_for() -> None:
    duty, watch = Duty(), Watch()
    loop = make(duty, watch)

    async def story() -> bool:
        await run_for(loop, 10)
        return loop.tick()

    assert virtually(story()) is False
    assert duty.began == [0]


def test_waiting_for_an_event_says_whether_it_came() -> None:
    async def story() -> tuple[bool, bool, float]:
        event = asyncio.Event()
        late = await wait_for(event, 5)
        event.set()
        return late, await wait_for(event, 5), asyncio.get_running_loop().time()

    assert virtually(story()) == (False, True, 5.0)
