"""The simulator: no promise is broken, the same seed is the same run, and a broken product is found out."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.simulation.run import play

SRC = Path(__file__).resolve().parents[2] / "src"
HASH = "from holdfast.simulation.run import play; print(play(7).audit_hash)"


@pytest.mark.parametrize("seed", range(1, 13))
def test_no_promise_is_broken_under_faults(seed: int) -> None:
    assert play(seed).violation == ""


def test_the_same_seed_is_the_same_run_in_another_process_with_other_hashes() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    other = subprocess.run([sys.executable, "-c", HASH], env=environment, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == play(7).audit_hash


BROKEN = {
    "a write of a worker is not guarded by its fence": (
        "store/jobs.py",
        "WHERE id = :id AND fence = :fence AND state = 'running'",
        "WHERE id = :id AND :fence = :fence",
    ),
    "nobody takes jobs from the dead": ("store/sweeps.py", "    quarantined = 0\n", "    rows, quarantined = [], 0\n"),
    "what a budget paid is not remembered": (
        "store/budgets.py",
        "        _save(tx, held)\n    return admitted",
        "        pass\n    return admitted",
    ),
    "the state is written without its job": ("simulation/errands.py", "    jobs.owe(tx, spec(errand, job))\n", ""),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_a_product_that_is_broken_on_purpose_is_found_out(fault: str, tmp_path: Path) -> None:
    module, text, broken = BROKEN[fault]
    copy = tmp_path / "src"
    shutil.copytree(SRC, copy)
    file = copy / "holdfast" / module
    source = file.read_text(encoding="utf-8")
    assert source.count(text) == 1, "the text to break is not there any more"
    file.write_text(source.replace(text, broken), encoding="utf-8")
    script = "from holdfast.simulation.run import play; print(any(play(seed).violation for seed in range(1, 21)))"
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr[-500:]
