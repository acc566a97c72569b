"""What a remote allows is never exceeded, urgent work has its reserve, and each waiting job its own turn."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.issuers.budget import (
    Budget,
    BudgetWait,
    Limit,
    Taken,
    TakenAll,
    WaitAll,
    give_back,
    hold,
    remaining,
    take,
    take_all,
)

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)
ORDERS = Limit(burst=10, every=36 * SECOND)  # a reserve of two

# Requests as they arrive: the time since the one before, in sevenths of `every` so that they fall on the
# edges of refills as well as between them, and whether it is urgent.
Script: TypeAlias = list[tuple[int, bool]]

quick = settings(max_examples=60, deadline=None)  # a loaded machine is not a failing test
limits = st.builds(
    Limit,
    burst=st.integers(min_value=1, max_value=12),
    every=st.sampled_from([timedelta(microseconds=7), timedelta(milliseconds=50), 36 * SECOND, 34 * HOUR]),
    reserve=st.sampled_from([0.0, 0.07, 0.2, 0.5, 0.99]),
)
scripts = st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 6, 7, 8, 30]), st.booleans()), max_size=40)


def fresh(limit: Limit = ORDERS, key: str = "le/account") -> Budget:
    return Budget(key=key, limit=limit, tat=NOW)


def taken(budget: Budget, now: datetime = NOW, *, urgent: bool = False) -> Budget:
    answer = take(budget, now, urgent=urgent, waiting=False)
    assert isinstance(answer, Taken)
    return answer.budget


def denied(budget: Budget, now: datetime = NOW, *, urgent: bool = False, waiting: bool = False) -> BudgetWait:
    answer = take(budget, now, urgent=urgent, waiting=waiting)
    assert isinstance(answer, BudgetWait)
    return answer


def drained(budget: Budget, now: datetime = NOW, *, urgent: bool = False) -> Budget:
    for _ in range(remaining(budget, now, urgent=urgent)):
        budget = taken(budget, now, urgent=urgent)
    return budget


def play(limit: Limit, script: Script) -> tuple[Budget, datetime, list[tuple[datetime, bool]]]:
    """Let these requests arrive one by one; the state and the time after them, and those let through."""
    budget, now, passed = fresh(limit), NOW, []
    for gap, urgent in script:
        now += limit.every * gap / 7
        answer = take(budget, now, urgent=urgent, waiting=False)
        budget = answer.budget
        if isinstance(answer, Taken):
            passed.append((now, urgent))
    return budget, now, passed


# ── The limit itself ──────────────────────────────────────────────────────────────────────────────────────


@quick
@given(limit=limits, script=scripts)
def test_no_stretch_of_time_sees_more_than_the_burst_and_what_was_refilled_in_it(limit: Limit, script: Script) -> None:
    _, _, passed = play(limit, script)
    times = [at for at, _ in passed]
    for i, start in enumerate(times):
        for count, end in enumerate(times[i:], start=1):
            assert count <= limit.burst + (end - start) // limit.every


@quick
@given(limit=limits, script=scripts)
def test_nobody_waits_while_the_remote_would_allow_it(limit: Limit, script: Script) -> None:
    # The other half of the bound: a plain token bucket lets exactly the same requests through.
    tokens, now, expected = limit.burst * limit.every, NOW, []
    for gap, urgent in script:
        elapsed = limit.every * gap / 7
        now, tokens = now + elapsed, min(limit.burst * limit.every, tokens + elapsed)
        kept_back = limit.burst - limit.depth(urgent=urgent)
        if tokens >= limit.every * (kept_back + 1):
            tokens -= limit.every
            expected.append((now, urgent))
    assert play(limit, script)[2] == expected


@quick
@given(limit=limits, script=scripts, urgent=st.booleans())
def test_remaining_is_exactly_how_many_would_be_let_through(limit: Limit, script: Script, urgent: bool) -> None:
    budget, now, _ = play(limit, script)
    denied(drained(budget, now, urgent=urgent), now, urgent=urgent)


def test_a_long_silence_earns_one_burst_and_no_more() -> None:
    assert remaining(fresh(), NOW + 365 * DAY, urgent=True) == 10


@pytest.mark.parametrize("wrong", [{"burst": 0}, {"every": timedelta(0)}, {"reserve": 1.0}, {"reserve": -0.1}])
def test_a_limit_cannot_be_built_wrong(wrong: dict[str, object]) -> None:
    right: dict[str, object] = {"burst": 5, "every": SECOND}
    with pytest.raises(ValueError, match="a limit needs"):
        Limit(**right | wrong)  # type: ignore[arg-type]


# ── The urgent reserve ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("burst", "reserve", "reserved"),
    [
        (1, 0.2, 0),
        (4, 0.2, 0),
        (5, 0.2, 1),
        (6, 0.2, 2),
        (10, 0.2, 2),
        (300, 0.2, 60),
        (100, 0.07, 7),  # not 8: the product is 7.000000000000001
        (5, 0.0, 1),
        (5, 0.99, 4),  # normal work is never shut out
    ],
)
def test_a_fifth_of_the_burst_rounded_up_is_for_urgent_work(burst: int, reserve: float, reserved: int) -> None:
    budget = fresh(Limit(burst=burst, every=SECOND, reserve=reserve))
    assert remaining(budget, NOW, urgent=True) == burst
    assert remaining(budget, NOW, urgent=False) == burst - reserved


@quick
@given(limit=limits, script=scripts)
def test_normal_work_always_leaves_the_reserve_untouched(limit: Limit, script: Script) -> None:
    budget, now, _ = play(limit, script)
    answer = take(budget, now, urgent=False, waiting=False)
    if isinstance(answer, Taken):
        reserved = limit.depth(urgent=True) - limit.depth(urgent=False)
        assert remaining(answer.budget, now, urgent=True) >= reserved


def test_urgent_work_goes_on_where_normal_work_has_to_wait() -> None:
    budget = drained(fresh())
    assert denied(budget).cause == "BUDGET"
    budget = taken(taken(budget, urgent=True), urgent=True)
    assert denied(budget, urgent=True).until == NOW + 36 * SECOND


def test_normal_work_resumes_only_after_the_reserve_is_full_again() -> None:
    assert denied(drained(fresh(), urgent=True)).until == NOW + 3 * 36 * SECOND


def test_urgent_work_does_not_queue_behind_the_turns_of_normal_work() -> None:
    budget = drained(fresh(), urgent=True)
    for _ in range(100):
        budget = denied(budget).budget
    first = denied(budget, urgent=True)
    second = denied(first.budget, urgent=True)
    assert (first.until, second.until) == (NOW + 36 * SECOND, NOW + 72 * SECOND)
    assert second.budget.tail == budget.tail


# ── Turns ─────────────────────────────────────────────────────────────────────────────────────────────────


@quick
@given(limit=limits, script=scripts, urgent=st.booleans())
def test_turns_promised_one_after_another_are_one_refill_apart(limit: Limit, script: Script, urgent: bool) -> None:
    budget, now, _ = play(limit, script)
    wait = denied(drained(budget, now, urgent=urgent), now, urgent=urgent)
    for _ in range(10):
        after = denied(wait.budget, now, urgent=urgent)
        assert after.until == wait.until + limit.every
        wait = after


@quick
@given(limit=limits, script=scripts, urgent=st.booleans())
def test_a_promised_turn_is_kept_if_nobody_went_first(limit: Limit, script: Script, urgent: bool) -> None:
    budget, now, _ = play(limit, script)
    wait = denied(drained(budget, now, urgent=urgent), now, urgent=urgent)
    assert wait.until > now
    assert isinstance(take(wait.budget, wait.until, urgent=urgent, waiting=True), Taken)


@quick
@given(limit=limits)
def test_a_whole_line_goes_in_order_each_job_at_the_time_it_was_told(limit: Limit) -> None:
    budget, turns = drained(fresh(limit)), []
    for _ in range(50):
        wait = denied(budget)
        budget = wait.budget
        turns.append(wait.until)
    for turn in turns:
        answer = take(budget, turn, urgent=False, waiting=True)
        assert isinstance(answer, Taken)
        budget = answer.budget


def test_jobs_that_lost_their_turns_line_up_at_the_front_and_not_all_for_one_instant() -> None:
    budget = drained(fresh())
    for _ in range(100):
        budget = denied(budget).budget
    robbed_at = NOW + 36 * SECOND
    budget = taken(budget, robbed_at)  # a newcomer was quicker
    loser = denied(budget, robbed_at, waiting=True)
    assert loser.until == robbed_at + 36 * SECOND
    assert loser.budget.tail == budget.tail
    next_loser = denied(loser.budget, robbed_at, waiting=True)
    assert next_loser.until == loser.until + 36 * SECOND


def test_an_old_tail_delays_nobody() -> None:
    budget = denied(drained(fresh())).budget
    later = NOW + DAY
    assert denied(drained(budget, later), later).until == later + 36 * SECOND


def test_a_denial_costs_nothing() -> None:
    budget = drained(fresh())
    assert replace(denied(budget).budget, tail=None) == budget


# ── The server's word ─────────────────────────────────────────────────────────────────────────────────────


@quick
@given(limit=limits, script=scripts, urgent=st.booleans(), waiting=st.booleans(), parts=st.integers(1, 10**6))
def test_before_the_servers_time_nobody_goes_however_urgent(
    limit: Limit, script: Script, urgent: bool, waiting: bool, parts: int
) -> None:
    budget, now, _ = play(limit, script)
    until = now + limit.every * 20
    held = hold(budget, until)
    early = until - limit.every * 20 / parts - timedelta(microseconds=1)
    assert remaining(held, early, urgent=urgent) == 0
    assert denied(held, early, urgent=urgent, waiting=waiting).until >= until


def test_a_held_job_is_told_the_servers_time_and_the_next_one_a_turn_after_it() -> None:
    held = hold(fresh(), NOW + HOUR)
    first = denied(held)
    assert (first.until, first.cause) == (NOW + HOUR, "NOT_BEFORE")
    assert denied(first.budget).until == NOW + HOUR + 36 * SECOND
    assert isinstance(take(first.budget, first.until, urgent=False, waiting=True), Taken)


def test_the_cause_is_our_own_count_when_that_takes_longer_than_the_servers_word() -> None:
    wait = denied(hold(drained(fresh()), NOW + SECOND))
    assert (wait.until, wait.cause) == (NOW + 36 * SECOND, "BUDGET")


def test_a_hold_only_ever_moves_later() -> None:
    held = hold(hold(fresh(), NOW + HOUR), NOW + SECOND)
    assert held.not_before == NOW + HOUR
    assert hold(held, NOW + DAY).not_before == NOW + DAY


# ── Clocks and limits that change ─────────────────────────────────────────────────────────────────────────


def test_a_clock_set_back_costs_one_burst_and_not_the_whole_jump() -> None:
    ahead = drained(fresh(), NOW + 365 * DAY, urgent=True)
    wait = denied(ahead, NOW, waiting=True)
    assert wait.until == NOW + 3 * 36 * SECOND
    assert isinstance(take(wait.budget, wait.until, urgent=False, waiting=True), Taken)


def test_a_raised_limit_is_felt_at_once() -> None:
    scarce = drained(fresh(Limit(burst=50, every=202 * 60 * SECOND)), urgent=True)
    raised = replace(scarce, limit=Limit(burst=50, every=SECOND))
    assert denied(raised, waiting=True).until == NOW + 11 * SECOND


def test_transactions_that_read_the_clock_out_of_order_are_forgiven_nothing() -> None:
    limit = Limit(burst=4, every=SECOND)
    budget = drained(fresh(limit))
    assert denied(budget, NOW - 30 * SECOND, waiting=True).budget.tat == budget.tat


# ── Several requests at once ──────────────────────────────────────────────────────────────────────────────


def test_several_requests_are_paid_for_together_or_not_at_all() -> None:
    budget = fresh(Limit(burst=4, every=SECOND))
    three = take(budget, NOW, urgent=True, waiting=False, count=3)
    assert isinstance(three, Taken)
    assert three.budget.tat == NOW + 3 * SECOND
    two = take(three.budget, NOW, urgent=True, waiting=False, count=2)
    assert isinstance(two, BudgetWait)
    assert two.until == NOW + SECOND, "when two of the four are free"
    assert isinstance(take(two.budget, two.until, urgent=True, waiting=True, count=2), Taken)


def test_more_than_may_ever_be_outstanding_waits_for_a_full_burst_and_not_for_ever() -> None:
    budget = taken(fresh(Limit(burst=4, every=SECOND)))
    denial = take(budget, NOW, urgent=True, waiting=False, count=9)
    assert isinstance(denial, BudgetWait)
    assert denial.until == NOW + SECOND
    nine = take(denial.budget, denial.until, urgent=True, waiting=True, count=9)
    assert isinstance(nine, Taken)
    assert nine.budget.tat == denial.until + 9 * SECOND  # whoever comes next waits for all nine
    assert denied(nine.budget, denial.until + SECOND, urgent=True).until == denial.until + 6 * SECOND


@quick
@given(limit=limits, script=scripts, unused=st.lists(st.tuples(st.integers(0, 39), st.integers(1, 5)), max_size=12))
def test_what_is_given_back_unused_lets_nobody_exceed_the_limit(
    limit: Limit, script: Script, unused: list[tuple[int, int]]
) -> None:
    """Of all that was taken some is given back, a while later; what is left is as if it alone had been taken."""
    budget, now, spent, returns = fresh(limit), NOW, list[datetime](), list[tuple[datetime, datetime]]()
    given = dict(unused)
    for n, (sevenths, urgent) in enumerate(script):
        now += limit.every * sevenths / 7
        for at, since in [each for each in returns if each[0] <= now]:
            budget = give_back(budget, limit.every, at - since)
            returns.remove((at, since))
        answer = take(budget, now, urgent=urgent, waiting=False)
        if isinstance(answer, Taken):
            budget = answer.budget
            if n in given:
                returns.append((now + limit.every * given[n] / 7, now))
            else:
                spent.append(now)
    for i, start in enumerate(spent):
        for count, end in enumerate(spent[i:], start=1):
            assert count <= limit.burst + (end - start) / limit.every + 1e-6


def test_what_is_given_back_at_once_is_as_if_it_had_never_been_taken() -> None:
    assert give_back(taken(fresh()), ORDERS.every, timedelta(0)) == fresh()
    assert give_back(taken(fresh()), ORDERS.every, HOUR) == taken(fresh())
    assert give_back(taken(fresh()), ORDERS.every, -HOUR) == fresh()


def test_the_turns_of_those_who_want_several_are_as_far_apart_as_they_take() -> None:
    budget = drained(fresh(Limit(burst=4, every=SECOND)))
    first = take(budget, NOW, urgent=False, waiting=False, count=2)
    assert isinstance(first, BudgetWait)
    second = take(first.budget, NOW, urgent=False, waiting=False, count=2)
    assert isinstance(second, BudgetWait)
    assert second.until - first.until == 2 * SECOND


# ── Several budgets at once ───────────────────────────────────────────────────────────────────────────────


def test_a_job_that_needs_several_budgets_pays_in_each() -> None:
    account, domain = fresh(), fresh(Limit(burst=50, every=HOUR), "le/example.com")
    answer = take_all((account, domain), NOW, urgent=False, waiting=False)
    assert answer == TakenAll(budgets=(taken(account), taken(domain)))


def test_one_denial_means_that_nothing_is_paid_and_only_the_denying_line_grows() -> None:
    account, domain = fresh(), drained(fresh(Limit(burst=50, every=HOUR), "le/example.com"))
    answer = take_all((account, domain), NOW, urgent=False, waiting=False)
    assert isinstance(answer, WaitAll)
    assert answer.waits == (denied(domain),)
    assert answer.longest.budget.tat == domain.tat


def test_the_latest_of_several_denials_decides() -> None:
    account = hold(fresh(), NOW + 60 * SECOND)
    domain = drained(fresh(Limit(burst=5, every=HOUR), "le/example.com"))
    for budgets in ((account, domain), (domain, account)):
        answer = take_all(budgets, NOW, urgent=False, waiting=False)
        assert isinstance(answer, WaitAll)
        assert len(answer.waits) == 2
        assert (answer.longest.until, answer.longest.cause) == (NOW + HOUR, "BUDGET")
        assert answer.longest.budget.key == "le/example.com"


@quick
@given(states=st.lists(st.tuples(limits, scripts), max_size=4), urgent=st.booleans())
def test_several_budgets_are_taken_all_or_none(states: list[tuple[Limit, Script]], urgent: bool) -> None:
    budgets = [replace(play(limit, script)[0], key=str(i)) for i, (limit, script) in enumerate(states)]
    free = all(remaining(budget, NOW, urgent=urgent) for budget in budgets)
    answer = take_all(budgets, NOW, urgent=urgent, waiting=False)
    if isinstance(answer, TakenAll):
        assert free
        assert [b.key for b in answer.budgets] == [b.key for b in budgets]
        assert all(after.tat > before.tat for before, after in zip(budgets, answer.budgets, strict=True))
    else:
        assert not free
        before = {budget.key: budget.tat for budget in budgets}
        assert all(wait.budget.tat <= before[wait.budget.key] for wait in answer.waits)


def test_the_same_budget_twice_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="twice"):
        take_all((fresh(), fresh()), NOW, urgent=False, waiting=False)
