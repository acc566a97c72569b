"""The simulator: no promise is broken, the same seed is the same run, and a broken product is found out."""

import asyncio
import os
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from tests.simulation import errands, experiments, invariants, life_invariants
from tests.simulation.invariants import Violation
from tests.simulation.life_run import play_life
from tests.simulation.node import Node
from tests.simulation.remote import FakeCa
from tests.simulation.run import play
from tests.simulation.stage import LIMIT, PACE, TTL, Stage
from tests.support.engine import on_stage, stage_node

from holdfast.core.issuers.budget import Limit
from holdfast.store.work import jobs, sweeps
from holdfast.store.work.cluster import ABSURD

SRC = Path(__file__).resolve().parents[2] / "src"
HASHES = """
from tests.simulation.run import play
from tests.simulation.life_run import play_life
print(play(7).audit_hash, play_life(7).audit_hash)
"""


@pytest.mark.parametrize("seed", range(1, 13))
def test_no_promise_is_broken_under_faults(seed: int) -> None:
    assert play(seed).violation == ""


@pytest.mark.parametrize("seed", range(1, 3))
def test_no_promise_about_certificates_is_broken_under_faults(seed: int) -> None:
    assert play_life(seed).violation == ""


def test_the_same_seed_is_the_same_run_in_another_process_with_other_hashes() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    other = subprocess.run([sys.executable, "-c", HASHES], env=environment, capture_output=True, text=True, check=True)
    assert other.stdout.split() == [play(7).audit_hash, play_life(7).audit_hash]


BROKEN = {
    "a write of a worker is not guarded by its fence": (
        "store/work/jobs.py",
        "WHERE id = :id AND fence = :fence AND state = 'running'",
        "WHERE id = :id AND :fence = :fence",
    ),
    "nobody takes jobs from the dead": (
        "store/work/sweeps.py",
        "    quarantined = 0\n",
        "    rows, quarantined = [], 0\n",
    ),
    "what a budget paid is not remembered": (
        "store/work/budgets.py",
        "        _save(tx, held)\n    return admitted",
        "        pass\n    return admitted",
    ),
    "the state is written without its job": (
        "tests/simulation/errands.py",
        "    jobs.owe(tx, spec(errand, job))\n",
        "",
    ),
}


