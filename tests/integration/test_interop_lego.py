"""One of other people's clients against the product as it is served; `make interop` runs all of them."""

import os
import subprocess
import sys

import pytest


def test_lego_gets_renews_and_revokes_by_every_kind_of_challenge_though_nonces_are_refused() -> None:
    if os.geteuid() != 0:
        pytest.skip("a network of its own, with ports 53 and 80, takes root")
    words = [sys.executable, "-m", "tests.interop", "--only", "lego", "--nonces", "50"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, check=False)
    figures = [line for line in done.stdout.splitlines() if line.startswith("FIGURE")]
    if any(" skipped " in line for line in figures):
        pytest.skip(figures[0])
    assert done.returncode == 0, done.stdout + done.stderr
    assert len([line for line in figures if line.endswith(" met")]) == 5, done.stdout
