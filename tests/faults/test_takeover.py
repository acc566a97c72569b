"""Another replica goes on: after SIGKILL when the lease is over, after SIGTERM at once; a frozen one writes nothing."""

import signal
import time

import pytest
from tests.kill import takeover
from tests.kill.auditor import Promise, problems
from tests.support.ca_server import Ca
from tests.support.child import Strike
from tests.support.grounds import Ground, look
from tests.support.processes import Child
from tests.support.reaper import until

from holdfast.store.tx import Row, Tx

TTL = 3.0


def test_after_sigkill_the_successor_has_the_job_when_the_lease_is_over(place: Ground, ca: Ca) -> None:
    assert TTL / 2 < takeover.after_sigkill(place, ca, TTL) <= TTL + 5


def test_after_sigterm_the_other_replica_has_the_job_within_two_seconds(shared: Ground, ca: Ca) -> None:
    assert takeover.after_sigterm(shared, ca, TTL) <= 2


@pytest.mark.parametrize("strike", takeover.FREEZES, ids=str)
def test_a_replica_that_was_frozen_for_three_lease_times_writes_nothing(shared: Ground, ca: Ca, strike: Strike) -> None:
    assert takeover.zombie_writes(shared, ca, 2.0, strike, "busy") == 0


def idle_in_transaction(tx: Tx) -> list[Row]:
    return tx.rows(
        "SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
    )


def test_a_replica_frozen_inside_a_transaction_does_not_hold_up_the_others(shared: Ground, ca: Ca) -> None:
    """It holds locks, the journal's among them: the server ends a transaction whose client says nothing."""
    wishes = ("--ttl=3", "--deadline=3", "--poll=0.2")
    with Child(shared, ca.base, shared.folder / "before", "--leave", *wishes) as before:
        assert before.wait() == 0  # the schema and the keys are there: the first commits to come ask for errands
    strike = Strike("stop", "store.before-commit", 4)
    with Child(shared, ca.base, shared.folder / "frozen", "--ask=e1,e2", *wishes, strike=strike) as frozen:
        frozen.wait_stopped()
        until(lambda: look(shared, idle_in_transaction), "the server to notice")
        frozen_at = time.monotonic()
        with Child(shared, ca.base, shared.folder / "other", "--ask=e1,e2,e3", "--leave", *wishes) as other:
            assert other.wait(40) == 0
        assert time.monotonic() - frozen_at < 20
        frozen.signal(signal.SIGCONT)
        frozen.wait_for("begun")
        frozen.signal(signal.SIGTERM)
        assert frozen.wait() == 0
    assert problems(shared, ca, Promise(errands=("e1", "e2", "e3"))) == []
