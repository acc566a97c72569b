"""The machine of a job, and the verdict on a failed attempt."""

from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.backoff import JOB, Ladder
from holdfast.core.work.job import (
    MOVES,
    Claim,
    Done,
    JobEvent,
    JobFailed,
    JobRetry,
    JobState,
    Priority,
    Spec,
    also,
    move,
    verdict,
)
from holdfast.errors import IllegalMove

EVENTS = get_args(JobEvent)
CLAIM = Claim(
    id="job_1", kind="k", subject="s", payload={}, attempt=1, max_attempts=3, fence=1,
    priority=Priority.NORMAL, budgets=(), recheck=False,
)  # fmt: skip
FAILURE = JobFailed(error="it broke", reason="BROKEN")
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(("state", "event"), MOVES)
def test_a_move_of_the_table_is_made(state: JobState, event: JobEvent) -> None:
    assert move(state, event) is MOVES[state, event]


@pytest.mark.parametrize(("state", "event"), [pair for pair in product(JobState, EVENTS) if pair not in MOVES])
def test_every_other_move_is_refused(state: JobState, event: JobEvent) -> None:
    with pytest.raises(IllegalMove, match=f"a job that is {state} cannot be '{event}'"):
        move(state, event)


def test_every_event_moves_something_and_every_state_can_be_reached() -> None:
    assert {event for _, event in MOVES} == set(EVENTS)
    assert {state for state, _ in MOVES} | set(MOVES.values()) == set(JobState)


def test_nothing_leads_out_of_what_is_over() -> None:
    assert {state for state, _ in MOVES}.isdisjoint({JobState.DONE, JobState.CANCELLED})


def test_only_a_person_brings_the_dead_back() -> None:
    assert {event for state, event in MOVES if state is JobState.DEAD} == {"requeued", "cancelled"}


def test_running_work_can_be_neither_cancelled_nor_timed_out() -> None:
    """A worker may be at it: it must end by itself, or fall silent."""
    assert {(JobState.RUNNING, "cancelled"), (JobState.RUNNING, "expired")}.isdisjoint(MOVES)


@pytest.mark.parametrize("state", [JobState.READY, JobState.RUNNING, JobState.FAILED, JobState.DEAD])
def test_from_every_state_of_the_queue_there_is_a_way_to_the_end(state: JobState) -> None:
    seen, grown = {state}, True
    while grown:
        reached = {to for (origin, _), to in MOVES.items() if origin in seen}
        grown = not reached <= seen
        seen |= reached
    assert JobState.DONE in seen


@pytest.mark.parametrize("wrong", [{"max_attempts": 0}, {"budgets": ("a\nb",)}, {"budgets": ("",)}])
def test_a_job_cannot_be_asked_for_wrongly(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"max_attempts of k must be at least 1|one non-empty line"):
        Spec(id="job_1", kind="k", subject="s", **wrong)


def test_urgent_work_sorts_before_the_rest() -> None:
    assert sorted(Priority) == [Priority.URGENT, Priority.NORMAL, Priority.BACKGROUND]


# ── the verdict ──


def test_while_attempts_are_left_a_failure_waits_as_its_ladder_says() -> None:
    ladder = Ladder(first=10 * SECOND, factor=3, cap=timedelta(hours=1))
    assert verdict(CLAIM, FAILURE, ladder) == JobRetry(event="failed", wait=10 * SECOND)
    assert verdict(replace(CLAIM, attempt=2), FAILURE, ladder) == JobRetry(event="failed", wait=30 * SECOND)


@pytest.mark.parametrize("attempt", [3, 4])
def test_the_last_attempt_gives_up(attempt: int) -> None:
    assert verdict(replace(CLAIM, attempt=attempt), FAILURE).event == "gave up"


def test_a_final_failure_gives_up_at_once() -> None:
    assert verdict(CLAIM, replace(FAILURE, final=True, wait=timedelta(days=1))) == JobRetry(
        event="gave up", wait=timedelta(0)
    )


def test_a_remotes_own_wish_lengthens_the_wait_and_never_shortens_it() -> None:
    own = verdict(CLAIM, FAILURE).wait
    assert verdict(CLAIM, replace(FAILURE, wait=timedelta(hours=5))).wait == timedelta(hours=5)
    assert verdict(CLAIM, replace(FAILURE, wait=SECOND)).wait == own
    assert verdict(CLAIM, replace(FAILURE, wait=timedelta(seconds=-9))).wait == own


@given(st.text(min_size=1), st.integers(1, 10_000))
def test_the_wait_is_the_same_wherever_it_is_asked_for(job_id: str, attempt: int) -> None:
    claim = replace(CLAIM, id=job_id, attempt=attempt, max_attempts=attempt + 1)
    wait = verdict(claim, FAILURE).wait
    assert wait == verdict(claim, FAILURE).wait
    assert abs(wait / JOB.rung(attempt) - 1) <= JOB.jitter + 1e-9


def test_another_write_comes_after_those_that_an_outcome_has() -> None:
    written: list[str] = []
    outcome = also(also(Done(), lambda _: written.append("first")), lambda _: written.append("second"))
    assert outcome.write is not None
    outcome.write(None)
    assert written == ["first", "second"]
    assert also(FAILURE, written.append).error == "it broke"
