"""A job that kills its worker, every time: after three to five deaths it is put aside, and all else gets done."""

from itertools import count

from tests.support.ca_server import Ca
from tests.support.grounds import Ground, look
from tests.support.processes import Child
from tests.support.reaper import until

from holdfast.core.work.job import CRASHES_IN_COMPANY, CRASHES_TO_QUARANTINE, Job, JobState
from holdfast.store import journal
from holdfast.store.tx import Tx
from holdfast.store.work import jobs

POISON = "e1"
OTHERS = ("e2", "e3", "e4")
WISHES = (f"--ask={','.join((POISON, *OTHERS))}", f"--poison={POISON}", "--poll=0.2", "--ttl=60")


def the_poison(tx: Tx) -> Job:
    job = jobs.get(tx, f"job_{POISON}")
    assert job is not None
    return job


def issued(tx: Tx) -> set[str]:
    return {row["id"] for row in tx.rows("SELECT id FROM errands WHERE state = 'issued'")}


def audited(tx: Tx) -> list[str]:
    rows = tx.rows("SELECT action FROM audit WHERE subject = :subject ORDER BY seq", subject=POISON)
    return [row["action"] for row in rows]


def settled(tx: Tx) -> bool:
    """The poison is put aside, and everything else is done."""
    job = jobs.get(tx, f"job_{POISON}")
    return job is not None and job.state is JobState.DEAD and issued(tx) == set(OTHERS)


def outlive_it(place: Ground, ca: Ca) -> int:
    """One life after the other, each begun when the leases of the last are over; how many died of it."""
    for deaths in count():
        with Child(place, ca.base, place.folder / f"life-{deaths}", *WISHES) as child:
            if deaths >= CRASHES_TO_QUARANTINE:  # it is too early for the store to be looked at in the first life
                until(lambda: child.exit_code is not None or look(place, settled), "its end, or that of the poison")
            if deaths < CRASHES_TO_QUARANTINE or child.exit_code is not None:
                assert child.wait() == -9
            else:
                child.signal(15)
                assert child.wait() == 0
                return deaths
        place.let_leases_expire()
    raise AssertionError("count() never ends")


def test_a_job_that_kills_its_worker_again_and_again_is_put_aside_and_the_others_are_done(
    place: Ground, ca: Ca
) -> None:
    deaths = outlive_it(place, ca)
    assert CRASHES_TO_QUARANTINE <= deaths <= CRASHES_IN_COMPANY
    job = look(place, the_poison)
    assert (job.state, job.reason, job.crashes) == (JobState.DEAD, "POISON", deaths)
    assert f"went silent ({deaths} in a row)" in str(job.last_error)
    taken_back = ["job_taken_back"] * (deaths - 1)
    assert look(place, audited) == ["errand_asked", *taken_back, "job_quarantined"]
    assert look(place, journal.verify).ok


def test_slow_work_beside_a_poisoned_job_is_not_taken_for_poison_too(place: Ground, ca: Ca) -> None:
    for name in OTHERS:
        ca.slow[name] = 0.5  # never done before the poison strikes
    outlive_it(place, ca)
    assert look(place, the_poison).reason == "POISON"
