"""What follows from a test of a challenge: values in, values out."""

from datetime import timedelta

import pytest

from holdfast.core.backoff import VALIDATION
from holdfast.core.own_ca.acme import Disproved, Proved, TryAgain, decide_validation
from holdfast.core.own_ca.problem import AcmeError

SEEN = {"address": "192.0.2.1"}
PROBLEM = AcmeError.unauthorized("The file holds something else.").problem
NOTED = {**SEEN, "problem": PROBLEM.type, "error": PROBLEM.detail}


def test_a_challenge_that_is_met_is_proved_with_all_that_was_seen() -> None:
    assert decide_validation((NOTED,), SEEN, None, retryable=False, most=5) == Proved((NOTED, SEEN))
    assert decide_validation((NOTED,) * 9, SEEN, None, retryable=False, most=5) == Proved(((NOTED,) * 9) + (SEEN,))


def test_what_cannot_pass_disproves_at_once() -> None:
    assert decide_validation((), SEEN, PROBLEM, retryable=False, most=5) == Disproved((NOTED,), PROBLEM)


@pytest.mark.parametrize(("tries", "seconds"), [(0, 2), (1, 5), (2, 12.5), (3, 15)])
def test_what_may_pass_is_tested_again_ever_later(tries: int, seconds: float) -> None:
    step = decide_validation((NOTED,) * tries, SEEN, PROBLEM, retryable=True, most=5)
    assert step == TryAgain((NOTED,) * (tries + 1), timedelta(seconds=seconds))
    assert VALIDATION.jitter == 0  # a client may be told when


@pytest.mark.parametrize("most", [1, 5])
def test_the_last_test_decides(most: int) -> None:
    step = decide_validation((NOTED,) * (most - 1), SEEN, PROBLEM, retryable=True, most=most)
    assert step == Disproved((NOTED,) * most, PROBLEM)
