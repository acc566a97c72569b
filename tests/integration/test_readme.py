"""The README's first five minutes are typed as they stand there, certbot included, against `holdfast dev`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.__main__ import default_cache
from tests.interop.packages import CannotBeHad, Pip, obtain
from tests.support.tutorial import Shell, Step, environment, play

README = Path(__file__).resolve().parents[2] / "README.md"
OWN_NETWORK = ["unshare", "--net", "--fork", "--kill-child", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


@pytest.fixture
def certbot() -> str:
    try:
        return str(obtain(Pip("certbot==5.8.0"), default_cache()).programs[0])
    except CannotBeHad as why:
        pytest.skip(f"certbot is not to be had here ({why}): pip install certbot==5.8.0")


@pytest.fixture
def shell(tmp_path: Path, certbot: str) -> Iterator[Shell]:
    """Its ports 80, 8630 and 8631 are free, and certbot keeps its files here, by a configuration file of the user."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("a network with a free port 80 takes root: apt-get install util-linux iproute2")
    kept = tmp_path / ".config" / "letsencrypt" / "cli.ini"
    kept.parent.mkdir(parents=True)
    kept.write_text("".join(f"{each}-dir = {tmp_path / each}\n" for each in ("config", "work", "logs")))
    chosen = environment(tmp_path)
    chosen["PATH"] += f":{certbot}"
    with Shell(tmp_path, chosen, {"": "http://127.0.0.1:8630"}, within=OWN_NETWORK) as opened:
        yield opened


def test_the_first_five_minutes_work_as_they_are_typed(shell: Shell) -> None:
    shell.run(Step("holdfast dev > dev.log 2>&1 &", "", 0))  # what `make run` does
    shell.run(Step("until grep -q 'ACME clients use' dev.log; do :; done", "", 0))  # it has shown its first certificate
    play(README, shell, {"sudo env": "env"})
    assert (shell.folder / "config" / "live" / "app.localhost" / "fullchain.pem").exists()
