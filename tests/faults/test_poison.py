"""A job that kills its worker, every time: after three deaths it is put aside, and everything else gets done."""

from tests.support.ca_server import Ca
from tests.support.grounds import Ground, look
from tests.support.processes import Child
from tests.support.reaper import until

from holdfast.core.work.job import Job, JobState
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


def die_of_it(place: Ground, ca: Ca, name: str) -> None:
    """One life and its end; the next may begin when the lease is over."""
    with Child(place, ca.base, place.folder / name, *WISHES) as child:
        assert child.wait() == -9
    place.let_leases_expire()


def survive_it(place: Ground, ca: Ca) -> None:
    with Child(place, ca.base, place.folder / "survivor", *WISHES) as child:
        until(lambda: look(place, issued) == set(OTHERS), "the others to be issued")
        assert child.exit_code is None
        child.signal(15)
        assert child.wait() == 0


def test_a_job_that_kills_its_worker_three_times_is_put_aside_and_the_others_are_done(place: Ground, ca: Ca) -> None:
    for name in ("first", "second", "third"):
        die_of_it(place, ca, name)
    survive_it(place, ca)
    job = look(place, the_poison)
    assert (job.state, job.reason, job.crashes) == (JobState.DEAD, "POISON", 3)
    assert "went silent (3 in a row)" in str(job.last_error)
    assert look(place, audited) == ["errand_asked", "job_taken_back", "job_taken_back", "job_quarantined"]
    assert look(place, journal.verify).ok


def test_slow_work_beside_a_poisoned_job_is_not_taken_for_poison_too(place: Ground, ca: Ca) -> None:
    for name in OTHERS:
        ca.slow[name] = 0.5  # never done before the poison strikes
    for name in ("first", "second", "third"):
        die_of_it(place, ca, name)
    survive_it(place, ca)
    assert look(place, the_poison).reason == "POISON"
