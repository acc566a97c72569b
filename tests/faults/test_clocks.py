"""Replicas whose clocks are an hour apart, on one database: leases live by the database's clock, so nothing happens."""

import signal

from tests.kill.auditor import Promise, problems
from tests.support.ca_server import Ca
from tests.support.grounds import Ground, look
from tests.support.processes import Child
from tests.support.reaper import until

from holdfast.store.tx import Tx

HOUR = 3600.0
ERRANDS = tuple(f"e{number}" for number in range(1, 11))


def taken_back(tx: Tx) -> int:
    return len(tx.rows("SELECT seq FROM audit WHERE action IN ('job_taken_back', 'job_quarantined')"))


def at(shared: Ground, ca: Ca, name: str, offset: float, *wishes: str) -> Child:
    return Child(shared, ca.base, shared.folder / name, f"--offset={offset}", "--poll=0.2", "--burst=1000", *wishes)


def test_work_is_done_once_when_one_clock_is_an_hour_ahead_and_one_an_hour_behind(shared: Ground, ca: Ca) -> None:
    ask = f"--ask={','.join(ERRANDS)}"
    ca.hang()  # until both have some under way: neither has slots for all
    with (
        at(shared, ca, "ahead", HOUR, ask, "--leave", "--ttl=60") as ahead,
        at(shared, ca, "behind", -HOUR, ask, "--leave", "--ttl=60") as behind,
    ):
        for child in (ahead, behind):
            child.wait_for("passed", "job.claimed")
        ca.release()
        assert (ahead.wait(), behind.wait()) == (0, 0)
    assert look(shared, taken_back) == 0
    assert problems(shared, ca, Promise(errands=ERRANDS)) == []


def test_a_clock_that_is_ahead_does_not_take_work_early_from_one_that_is_behind(shared: Ground, ca: Ca) -> None:
    ca.hang()
    with at(shared, ca, "behind", -HOUR, "--ask=e1", "--ttl=9") as behind:
        until(lambda: ca.held == 1, "the CA to be asked")
        beats = len(behind.said("passed", "job.beaten"))
        with at(shared, ca, "ahead", HOUR, "--ttl=3", "--leave") as ahead:
            ahead.wait_for("passed", "job.beaten", times=3)  # it had every opportunity
            behind.wait_for("passed", "job.beaten", times=beats + 1)
            assert not ahead.said("passed", "job.claimed")
            ca.release()
            assert ahead.wait() == 0
        behind.signal(signal.SIGTERM)
        assert behind.wait() == 0
    assert look(shared, taken_back) == 0
    assert problems(shared, ca, Promise(errands=("e1",))) == []


def test_a_clock_that_is_ahead_takes_over_when_the_lease_is_over_and_not_before(shared: Ground, ca: Ca) -> None:
    ca.hang()
    with at(shared, ca, "behind", -HOUR, "--ask=e1", "--ttl=3") as behind:
        until(lambda: ca.held == 1, "the CA to be asked")
        with at(shared, ca, "ahead", HOUR, "--ttl=3", "--leave") as ahead:
            ahead.wait_for("passed", "job.beaten")
            behind.wait_for("passed", "job.beaten", times=len(behind.said("passed", "job.beaten")) + 1)
            behind.kill()
            last_beat = behind.said("passed", "job.beaten")[-1].at
            ca.release()
            claimed = ahead.wait_for("passed", "job.claimed")
            assert claimed.at - last_beat > 1  # not 3: it was reported a while after it was written
            assert ahead.wait() == 0
    assert problems(shared, ca, Promise(errands=("e1",), kills=1)) == []