BROKEN_LIVES = {
    "a certificate is put in use without a look at it": (
        "engine/issuance/answers.py",
        "    return chain.problem_with(found.chain, key=found.key, names=dns, ips=ips, now=at)\n",
        "    return None\n",
        "I4",
    ),
    "an order of one who died is not looked for": (
        "engine/issuance/issue.py",
        'await heard("find", self._issuer.find_order(self._wish(facts)))',
        "None",
        "I3",
    ),
    "what orders cost is not paid": (
        "core/issuers/ca_limits.py", "        keys[order_key(issuer)] = limits.orders\n", "        pass\n", "I8",
    ),
    "a new certificate is not in the audit log": (
        "operations/issuance/attempts.py",
        '    journal.audit(tx, "certificate_activated", found.id, replaced=found.current_version or "", **facts)\n',
        "",
        "I7",
    ),
    "equal bytes at a target are proof enough": (
        "core/deployment_decision.py",
        "        return MoveOn(None, \"look\", {\"atomic\": answer.atomic})\n",
        "        return Finish(\"seen\", \"\")\n",
        "I10",
    ),
    "what failed at a target is tried again with the version before": (
        "engine/deployment/claim.py",
        "versions.get(tx, row.certificate_version)\n",
        "versions.of(tx, row.certificate, limit=2)[-1 if row.failures else 0]\n",
        "I10",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_a_product_that_is_broken_on_purpose_is_found_out(fault: str, tmp_path: Path) -> None:
    assert _first_violation(BROKEN[fault], tmp_path, "run", "play", 20)


@pytest.mark.parametrize("fault", BROKEN_LIVES)
def test_a_lifecycle_that_is_broken_on_purpose_is_found_out(fault: str, tmp_path: Path) -> None:
    module, text, broken, promise = BROKEN_LIVES[fault]
    assert _first_violation((module, text, broken), tmp_path, "life_run", "play_life", 8).startswith(promise)


def _first_violation(change: tuple[str, str, str], folder: Path, run: str, play: str, seeds: int) -> str:
    """What the simulator says first about a copy of the product in which this text is another."""
    module, text, broken = change
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SRC, folder / "src", ignore=ignored)
    shutil.copytree(SRC.parent / "tests" / "simulation", folder / "tests" / "simulation", ignore=ignored)
    file = folder / module if module.startswith("tests/") else folder / "src" / "holdfast" / module
    source = file.read_text(encoding="utf-8")
    assert source.count(text) == 1, "the text to break is not there any more"
    file.write_text(source.replace(text, broken), encoding="utf-8")
    script = (
        f"from tests.simulation.{run} import {play} as play\n"
        f"print(next((found for seed in range(1, {seeds + 1}) if (found := play(seed).violation)), ''))"
    )
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


# ── the experiments, small ──


def test_nothing_expires_in_a_season_with_faults() -> None:
    found = experiments.year(30, days=60)
    assert (found.violation, found.counts["expired"]) == ("", 0)
    assert found.counts["issued"] >= 20


@pytest.mark.parametrize("says", [3600.0, None], ids=["with-retry-after", "without"])
def test_a_ca_that_answers_429_for_a_day_hears_little_of_us(says: float | None) -> None:
    found = experiments.storm(20, says=says)
    assert (found.violation, found.counts["expired"]) == ("", 0)
    assert found.counts["requests"] <= 300


def test_certificates_of_six_days_outlive_eight_hours_without_their_ca() -> None:
    found = experiments.outage(20)
    assert (found.violation, found.counts["expired"]) == ("", 0)
    assert found.counts["requests"] <= 200


def test_in_a_mass_revocation_those_with_the_least_time_left_go_first() -> None:
    found = experiments.mass_revocation(200, every=60)
    assert (found.violation, found.counts["expired"]) == ("", 0)
    assert found.counts["by_risk"] >= 95


def test_a_pace_above_a_limit_is_noticed_wherever_it_is() -> None:
    limit = Limit(burst=3, every=timedelta(seconds=10))
    life_invariants.check_pace([0, 0, 0, 10, 20, 100, 100, 100], limit, "ca")
    with pytest.raises(Violation, match="I8"):
        life_invariants.check_pace([0, 50, 50, 50, 55], limit, "ca")


# ── what a fault excuses, and no more ──


def test_a_replica_that_is_thawed_early_goes_on_at_once() -> None:
    async def story(stage: Stage) -> float:
        node = stage_node(stage, "frozen").node
        node.freeze(180)
        waiting = stage.loop.create_task(node.gate())
        await asyncio.sleep(10)
        node.thaw()
        await waiting
        return stage.loop.time()

    assert on_stage(story) == pytest.approx(10, abs=0.1)


def test_a_second_shorter_pause_does_not_end_the_first() -> None:
    async def story(stage: Stage) -> float:
        node = stage_node(stage, "frozen").node
        node.freeze(60)
        waiting = stage.loop.create_task(node.gate())
        await asyncio.sleep(1)
        node.freeze(20)
        await waiting
        return stage.loop.time()

    assert on_stage(story) == pytest.approx(60, abs=0.1)


def _asked(ca: FakeCa, times: int, *, late: bool = False) -> bool:
    """Ask so many times at one instant; whether that was too much."""
    for _ in range(times):
        ca.answer("POST", "/orders/a", 100.0, late=late)
    return bool(ca.over_limit)


def test_the_ca_sees_one_request_too_many() -> None:
    ca = FakeCa(limit=LIMIT)
    assert not _asked(ca, LIMIT.burst)
    assert _asked(ca, 1)


def test_a_late_request_is_excused_and_excuses_no_other() -> None:
    ca = FakeCa(limit=LIMIT)
    assert not _asked(ca, 3, late=True)
    assert not _asked(ca, LIMIT.burst)
    assert _asked(ca, 1)


def test_as_many_requests_are_forgiven_as_were_forgotten() -> None:
    ca = FakeCa(limit=LIMIT)
    assert not _asked(ca, LIMIT.burst)
    ca.forgive(2)
    assert not _asked(ca, 2)
    assert _asked(ca, 1)


def test_what_is_forgiven_is_not_kept_for_later() -> None:
    ca = FakeCa(limit=LIMIT)
    ca.forgive(1000)
    assert not _asked(ca, LIMIT.burst)
    assert _asked(ca, 1)


def _claims(stage: Stage, name: str) -> Node:
    """A replica that has just claimed, and paid for, the job of errand a."""
    node = stage_node(stage, name).node
    node.paid_at["a"] = stage.loop.time()
    return node


def test_a_request_is_late_if_its_replica_was_frozen_since_it_paid() -> None:
    async def story(stage: Stage) -> list[bool]:
        frozen, other = _claims(stage, "frozen"), _claims(stage, "other")
        frozen.freeze(25)
        await frozen.gate()
        both = [stage.late(frozen, "/orders/a"), stage.late(other, "/orders/a")]
        frozen.paid_at["a"] = stage.loop.time()
        return [*both, stage.late(frozen, "/orders/a")]

    assert on_stage(story) == [True, False, False]


@pytest.mark.parametrize(("hours", "late"), [(1, True), (-1, False)])
def test_only_a_clock_set_forward_makes_a_budget_seem_paid_off(hours: int, late: bool) -> None:
    async def story(stage: Stage) -> bool:
        node = _claims(stage, "one")
        await asyncio.sleep(1)
        stage.set_clock(timedelta(hours=hours))
        return stage.late(node, "/orders/a")

    assert on_stage(story) is late


@pytest.mark.parametrize("back", [1, ABSURD - 1, ABSURD, ABSURD + 1])
def test_when_the_clock_was_set_back_what_the_dead_held_is_taken_over_by_the_time_the_stage_expects(back: int) -> None:
    async def story(stage: Stage) -> int:
        stage.truth.transact(lambda tx: errands.ask(tx, "a", "job_a"))
        stage.truth.transact(lambda tx: jobs.claim(tx, holder="dead", free={errands.KIND: 1}, ttl=PACE.ttl))
        stage.set_clock(-back * PACE.ttl)
        await asyncio.sleep(TTL)  # nobody claims while the clock is new
        early, _ = stage.truth.transact(lambda tx: sweeps.take_back_expired(tx, PACE.ttl))
        await asyncio.sleep(stage.leases_last_until - stage.loop.time())
        late, _ = stage.truth.transact(lambda tx: sweeps.take_back_expired(tx, PACE.ttl))
        return early[0] + late[0]

    assert on_stage(story) == 1


def test_a_job_in_the_hands_of_the_dead_is_noticed_even_if_nobody_took_their_place() -> None:
    async def story(stage: Stage) -> None:
        node = stage_node(stage, "mortal").node
        stage.nodes.append(node)
        stage.truth.transact(lambda tx: errands.ask(tx, "a", "job_a"))
        stage.truth.transact(lambda tx: jobs.claim(tx, holder=node.holder, free={errands.KIND: 1}, ttl=PACE.ttl))
        invariants.nothing_is_left_to_the_dead(stage)
        node.kill()
        with pytest.raises(Violation, match="L7"):
            invariants.nothing_is_left_to_the_dead(stage)

    on_stage(story)
