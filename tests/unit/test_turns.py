"""Turns at a budget are exchanged by risk, among those that wait for the same, and no turn is made or lost."""

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.work.cluster import Turn, dealt

T0 = datetime(2027, 1, 1, tzinfo=UTC)


SOON = T0 + timedelta(days=7)
LATER = T0 + timedelta(days=100)


def turn(job: str, minute: int, days_left: int, line: tuple[int, str] = (1, "ca/a/orders"), owner: str = "") -> Turn:
    ends = T0 + timedelta(days=days_left)
    return Turn(job=job, line=line, at=T0 + timedelta(minutes=minute), ends=ends, owner=owner)


def test_whoever_has_the_least_time_left_gets_the_first_turn() -> None:
    changes = dealt([turn("long", 1, 60), turn("middle", 2, 30), turn("short", 3, 1)], SOON)
    assert [(each.job, (at - T0) // timedelta(minutes=1)) for each, at in changes] == [("short", 1), ("long", 3)]


def test_those_that_wait_for_something_else_are_left_alone() -> None:
    assert (
        dealt([turn("a", 1, 60), turn("b", 2, 1, (1, "ca/b/orders")), turn("c", 3, 1, (0, "ca/a/orders"))], SOON) == []
    )


def test_what_is_in_order_stays_as_it_is() -> None:
    assert dealt([turn("a", 1, 5), turn("b", 2, 5), turn("c", 9, 6)], SOON) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 2)), max_size=30))
def test_turns_are_exchanged_and_never_made(drawn: list[tuple[int, int, int]]) -> None:
    turns = [turn(f"job_{n:02d}", at, left, (line, "")) for n, (at, left, line) in enumerate(drawn)]
    after = {each.job: each.at for each in turns} | {each.job: at for each, at in dealt(turns, LATER)}
    for line in {each.line for each in turns}:
        mine = [each for each in turns if each.line == line]
        assert sorted(each.at for each in mine) == sorted(after[each.job] for each in mine)
        by_turn = sorted(mine, key=lambda each: (after[each.job], each.ends))
        assert [each.ends for each in by_turn] == sorted(each.ends for each in mine)


def test_owners_that_are_not_at_risk_get_turns_one_after_the_other() -> None:
    many = [turn(f"a{n}", n, 60, owner="a") for n in range(5)]
    other = Turn(job="b0", line=many[0].line, at=T0 + timedelta(hours=6), ends=None, owner="b")
    after = {each.job: at for each, at in dealt([*many, other], SOON)}
    assert after["b0"] <= T0 + timedelta(minutes=1)
    assert after["a4"] == T0 + timedelta(hours=6)


def test_what_expires_soon_goes_before_any_share() -> None:
    pressing = [turn(f"a{n}", n, 2, owner="a") for n in range(5)]
    assert dealt([*pressing, turn("b0", 9, 60, owner="b")], SOON) == []
