"""The real command in its own process: what it prints, where, how it exits; and no secret is ever shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support import commands
from tests.support.reaper import PATIENCE
from tests.support.secrets_planted import TYPED_SETTING

from holdfast import __version__
from holdfast.cli import main as cli
from holdfast.config import KINDS
from holdfast.errors import SettingRefused, StoreRefused, UserError

SENTINEL = TYPED_SETTING
SECRETS = {
    "HOLDFAST_STORE_URL": f"postgresql://holdfast:{SENTINEL}@db.internal/holdfast",
    "HOLDFAST_KEYS_PASSPHRASE": f"{SENTINEL}-now",
    "HOLDFAST_KEYS_PREVIOUS_PASSPHRASE": f"{SENTINEL}-before",
}


def holdfast(*args: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command with nothing of ours in its environment but `env`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return commands.holdfast(*args, env={**clean, **(env or {})})


@pytest.mark.parametrize("output", ["table", "json", "toml"])
@pytest.mark.parametrize("given_by", ["environment", "secret file"])
def test_no_output_format_shows_a_secret(output: str, given_by: str, tmp_path: Path):
    env = dict(SECRETS)
    if given_by == "secret file":
        for name, value in SECRETS.items():
            (tmp_path / name).write_text(f"{value}\n")
        env = {f"{name}_FILE": str(tmp_path / name) for name in SECRETS}
    done = holdfast("config", "show", "--output", output, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("***") == len(SECRETS)
    assert SENTINEL not in done.stdout


def test_a_refusal_goes_to_stderr_in_words_and_shows_no_secret(tmp_path: Path):
    file = tmp_path / "h.toml"
    file.write_text(f'[store]\nurl = "{SECRETS["HOLDFAST_STORE_URL"]}"\n')
    done = holdfast("config", "show", "--config", str(file), env=SECRETS)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: store.url ({file}): a secret may not stand in this file\n"
        "hint: Set HOLDFAST_STORE_URL, or name a file that holds it with store.url_file.\n"
    )


@pytest.mark.parametrize("output", ["table", "json", "toml"])
@pytest.mark.parametrize(
    "env",
    [
        {"HOLDFAST_STORE_URL": f"mysql://{SENTINEL}"},
        {"HOLDFAST_STORE_PASSWORD": SENTINEL},
        {**SECRETS, "HOLDFAST_SCHEDULER_RETRY_INTERVAL": "0.5s"},
        {**SECRETS, "HOLDFAST_STORE_URL_FILE": "/nowhere"},
        {**SECRETS, "HOLDFAST_CONFIG": "/nowhere.toml"},
    ],
    ids=["wrong scheme", "unknown variable", "interval too short", "given twice", "no such file"],
)
def test_no_refusal_shows_a_secret_or_a_traceback(output: str, env: dict[str, str]):
    done = holdfast("config", "show", "-o", output, env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert SENTINEL not in done.stderr
    assert "Traceback" not in done.stderr


def test_json_tells_every_setting_with_its_value_and_its_source(tmp_path: Path):
    file = tmp_path / "h.toml"
    file.write_text("[engine]\nslots = 3\n")
    env = {"HOLDFAST_CONFIG": str(file), "HOLDFAST_SERVER_LISTEN": "[::1]:0"}
    rows = {row["key"]: row for row in json.loads(holdfast("config", "show", "-o", "json", env=env).stdout)}
    assert list(rows) == list(KINDS)
    assert (rows["engine.slots"]["value"], rows["engine.slots"]["source"]) == (3, "file")
    assert (rows["server.listen"]["value"], rows["server.listen"]["source"]) == ("[::1]:0", "environment")
    assert (rows["log.level"]["value"], rows["log.level"]["source"]) == ("info", "default")
    assert rows["store.url"]["value"] == "sqlite:///data/holdfast.sqlite"


def test_toml_can_be_saved_and_used_as_the_file(tmp_path: Path):
    env = {"HOLDFAST_REPLICA_NAME": 'eins "zwei" [drei]', "HOLDFAST_ENGINE_DRAIN": "0"}
    first = holdfast("config", "show", "-o", "toml", env=env).stdout
    file = tmp_path / "saved.toml"
    file.write_text(first)
    assert tomllib.loads(first)["replica"] == {"name": 'eins "zwei" [drei]'}
    assert holdfast("config", "show", "-o", "toml", "-c", str(file)).stdout == first


def test_the_table_shows_brackets_and_long_values_as_they_are():
    path = "/" + "/".join(["[bold]x[/bold]", ":smile:", "y" * 40])
    env = {"HOLDFAST_STORE_DATA_DIR": path, "COLUMNS": "40"}
    done = holdfast("config", "show", env=env)
    assert path in done.stdout
    assert all(key in done.stdout for key in KINDS)
    assert "\x1b" not in done.stdout, "no colours into a pipe"


def test_an_option_wins_over_the_variable_that_names_the_file(tmp_path: Path):
    file = tmp_path / "h.toml"
    file.write_text('[log]\nlevel = "debug"\n')
    done = holdfast("config", "show", "-o", "json", "-c", str(file), env={"HOLDFAST_CONFIG": "/nowhere"})
    assert '"debug"' in done.stdout


def test_version_prints_the_version_alone():
    done = holdfast("version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


def test_the_installed_script_is_the_same_command():
    script = Path(sys.executable).with_name("holdfast")
    done = subprocess.run([script, "version"], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, f"{__version__}\n")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "Usage: holdfast"),
        (["confg"], "Did you mean 'config'?"),
        (["config", "shw"], "Did you mean 'show'?"),
        (["config", "show", "-o", "yaml"], "'yaml' is not one of 'table', 'json', 'toml'"),
        (["--nope"], "No such option: --nope"),
        (["version", "more"], "unexpected extra argument"),
    ],
)
def test_wrong_usage_is_explained_on_stderr_and_exits_2(args: list[str], words: str):
    done = holdfast(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_help_lists_every_command_with_its_line():
    done = holdfast("--help")
    assert done.returncode == 0
    assert "Print the version" in done.stdout
    for name, (_, line) in cli.COMMANDS.items():
        assert name in done.stdout
        assert line in done.stdout


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_that_is_listed_can_be_loaded(name: str):
    done = holdfast(name, "--help")
    assert done.returncode == 0
    assert f"Usage: holdfast {name}" in done.stdout


@pytest.mark.parametrize("args", [["--help"], ["version"], ["config", "--help"], ["config", "show", "--help"]])
def test_help_imports_nothing_that_is_slow_to_import(args: list[str]):
    """This is what keeps the start below 150 ms: pydantic, rich or cryptography alone would spend it."""
    done = holdfast(*args, env={"PYTHONPROFILEIMPORTTIME": "1"})
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    slow = {"pydantic", "rich", "cryptography", "structlog", "asyncio", "starlette", "sqlite3", "psycopg"}
    assert not slow & imported
    assert ("holdfast.config" in imported) == (args[0] == "config"), "only the command that is asked for"


class NotFoundError(UserError):
    status = 404


class ConflictError(UserError):
    status = 409


class NotSignedInError(UserError):
    status = 401


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("x"), 1),
        (StoreRefused("x", "y"), 1),
        (SettingRefused("x", "y"), 2),
        (NotSignedInError("x"), 4),
        (ConflictError("x"), 5),
        (NotFoundError("x"), 6),
    ],
)
def test_a_user_error_has_the_exit_code_of_its_kind(error: UserError, code: int):
    assert cli.exit_code(error) == code


def test_a_user_error_from_anywhere_is_a_sentence_a_hint_and_no_traceback():
    program = """
import sys
from holdfast.cli import main as cli
from holdfast.errors import StoreRefused

@cli.app.command()
def broken():
    raise StoreRefused("The database file is truncated.", "Restore it from a backup.")

sys.argv[1:] = ["broken"]
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: The database file is truncated.\nhint: Restore it from a backup.\n"


def test_an_output_that_cannot_be_written_is_said_in_a_sentence():
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "holdfast.cli.main", "help", "exit-codes"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (
        1, "error: It cannot be read or written: No space left on device: the output.\n",
    )  # fmt: skip


def test_a_bug_is_a_traceback_without_local_variables():
    program = f"""
import sys
from holdfast.cli import main as cli

@cli.app.command()
def broken():
    password = "{SENTINEL[:4]}" + "{SENTINEL[4:]}"
    raise RuntimeError("a bug")

sys.argv[1:] = ["broken"]
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert "RuntimeError: a bug" in done.stderr
    assert SENTINEL not in done.stderr
