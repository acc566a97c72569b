"""Another replica goes on: after SIGKILL when the lease is over, after SIGTERM at once; a frozen one writes nothing."""

import signal

import pytest
from tests.kill import takeover
from tests.kill.auditor import Promise, problems
from tests.support.ca_server import Ca
from tests.support.child import Strike
from tests.support.grounds import Ground
from tests.support.processes import Child

TTL = 3.0
NEVER = 3600.0


def test_after_sigkill_the_successor_has_the_job_when_the_lease_is_over(place: Ground, ca: Ca) -> None:
    """How soon after it is measured by `make kill`."""
    assert takeover.after_sigkill(place, ca, TTL) > TTL / 2


def test_after_sigterm_the_other_replica_has_the_job_before_any_lease_or_poll_is_over(shared: Ground, ca: Ca) -> None:
    takeover.after_sigterm(shared, ca, ttl=NEVER, poll=NEVER)


def test_after_sigterm_another_replica_leads_before_the_lease_or_any_look_at_it_is_over(shared: Ground, ca: Ca) -> None:
    takeover.lease_after(shared, ca, NEVER, signal.SIGTERM)


@pytest.mark.parametrize("strike", takeover.FREEZES, ids=str)
def test_a_replica_that_was_frozen_for_three_lease_times_writes_nothing(shared: Ground, ca: Ca, strike: Strike) -> None:
    assert takeover.zombie_writes(shared, ca, 2.0, strike, "busy") == 0


def test_a_replica_frozen_inside_a_transaction_does_not_hold_up_the_others(shared: Ground, ca: Ca) -> None:
    """It holds locks, the journal's among them: the server ends a transaction whose client says nothing."""
    wishes = ("--ttl=60", "--deadline=3", "--poll=0.2")
    with Child(shared, ca.base, shared.folder / "before", "--leave", *wishes) as before:
        assert before.wait() == 0  # the schema and the keys are there: the first commits to come ask for errands
    strike = Strike("stop", "store.before-commit", 4)
    with Child(shared, ca.base, shared.folder / "frozen", "--ask=e1,e2", *wishes, strike=strike) as frozen:
        frozen.wait_stopped()
        with Child(shared, ca.base, shared.folder / "other", "--ask=e1,e2,e3", "--leave", *wishes) as other:
            assert other.wait() == 0  # while the first is still frozen
        frozen.signal(signal.SIGCONT)
        frozen.wait_for("begun")
        frozen.signal(signal.SIGTERM)
        assert frozen.wait() == 0
    assert problems(shared, ca, Promise(errands=("e1", "e2", "e3"))) == []
