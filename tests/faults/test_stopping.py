"""A busy replica is told to stop: work that ends soon is finished, work that does not is handed back."""

import signal

import pytest
from tests.kill.auditor import Promise, problems
from tests.support.ca_server import Ca
from tests.support.grounds import Ground, look
from tests.support.processes import Child
from tests.support.reaper import until

from holdfast.core.work.job import Job, JobState
from holdfast.store.tx import Tx
from holdfast.store.work import cluster, jobs

LASTING = "--ttl=60"  # nobody here is to lose a lease because the machine is slow


def the_job(tx: Tx) -> Job:
    job = jobs.get(tx, "job_e1")
    assert job is not None
    return job


def must_have_left_in_good_order(place: Ground) -> None:
    assert look(place, cluster.held_leases) == []
    assert look(place, cluster.all_replicas) == []
    assert look(place, lambda tx: tx.rows("SELECT id FROM jobs WHERE state = 'running'")) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_work_that_ends_soon_is_finished_and_written_down(place: Ground, ca: Ca, number: signal.Signals) -> None:
    ca.slow["e1"] = 1.0
    with Child(place, ca.base, place.folder / "a", "--ask=e1", LASTING, "--drain=600") as child:
        until(lambda: ca.requests == 1, "the CA to be asked")
        child.signal(number)
        assert child.wait() == 0
    must_have_left_in_good_order(place)
    job = look(place, the_job)
    assert (job.state, job.reason, job.attempts) == (JobState.READY, "CA_STILL_PENDING", 0)
    with Child(place, ca.base, place.folder / "b", "--leave") as successor:
        assert successor.wait() == 0
    assert problems(place, ca, Promise(errands=("e1",))) == []


def test_work_that_does_not_end_is_handed_back_at_no_cost(place: Ground, ca: Ca) -> None:
    ca.hang()
    with Child(place, ca.base, place.folder / "a", "--ask=e1", LASTING, "--drain=1") as child:
        until(lambda: ca.held == 1, "the CA to be asked")
        child.signal(signal.SIGTERM)
        assert child.wait() == 0  # while the CA still says nothing
    must_have_left_in_good_order(place)
    job = look(place, the_job)
    assert (job.state, job.reason, job.attempts, job.crashes) == (JobState.READY, "RELEASED", 0, 0)
    ca.release()
    with Child(place, ca.base, place.folder / "b", "--leave") as successor:
        assert successor.wait() == 0
    assert problems(place, ca, Promise(errands=("e1",), kills=1)) == []  # the order under way may be placed again


def test_fifty_jobs_under_way_are_all_accounted_for(place: Ground, ca: Ca) -> None:
    names = tuple(f"e{number}" for number in range(1, 51))
    ca.hang()
    ask = f"--ask={','.join(names)}"
    with Child(place, ca.base, place.folder / "a", ask, LASTING, "--burst=1000", "--drain=1") as child:
        until(lambda: ca.held == 8, "every slot to be used")
        child.signal(signal.SIGTERM)
        assert child.wait() == 0
    must_have_left_in_good_order(place)
    assert look(place, jobs.counts) == {("errand", "ready"): 50}
    ca.release()
    with Child(place, ca.base, place.folder / "b", "--leave", "--burst=1000", "--poll=0.1") as successor:
        assert successor.wait() == 0
    assert problems(place, ca, Promise(errands=names, kills=1)) == []
