"""SIGKILL in the middle of a send: what was owed is sent, at most once more than it was heard, under the same id.

`make kill` does it at every point of a send.
"""

from pathlib import Path

import pytest
from tests.kill.harness import Case
from tests.kill.notification_part import NotificationHarness, Receiver

HEARD = Case("http.answered", 2)  # and not written down
CASES = {
    "sqlite": {
        Case("http.asking", 1): 0,  # nobody has heard it
        HEARD: 1,
        Case("job.effect-done", 4): 1,  # likewise, after others were
        Case("job.settling", 1): 0,  # all is written down, the job is not over
    },
    "postgresql": {HEARD: 1},
}


@pytest.mark.parametrize("engine", sorted(CASES))
def test_a_kill_in_a_send_loses_nothing_and_repeats_one_message_at_most(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str
) -> None:
    cluster = request.getfixturevalue("postgres") if engine == "postgresql" else None
    template = request.getfixturevalue("template") if engine == "postgresql" else ""
    with Receiver() as receiver:
        outcomes = list(NotificationHarness(tmp_path, cluster, receiver, template).run(CASES[engine]))
    assert [each for each in outcomes if each.problems] == []
    assert [each.case for each in outcomes if not each.fired] == []
    assert {each.case: each.repeated for each in outcomes} == CASES[engine]
