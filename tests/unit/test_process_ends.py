"""What becomes of a process that has ended."""

from dataclasses import replace
from datetime import timedelta

from holdfast.core.work.processes import STEADY, Ended, GiveUp, StartAgain, after

REFUSED = Ended(number=1, code=1, served_for=None, others_served=False, failures=0)


def test_a_refusal_at_the_first_start_is_the_servers() -> None:
    assert after(REFUSED) == GiveUp(code=1)


def test_a_killed_process_is_started_again_and_so_is_one_beside_others_that_served() -> None:
    assert isinstance(after(replace(REFUSED, code=-9)), StartAgain)
    assert isinstance(after(replace(REFUSED, others_served=True)), StartAgain)


def test_waits_grow_with_failures_in_a_row_and_begin_anew_after_it_served_for_long() -> None:
    crashing = replace(REFUSED, code=-11, failures=5, served_for=timedelta(seconds=1))
    later, steady = after(crashing), after(replace(crashing, served_for=STEADY))
    assert isinstance(later, StartAgain)
    assert isinstance(steady, StartAgain)
    assert (later.failures, steady.failures) == (6, 1)
    assert later.after > timedelta(seconds=10) > steady.after
