"""How soon another replica goes on, and what a zombie can still write: measured with real signals and real leases."""

import signal
import time
from typing import Final, Literal

from holdfast.store.tx import Tx
from tests.kill.auditor import Promise, problems
from tests.support.ca_server import Ca
from tests.support.child import Strike
from tests.support.grounds import Ground, look
from tests.support.processes import Child
from tests.support.reaper import until

ERRAND: Final = "e1"
ASK: Final = f"--ask={ERRAND}"
# What a worker may write about work. Not replicas and leases: to be alive again is no crime.
TABLES: Final = {
    "errands": "id, state, ref, polls, certificate",
    "jobs": "id, state, attempts, crashes, fence, holder, reason, last_error, due_at",
    "job_history": "id, state, attempts, fence, holder, finished_at",
    "audit": "seq, action, subject, hash",
    "events": "id, name, subject, details",
    "budgets": "key, tat, not_before",
}
LASTING: Final = 9  # lease times of others, and not an absurdly long one: not lost because the machine is slow
Grip = Literal["done", "busy"]  # what the successor is when the zombie wakes: done with the job, or still at it
GRIPS: Final[tuple[Grip, ...]] = ("done", "busy")
# Between the CA's answer and the commit: of the first step, which asks for another, and of the last, which finishes.
FREEZES: Final = (Strike("stop", "job.effect-done", 1), Strike("stop", "job.settling", 2))


def after_sigkill(place: Ground, ca: Ca, ttl: float) -> float:
    """Seconds from the death of the holder to the next claim; it dies right after a heartbeat, the worst moment."""
    with _holder(place, ca, ttl) as first:
        if place.engine == "sqlite":  # one process at a time: the successor comes after
            died_at = _killed(first)
            with _successor(place, ca, ttl) as second:
                return _taken(second, died_at, place, ca, kills=1)
        with _successor(place, ca, ttl) as second:
            second.wait_for("passed", "job.beaten")
            died_at = _killed(first)
            return _taken(second, died_at, place, ca, kills=1)


def after_sigterm(place: Ground, ca: Ca, ttl: float, poll: float = 4) -> float:
    """Seconds from the signal to the next claim, when the job can be handed back at once."""
    # A poll that comes too late to count: the hint that there is work must do.
    with _holder(place, ca, ttl, "--interruptible") as first, _successor(place, ca, ttl, f"--poll={poll}") as second:
        second.wait_for("passed", "job.beaten")
        told_at = time.monotonic()
        first.signal(signal.SIGTERM)
        claimed = second.wait_for("passed", "job.claimed")
        if first.wait() != 0:
            raise AssertionError(f"it did not stop in good order:\n{first.log()}")
        ca.release()
        second.wait_for("passed", "job.settled")
        second.signal(signal.SIGTERM)  # it would wait for its poll to look again
        if second.wait() != 0:
            raise AssertionError(f"the successor failed:\n{second.log()}")
    with Child(place, ca.base, place.folder / "last", "--leave") as last:
        if last.wait() != 0:
            raise AssertionError(f"the last one failed:\n{last.log()}")
    _must_be_right(place, ca, kills=1)  # the first one's request was under way: it may be repeated
    return claimed.at - told_at


def lease_after(place: Ground, ca: Ca, ttl: float, number: signal.Signals) -> float:
    """Seconds from the signal to the replica that leads until another one does."""
    with Child(place, ca.base, place.folder / "leads", f"--ttl={ttl}") as first:
        first.wait_for("passed", "lease.taken")
        with Child(place, ca.base, place.folder / "follows", f"--ttl={ttl}") as second:
            second.wait_for("passed", "job.beaten")
            told_at = time.monotonic()
            first.signal(number)
            taken = second.wait_for("passed", "lease.taken")
            first.wait()
            second.signal(signal.SIGTERM)
            if second.wait() != 0:
                raise AssertionError(f"the one that follows did not stop in good order:\n{second.log()}")
    return taken.at - told_at


def zombie_writes(place: Ground, ca: Ca, ttl: float, strike: Strike, grip: Grip) -> int:
    """Rows that a replica changes which was frozen between the CA's answer and its commit, for three lease times."""
    with Child(place, ca.base, place.folder / "zombie", ASK, f"--ttl={ttl}", strike=strike) as zombie:
        zombie.wait_stopped()
        frozen_at = time.monotonic()
        if grip == "done":
            with _successor(place, ca, ttl) as second:
                if second.wait() != 0:
                    raise AssertionError(second.log())
            _pass(frozen_at + 3 * ttl)
            return _woken(place, zombie)
        ca.hang()
        _pass(frozen_at + 3 * ttl)
        with _successor(place, ca, LASTING * ttl) as second:
            until(lambda: ca.held == 1, "the successor to ask the CA")
            writes = _woken(place, zombie)
            ca.release()
            second.wait()
            _must_be_right(place, ca, kills=1)
            return writes


# ── the steps ──


def _holder(place: Ground, ca: Ca, ttl: float, *wishes: str) -> Child:
    """A replica in the middle of an errand: the CA does not answer."""
    ca.hang()
    child = Child(place, ca.base, place.folder / "first", ASK, f"--ttl={ttl}", *wishes)
    until(lambda: ca.held == 1, "the CA to be asked")
    return child


def _successor(place: Ground, ca: Ca, ttl: float, *wishes: str) -> Child:
    return Child(place, ca.base, place.folder / "second", f"--ttl={ttl}", "--leave", *wishes)


def _killed(child: Child) -> float:
    beats = len(child.said("passed", "job.beaten"))
    child.wait_for("passed", "job.beaten", times=beats + 1)
    died_at = time.monotonic()
    child.kill()
    return min(died_at, child.said("passed", "job.beaten")[-1].at)  # it may have had time for another


def _taken(second: Child, since: float, place: Ground, ca: Ca, *, kills: int) -> float:
    """Let the successor get done; seconds until it had the job."""
    claimed = second.wait_for("passed", "job.claimed")
    ca.release()
    if second.wait() != 0:
        raise AssertionError(f"the successor failed:\n{second.log()}")
    _must_be_right(place, ca, kills=kills)
    return claimed.at - since


def _pass(until_when: float) -> None:
    """Here time itself is the experiment."""
    time.sleep(max(0.0, until_when - time.monotonic()))


def _woken(place: Ground, zombie: Child) -> int:
    """Wake it, let it try to write its result, and count what that changed."""
    before = look(place, _rows)
    settled = len(zombie.said("passed", "job.settled"))
    zombie.signal(signal.SIGCONT)
    zombie.wait_for("passed", "job.settled", times=settled + 1)
    zombie.signal(signal.SIGTERM)
    if zombie.wait() != 0:
        raise AssertionError(f"the zombie did not stop in good order:\n{zombie.log()}")
    return len(before ^ look(place, _rows))


def _rows(tx: Tx) -> set[tuple[object, ...]]:
    return {
        (table, *row.values()) for table, columns in TABLES.items() for row in tx.rows(f"SELECT {columns} FROM {table}")
    }


def _must_be_right(place: Ground, ca: Ca, *, kills: int) -> None:
    wrong = problems(place, ca, Promise(errands=(ERRAND,), kills=kills))
    if wrong:
        raise AssertionError(wrong)
