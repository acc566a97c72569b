"""Whether a version can join the replicas that run."""

from dataclasses import replace

from holdfast.core.finding import Finding, Level
from holdfast.core.upgrade import Installation, Step, check

ONE, TWO = Step(version=1, name="schema"), Step(version=2, name="more")
DROP = Step(version=3, name="drop_contract")
KINDS = frozenset({"issue", "deploy"})
OLD = Installation(steps=[ONE], replicas={"a": "0.1", "b": "0.1"}, jobs={"issue": 3, "deploy@web-1": 1})


def verdict(steps: list[Step], found: Installation) -> tuple[Finding, dict[str, Finding]]:
    first, *rest = check(steps, KINDS, "0.2", found)
    return first, {each.check: each for each in rest}


def test_steps_that_only_add_let_a_version_roll() -> None:
    first, rest = verdict([ONE, TWO], OLD)
    assert (first.level, first.saw[:3]) == (Level.OK, "yes")
    assert "0002_more" in rest["schema"].saw
    assert "0.1" in rest["replicas"].saw
    assert rest["jobs"].level is Level.OK, "what is of one host is of a known kind"


def test_a_step_that_takes_away_needs_a_stop_of_all_replicas() -> None:
    first, rest = verdict([ONE, TWO, DROP], OLD)
    assert first.level is Level.BAD
    assert "0003_drop_contract" in first.saw
    assert "replicas of version 0.1" in first.saw
    assert first.fix.startswith("Stop every replica")
    assert rest["schema"].level is Level.BAD


def test_an_older_version_joins_a_newer_one_that_only_added_and_no_other() -> None:
    first, rest = verdict([ONE], replace(OLD, steps=[ONE, TWO], replicas={"a": "0.3"}))
    assert first.level is Level.OK
    assert rest["newer steps"].level is Level.NOTE
    assert verdict([ONE], replace(OLD, steps=[ONE, DROP]))[0].level is Level.BAD
    assert verdict([ONE, DROP], replace(OLD, steps=[ONE, TWO, DROP]))[0].level is Level.BAD, "a step in between"


def test_jobs_of_unknown_kinds_are_named_and_are_no_obstacle() -> None:
    first, rest = verdict([ONE], replace(OLD, jobs={"issue": 1, "teleport": 7}))
    assert first.level is Level.OK
    assert rest["jobs"].level is Level.NOTE
    assert "7 of kind teleport" in rest["jobs"].saw
