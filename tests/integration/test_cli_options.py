"""The options that all commands share: declared once, before or after the command's name, and never ignored."""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_texts import wrong
from tests.support.terminal import a_terminal
from typer.main import get_group

from holdfast.cli import derived, everywhere, main
from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import SystemClock

SHARED = {"--config", "--server", "--output", "--columns", "--dry-run", "--idempotency-key", "--yes", "--quiet"}
# They write a form of their own, so -o has another meaning there.
OWN_OUTPUT = {
    *{("config", "show"), ("audit", "verify"), ("key", "status")},
    *{("backup", "verify"), ("backup", "restore"), ("backup", "rehearse")},
}


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[], Engine]:
    """One store is enough here: what commands speak to is tested on both."""
    return lambda: SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())


def leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", {})
    for name, each in inner.items():
        yield from leaves(each, (*path, name))
    if not inner:
        yield path, command


def flags(command: Any) -> set[str]:
    return {flag for each in command.params for flag in each.opts}


@pytest.mark.parametrize("module", sorted({module for module, _ in main.COMMANDS.values() if module}))
def test_no_command_declares_an_option_that_all_commands_have(module: str) -> None:
    app: Any = import_module(module).app
    name = app.info.name
    for path, command in leaves(get_group(app), (name,) if isinstance(name, str) else ()):
        own = flags(command) & SHARED
        assert own <= ({"--output"} if path in OWN_OUTPUT else set()), path


@pytest.mark.parametrize("name", main.COMMANDS)
def test_a_command_has_the_shared_options_of_its_operations_and_no_others(name: str) -> None:
    for path, command in leaves(main.load(name), (name,)):
        rows = derived.commands().get(path, [])
        for field, flag in everywhere.PROMISES.items():
            promised = any(row.get({"dry_run": "dry_runs", "idempotency_key": "keyed"}[field]) for row in rows)
            assert (flag in flags(command)) is promised, path
        assert {"--config", "--quiet", "--no-input"} <= flags(command)


@pytest.mark.parametrize("row", derived.rows(), ids=lambda row: str(row["operation"]))
def test_an_example_uses_the_command_of_its_operation(row: dict[str, Any]) -> None:
    example = row.get("example", "")
    assert not example or example.startswith(f"holdfast {row['command']}")
    assert list(wrong(example)) == []


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["a?dry_run=true", "a#b", "a%2Fpause", "a b", "ä", "..%2f"])
async def test_a_name_on_a_derived_command_leads_nowhere_else(db: Database, tmp_path: Path, name: str) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        said = await typed("issuer", "show", name)
        assert (said.code, f"There is no issuer named {name!r}." in said.err) == (6, True), said.err
        for slashed in ("ca/budget", "../issuers/ca", "ca/pause"):
            assert (await typed("issuer", "show", slashed)).code != 0, slashed


@pytest.mark.anyio
async def test_options_stand_before_or_after_the_name_of_the_command(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path) as typed:
        await typed.ok("issue", "a.example", "--wait")
        after, before = await typed.ok("ls", "-o", "json"), await typed.ok("-o", "json", "ls")
        assert after.json == before.json
        assert [row["name"] for row in before.json] == ["a.example"]
        assert (await typed.ok("--columns", "name", "ls")).out == (await typed.ok("ls", "--columns", "name")).out
        for words in (["--server", "nowhere", "ls"], ["ls", "--server", "nowhere"]):
            said = await typed(*words, env={"HOLDFAST_TOKEN": "t"})
            assert (said.code, "'nowhere' is no address of a server" in said.err) == (2, True), said.err


@pytest.mark.anyio
async def test_a_trial_before_the_name_changes_nothing_and_is_refused_by_commands_that_cannot_try(
    db: Database, tmp_path: Path
) -> None:
    async with a_terminal(db, tmp_path) as typed:
        assert "Nothing was changed" in (await typed.ok("--dry-run", "issue", "a.example")).err
        assert (await typed.ok("ls", "-o", "json")).json == []
        for words in (["--dry-run", "ls"], ["ls", "--dry-run"], ["--idempotency-key", "k", "status"]):
            assert (await typed(*words)).code == 2, words
        said = await typed("--dry-run", "ls")
        assert "'holdfast ls' has no --dry-run." in said.err
