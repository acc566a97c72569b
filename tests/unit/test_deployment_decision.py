"""What follows in a deployment: values in, values out."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.core.certificate import Version, VersionState
from holdfast.core.deployment import MOVES, OVER, Deployment, DeploymentState, move
from holdfast.core.deployment_decision import (
    CallDone,
    CallFailed,
    DeploymentFacts,
    Finish,
    Gate,
    Hold,
    MakeCall,
    MoveOn,
    Seen,
    Sight,
    Supersede,
    TryAgain,
    WaitFor,
    Written,
    decide,
    gate,
    puts_back,
    still_out,
)
from holdfast.core.reasons import Reason
from holdfast.core.target import TargetRow, TargetState, wave_of
from holdfast.core.windows import MaintenanceWindow
from holdfast.errors import IllegalMove

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def version(name: str = "new", *, left: timedelta = 60 * DAY, **more: Any) -> Version:
    facts: dict[str, Any] = {
        "certificate": "c", "generation": 1, "state": VersionState.ACTIVE, "key_secret": "s", "chain_pem": "",
        "serial": "1", "issuer": "ca", "account": None, "spki_sha256": "", "issued_at": NOW,
    }  # fmt: skip
    return Version(id=name, not_before=NOW + left - 90 * DAY, not_after=NOW + left, **{**facts, **more})


def facts(state: DeploymentState = DeploymentState.QUEUED, **more: Any) -> DeploymentFacts:
    of_row = {
        each: more.pop(each)
        for each in ("tries", "failures", "looked_since", "reason", "error", "served_at", "drained")
        if each in more
    }
    row = Deployment(
        id="d", certificate="c", certificate_version="new", target="web-1", number=2, state=state, created_at=NOW,
        changed_at=NOW, **of_row,
    )  # fmt: skip
    given: dict[str, Any] = {"version": version(), "previous": version("old", left=20 * DAY), "now": NOW, **more}
    return DeploymentFacts(deployment=row, **given)


BEGIN = CallDone("begin")


def test_the_way_from_queued_to_served_commits_each_step_before_the_next_effect() -> None:
    step = decide(facts(), BEGIN)
    assert step == MoveOn("begun", "write", {"tries": 0, "looked_since": None, "previous": "old"})
    step = decide(facts(DeploymentState.WRITING), Written())
    assert (step.event, step.then) == ("written", "test")
    step = decide(facts(DeploymentState.TESTING), CallDone("test"))
    assert (step.event, step.then) == ("tested", "reload")
    step = decide(facts(DeploymentState.RELOADING), CallDone("reload"))
    assert step == MoveOn("reloaded", "look", {"tries": 0, "looked_since": NOW, "served_at": None})
    seen = Seen(sight=Sight.NEW, words="2 of 2 addresses")
    once = decide(facts(DeploymentState.VERIFYING), seen)
    assert isinstance(once, WaitFor)  # the old workers of a daemon may answer for a moment more
    assert once.changes["served_at"] == NOW
    assert decide(facts(DeploymentState.VERIFYING, served_at=NOW), seen) == Finish("seen", "2 of 2 addresses")


@pytest.mark.parametrize(
    ("state", "call"),
    [("writing", "write"), ("testing", "test"), ("reloading", "reload"), ("verifying", "look"),
     ("rolling_back", "restore")],
)  # fmt: skip
def test_a_claim_after_a_crash_goes_on_where_the_last_one_was(state: str, call: str) -> None:
    assert decide(facts(DeploymentState(state), gate=Gate(reason=Reason.DEPLOY_HELD)), BEGIN) == MakeCall(call)


def test_a_target_is_out_of_its_balancer_from_before_the_reload_until_it_is_seen_well_or_given_up() -> None:
    step = decide(facts(DeploymentState.TESTING, drains=True), CallDone("test"))
    assert step == MoveOn("tested", "drain", {"tries": 0, "drained": True})  # committed before it is taken out
    out = {"drains": True, "drained": True}
    assert decide(facts(DeploymentState.RELOADING, **out), BEGIN) == MakeCall("drain")  # again, after a crash
    assert decide(facts(DeploymentState.RELOADING, **out), CallDone("drain")) == MakeCall("reload")
    verifying = facts(DeploymentState.VERIFYING, served_at=NOW, **out)
    assert not puts_back(verifying, decide(facts(DeploymentState.VERIFYING, **out), Seen(sight=Sight.NEW)))
    assert puts_back(verifying, decide(verifying, Seen(sight=Sight.NEW)))
    failed = CallFailed(at="reload", reason=Reason.RELOAD_FAILED, **REFUSED)
    reloading = facts(DeploymentState.RELOADING, **out)
    assert not puts_back(reloading, decide(reloading, failed))  # it is rolled back first
    assert puts_back(reloading, Supersede("A newer one."))
    assert not puts_back(facts(DeploymentState.VERIFYING, served_at=NOW), Finish("seen", ""))
    waits = still_out(verifying, CallFailed(at="drain", reason=Reason.DRAIN_FAILED, why="No.", refused=True))
    assert (waits.reason, "still out of its balancer" in waits.why) == (Reason.DRAIN_FAILED, True)


def test_equal_bytes_skip_nothing_but_the_write_unless_they_are_seen_served() -> None:
    looked = decide(facts(DeploymentState.WRITING), Written(changed=False))
    assert looked == MoveOn(None, "look", {"atomic": True})
    assert isinstance(decide(facts(DeploymentState.WRITING), Seen(sight=Sight.NEW)), Finish)
    for sight in set(Sight) - {Sight.NEW}:
        step = decide(facts(DeploymentState.WRITING), Seen(sight=sight))
        assert (step.event, step.then) == ("written", "test")
    blind = decide(facts(DeploymentState.WRITING, has_endpoints=False), Written(changed=False))
    assert (blind.event, blind.then) == ("written", "test")


def test_it_is_looked_for_until_the_limit_of_its_kind_is_over() -> None:
    early = facts(DeploymentState.VERIFYING, looked_since=NOW - timedelta(seconds=59), tries=2)
    assert decide(early, Seen(sight=Sight.OLD, words="old")) == WaitFor(
        timedelta(seconds=4), Reason.DEPLOYING, "old", {"tries": 3, "seen": "old", "served_at": None}
    )


LATE: dict[str, Any] = {"looked_since": NOW - timedelta(seconds=60), "tries": 9}


@pytest.mark.parametrize("sight", [Sight.OLD, Sight.SOME, Sight.UNREACHABLE])
def test_a_lagging_or_unreachable_endpoint_is_never_a_reason_to_roll_back(sight: Sight) -> None:
    step = decide(facts(DeploymentState.VERIFYING, **LATE), Seen(sight=sight, words="1 of 2"))
    assert step == TryAgain("gave up", Reason.DEPLOY_NOT_SERVED, "1 of 2", timedelta(minutes=1))


@pytest.mark.parametrize("sight", [Sight.OTHER, Sight.GONE])
def test_neither_old_nor_new_or_a_daemon_that_is_gone_is_rolled_back(sight: Sight) -> None:
    step = decide(facts(DeploymentState.VERIFYING, **LATE), Seen(sight=sight, words="?"))
    assert (step.event, step.then) == ("rolling back", "restore")


REFUSED = {"why": "no", "refused": True}


@pytest.mark.parametrize(
    ("state", "at", "reason"),
    [("testing", "test", Reason.CONFIG_TEST_FAILED), ("reloading", "reload", Reason.RELOAD_FAILED)],
)
def test_a_failed_test_or_reload_is_rolled_back(state: str, at: Any, reason: Reason) -> None:
    step = decide(facts(DeploymentState(state)), CallFailed(at=at, reason=reason, **REFUSED))
    assert isinstance(step, MoveOn)
    assert (step.event, step.then, step.changes["reason"]) == ("rolling back", "restore", reason.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"previous": version("old", left=timedelta(seconds=30))}, "expired"),
        ({"previous": version("old", left=-DAY)}, "expired"),
        ({"previous": version("old", revoke_asked_at=NOW)}, "revoked"),
        ({"can_restore": False}, "nothing is known"),
    ],
)
def test_it_is_not_rolled_back_to_something_worse(more: dict[str, Any], words: str) -> None:
    failed = CallFailed(at="test", reason=Reason.CONFIG_TEST_FAILED, **REFUSED)
    step = decide(facts(DeploymentState.TESTING, **more), failed)
    assert isinstance(step, TryAgain)
    assert step.event == "gave up"
    assert words in step.why


def test_a_rollback_reloads_and_looks_for_the_old_certificate_and_can_fail() -> None:
    rolling = facts(DeploymentState.ROLLING_BACK, reason="RELOAD_FAILED", error="bad", **LATE)
    look = MoveOn(None, "look", {"tries": 0, "looked_since": NOW, "served_at": None})
    assert decide(rolling, CallDone("restore")) == MakeCall("reload")
    tested = facts(DeploymentState.ROLLING_BACK, reason="CONFIG_TEST_FAILED", error="bad", **LATE)
    assert decide(tested, CallDone("restore")) == look  # the daemon never read the new bundle
    failed = CallFailed(at="reload", reason=Reason.RELOAD_FAILED, **REFUSED)
    assert decide(rolling, failed) == look
    assert decide(replace(rolling, has_endpoints=False), failed).event == "rollback failed"
    assert decide(rolling, CallDone("reload")) == MoveOn(
        None, "look", {"tries": 0, "looked_since": NOW, "served_at": None}
    )
    back = decide(replace(rolling, deployment=replace(rolling.deployment, served_at=NOW)), Seen(sight=Sight.NEW))
    assert back == TryAgain("rolled back", Reason.RELOAD_FAILED, "bad", HOUR)
    lost = decide(rolling, Seen(sight=Sight.GONE, words="refused"))
    assert isinstance(lost, TryAgain)
    assert (lost.event, lost.reason) == ("rollback failed", Reason.ROLLBACK_FAILED)
    first = decide(replace(rolling, previous=None), CallFailed(at="restore", reason=Reason.TARGET_REFUSED, **REFUSED))
    assert first.event == "gave up"  # there was nothing to go back to
    no = decide(rolling, CallFailed(at="restore", reason=Reason.TARGET_REFUSED, **REFUSED))
    assert isinstance(no, TryAgain)
    assert no.event == "rollback failed"


def test_a_failed_write_touched_nothing_and_is_tried_again_by_its_ladder() -> None:
    away = CallFailed(at="write", reason=Reason.TARGET_UNREACHABLE, why="away")
    waits = [decide(facts(DeploymentState.WRITING, failures=n), away).after for n in (0, 1, 2, 9)]
    assert waits == [timedelta(minutes=minutes) for minutes in (1, 2, 4, 60)]
    full = CallFailed(at="write", reason=Reason.TARGET_REFUSED, **REFUSED)
    assert decide(facts(DeploymentState.WRITING), full).after == HOUR
    hurried = facts(DeploymentState.WRITING, failures=9, previous=version("old", left=2 * HOUR))
    assert decide(hurried, away).after == 15 * timedelta(minutes=1)
    asked = replace(away, after=3 * HOUR)
    assert decide(facts(DeploymentState.WRITING), asked).after == 3 * HOUR


def test_those_that_fail_together_are_tried_alone_at_once() -> None:
    failed = CallFailed(at="write", reason=Reason.TARGET_REFUSED, **REFUSED)
    assert decide(facts(DeploymentState.WRITING, alone=False), failed).after == timedelta(seconds=1)
    assert decide(facts(DeploymentState.WRITING, alone=False, failures=1), failed).after == 2 * HOUR


def test_an_older_deployment_stops_where_the_target_holds_a_newer_one_or_nobody_wants_it() -> None:
    newer = CallFailed(at="write", reason=Reason.TARGET_HAS_NEWER, **REFUSED)
    assert isinstance(decide(facts(DeploymentState.WRITING), newer), Supersede)
    assert isinstance(decide(facts(DeploymentState.TESTING, wanted=False), BEGIN), Supersede)
    half_way = facts(DeploymentState.ROLLING_BACK, wanted=False)
    assert decide(half_way, BEGIN) == MakeCall("restore")


def test_a_gate_holds_it_before_it_begins_and_not_once_it_is_under_way() -> None:
    shut = Gate(reason=Reason.DEPLOY_WINDOW, until=NOW + HOUR)
    assert decide(facts(gate=shut), BEGIN) == Hold(Reason.DEPLOY_WINDOW, NOW + HOUR)
    assert decide(facts(DeploymentState.WRITING, gate=shut), BEGIN) == MakeCall("write")


TARGET = TargetRow(name="web-1", kind="files", created_at=NOW)
NIGHT = replace(TARGET, windows=(MaintenanceWindow(opens=120, closes=240),))


def test_a_window_holds_a_deployment_and_never_lets_what_is_served_expire() -> None:
    tomorrow = datetime(2026, 11, 19, 2, tzinfo=UTC)
    assert gate(NIGHT, version(left=60 * DAY), NOW) == Gate(reason=Reason.DEPLOY_WINDOW, until=tomorrow)
    assert gate(NIGHT, None, NOW) == Gate(reason=Reason.DEPLOY_WINDOW, until=tomorrow)
    assert gate(NIGHT, version(left=60 * DAY), tomorrow) == Gate()
    assert gate(NIGHT, version(left=9 * DAY), NOW) == Gate(overridden=Reason.DEPLOY_WINDOW)
    assert gate(NIGHT, version(left=60 * DAY, revoke_asked_at=NOW), NOW) == Gate(overridden=Reason.DEPLOY_WINDOW)
    soon = gate(NIGHT, version(left=9 * DAY + HOUR), NOW)
    assert soon == Gate(reason=Reason.DEPLOY_WINDOW, until=NOW + HOUR)


def test_a_pause_holds_for_good_and_a_freeze_as_long_as_that_is_safe() -> None:
    paused = replace(TARGET, state=TargetState.PAUSED)
    assert gate(paused, version(left=HOUR), NOW) == Gate(reason=Reason.DEPLOY_HELD)
    frozen = gate(TARGET, version(left=60 * DAY), NOW, frozen_until=NOW + DAY)
    assert frozen == Gate(reason=Reason.DEPLOY_FROZEN, until=NOW + DAY)
    assert gate(TARGET, version(left=DAY), NOW, frozen_until=NOW + DAY).overridden is Reason.DEPLOY_FROZEN
    assert gate(TARGET, version(left=60 * DAY), NOW, frozen_until=NOW) == Gate()


def test_a_rollout_has_a_canary_then_a_tenth_then_the_rest() -> None:
    names = [f"web-{number:02}" for number in range(40)]
    waves = [wave_of(each, names) for each in names]
    assert (waves.count(0), waves.count(1), waves.count(2)) == (1, 4, 35)
    assert [wave_of(each, ["a", "b"]) for each in ("a", "b")] == [0, 1]


def test_every_state_can_be_left_but_the_last_and_nothing_else_moves_it() -> None:
    left = {state for state, _ in MOVES}
    assert left == set(DeploymentState) - {DeploymentState.SUPERSEDED}
    assert {state for state in DeploymentState if state.over} == OVER
    with pytest.raises(IllegalMove):
        move(DeploymentState.QUEUED, "written")
