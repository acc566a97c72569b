"""A command in a copy of a warm process is the command: nothing of the tests is in it, and nothing of it stays."""

import json
import os
import signal
from pathlib import Path

import pytest
from tests.support.commands import holdfast, started, typed
from tests.support.processes import environment


@pytest.mark.parametrize(
    "words",
    [
        ("help", "exit-codes"),
        ("config", "show", "-o", "json"),
        ("ca", "ls"),  # there is no database
        ("ca", "no-such-command"),
        ("pki", "inspect", "no-such-file.pem"),
    ],
    ids=" ".join,
)
def test_a_copy_and_an_interpreter_of_its_own_come_to_the_same(tmp_path: Path, words: tuple[str, ...]) -> None:
    env = environment(tmp_path, {})
    copied, fresh = holdfast(*words, env=env, cwd=tmp_path), holdfast(*words, env=env, cwd=tmp_path, fresh=True)
    assert (copied.returncode, copied.stdout, copied.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)


def test_environment_and_folder_are_those_that_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LOG_LEVEL", "error")
    (tmp_path / "here.toml").write_text('[log]\nlevel = "warning"\n')
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    shown = holdfast("config", "show", "--config", "here.toml", "-o", "json", env=clean, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert [row["value"] for row in json.loads(shown.stdout) if row["key"] == "log.level"] == ["warning"]


def test_both_streams_can_go_to_one_file(tmp_path: Path) -> None:
    done = holdfast("ca", "ls", env=environment(tmp_path, {}), merged=True)
    assert ("There is no database" in done.stdout, done.stderr) == (True, "")


@pytest.mark.anyio
async def test_what_is_typed_reaches_the_command(tmp_path: Path) -> None:
    said = await typed("plan", "-f", "-", env=environment(tmp_path, {}), stdin="certificates: [")
    assert (said.code, said.err.split(":")[1]) == (1, " stdin"), said.err


def test_a_command_that_is_killed_says_by_which_signal(tmp_path: Path) -> None:
    streams = (Path(os.devnull), tmp_path / "out", tmp_path / "err")
    for path in streams[1:]:
        path.touch()
    with started(("serve",), environment(tmp_path, {}), *streams) as process:
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
