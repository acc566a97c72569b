"""The disk is full: the kernel refuses to make the database file longer. Nothing is lost, and somebody is told."""

import json
import resource
from pathlib import Path

from tests.faults.conftest import Serve
from tests.kill.auditor import Promise, problems
from tests.support.ca_server import Ca
from tests.support.grounds import SqliteGround, look
from tests.support.processes import Child
from tests.support.reaper import until

from holdfast.store import journal

ERRANDS = tuple(f"e{number}" for number in range(1, 7))


def forbid_growth(pid: int, file: Path) -> None:
    """As a full disk would, for this process only, and without root: no file may become longer than this one is."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (file.stat().st_size, hard))


def make_room(pid: int) -> None:
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


def refusals(child: Child) -> int:
    """How many of its commits did not come to pass."""
    passed = child.passed()
    return passed["store.before-commit"] - passed["store.after-commit"]


def test_a_full_disk_is_told_by_the_probe_and_the_replica_recovers_when_there_is_room(
    serve: Serve, tmp_path: Path
) -> None:
    served = serve(ENGINE_LEASE_TTL="3s")
    served.wait_until_ready()
    served.wait_for_event("selfcheck.passed")
    forbid_growth(served.pid, tmp_path / "data" / "holdfast.sqlite-wal")
    reason = served.wait_until_not_ready()
    assert "cannot be written" in reason
    assert "Free some space" in reason
    assert served.get("/health/live")[0] == 200
    until(lambda: "holdfast_store_up 0.0" in served.get("/metrics")[1], "a heartbeat that failed")
    make_room(served.pid)
    served.wait_until_ready()
    until(lambda: "holdfast_store_up 1.0" in served.get("/metrics")[1], "a heartbeat")
    assert served.stop() == 0
    assert "Traceback" not in served.output()
    assert look(SqliteGround(tmp_path / "data"), journal.verify).ok


def test_work_that_meets_a_full_disk_goes_on_by_itself_and_is_done_once(tmp_path: Path, ca: Ca) -> None:
    place = SqliteGround(tmp_path)
    ca.hang()
    with Child(place, ca.base, tmp_path / "child", f"--ask={','.join(ERRANDS)}", "--leave", "--ttl=60") as child:
        until(lambda: ca.held == len(ERRANDS), "the CA to be asked")
        forbid_growth(child.pid, tmp_path / "holdfast.sqlite-wal")
        ca.release()  # the answers come, and cannot be written down
        until(lambda: len(child.said("passed", "job.settling")) == len(ERRANDS), "the answers to come")
        before = refusals(child)
        until(lambda: refusals(child) > before + 1, "the store to refuse")
        assert not child.said("passed", "job.settled")
        make_room(child.pid)
        assert child.wait() == 0
    assert problems(place, ca, Promise(errands=ERRANDS)) == []


def test_a_full_disk_at_the_first_start_is_said_and_waited_out(serve: Serve) -> None:
    served = serve(room=64)
    reason = served.wait_for_event("store.unreachable", times=2)["error"]
    assert "Free some space" in reason
    status, startup = served.get("/health/startup")
    assert (status, json.loads(startup)["phase"], json.loads(startup)["waiting_for"]) == (503, "schema", reason)
    make_room(served.pid)
    served.wait_until_ready()
    assert served.stop() == 0
    assert "Traceback" not in served.output()
