"""The options that every command has, declared once: accepted before the command's name and after it alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import typer
from typer._click.globals import get_current_context
from typer.main import get_command

from holdfast.errors import Usage

if TYPE_CHECKING:
    from typer._click import Command

Format = Literal["table", "wide", "csv", "json", "yaml", "jsonl", "name"]
CONFIG_VARIABLE: Final = "HOLDFAST_CONFIG"
SERVER_VARIABLE: Final = "HOLDFAST_SERVER_URL"
_HERE: Final = "holdfast.everywhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The values of the options that all commands share."""

    config: Path | None = None
    server: str | None = None
    output: Format = "table"
    columns: str | None = None
    dry_run: bool = False
    idempotency_key: str | None = None
    yes: bool = False
    quiet: bool = False
    no_input: bool = False


ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", envvar=CONFIG_VARIABLE, show_envvar=True, help="TOML file with settings."),
]
ServerOption = Annotated[
    str | None,
    typer.Option("--server", envvar=SERVER_VARIABLE, show_envvar=True, help="Address of a server elsewhere."),
]
OutputOption = Annotated[Format | None, typer.Option("--output", "-o", help="How to write the result.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print data and errors only.")]
NoInputOption = Annotated[bool, typer.Option("--no-input", help="Never ask: a command that would have to ask fails.")]


def options(
    config: ConfigOption = None,
    server: ServerOption = None,
    output: OutputOption = None,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="A,B", help="Only these columns of a table, in this order.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", help="Repeat a command with the same key: it happens once.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask back.")] = False,
    quiet: QuietOption = False,
    no_input: NoInputOption = False,
) -> None:
    """Only its parameters are used."""


F = TypeVar("F", bound=Callable[..., None])


def taking_options(function: F) -> F:
    """Give the function of the whole program all of these options; it takes them as `**shared`."""
    own = [each for each in inspect.signature(function, eval_str=True).parameters.values() if each.name != "shared"]
    shared = inspect.signature(options, eval_str=True).parameters.values()
    function.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
    return function


QUIETLY: Final = frozenset({"config", "server", "columns", "quiet", "no_input"})  # not repeated on every help page
EPILOG: Final = "Every command also takes --config, --server, --columns, --quiet and --no-input: see holdfast --help."
# A command that has none of these cannot do what they promise, so it refuses them, given before its name, too.
PROMISES: Final = {"dry_run": "--dry-run", "idempotency_key": "--idempotency-key"}
# Which of them a command has that is no declared operation.
Row = Mapping[str, Any]  # an object of the API, as JSON gives it
Display = Callable[[Any], None]  # shows a result: an object, or a list of them
Displays = Mapping[str, Display]  # by the name of the operation
PLAIN: Final = frozenset({"config", "server", "output", "columns", "quiet", "no_input"})


# Exit codes besides 0; main.py has those of errors. FINDINGS is also for changes: plan, doctor, status --check.
FAILED: Final = 1
IN_PROGRESS: Final = 3
FINDINGS: Final = 10
DETACHED: Final = 130


def chosen() -> Chosen:
    """The values that stand after the command's name or before it."""
    context = get_current_context(silent=True)
    found = None if context is None else context.find_root().meta.get(_HERE)
    return found if isinstance(found, Chosen) else Chosen()


def remember(given: Row) -> None:
    """Add values to those that stood before the command's name."""
    known = {each.name for each in fields(Chosen)}
    said = {name: value for name, value in given.items() if name in known and value not in (None, False)}
    get_current_context().find_root().meta[_HERE] = replace(chosen(), **said)


class NotForThis(Usage):
    code = "option-refused"
    hint = "See which options it has: the same command with --help. Nothing was done."

    def __init__(self, flag: str, path: str) -> None:
        super().__init__(f"'{path}' has no {flag}.")


def _refuse_others(names: Collection[str]) -> None:
    """An option that stands before the command's name must not be ignored."""
    for name, flag in PROMISES.items():
        if name not in names and getattr(chosen(), name):
            raise NotForThis(flag, get_current_context().command_path)


def in_plain_words(command: Command, example: str) -> None:
    """On the help page: names of values instead of types of the program, and an example."""
    for each in [param for param in command.params if param.name != "help"]:
        if each.param_type_name == "argument":
            each.display_type_rich = lambda ctx: None  # type: ignore[attr-defined]
            each.metavar = None if each.metavar is None else each.metavar.strip("[]")
        elif each.metavar is None and not _has_choices(each):
            each.metavar = str(each.name).rpartition("_")[2].upper()
    if example:
        command.epilog = f"Example: {example}\n\n{command.epilog or ''}"


def _has_choices(param: Any) -> bool:
    return "|" in (param.display_type(get_current_context(silent=True)) or "")


def with_options(command: Command, names: Iterable[str]) -> Command:
    """Give a command the options of these names, except those that it declares itself."""
    wrapped: Callable[..., Any] | None = command.callback
    own = {word for each in command.params for word in (*each.opts, str(each.name))}
    probe = typer.Typer(add_completion=False, rich_markup_mode=None)
    probe.command()(options)
    wanted = set(names)
    offered = wanted | {"yes"}  # a command that never asks keeps that promise anyway
    more = [
        each for each in get_command(probe).params if each.name in offered and not own & {*each.opts, str(each.name)}
    ]
    added = {str(each.name) for each in more}

    def run(**given: object) -> object:
        remember({name: given.pop(name, None) for name in added})
        if not getattr(command, "commands", {}):  # of a group, the command in it decides
            _refuse_others(wanted)
        return None if wrapped is None else wrapped(**given)

    for each in more:
        each.hidden = each.name in QUIETLY or each.name not in wanted  # type: ignore[attr-defined]
    command.params = [*command.params, *more]
    command.epilog = EPILOG
    command.callback = run
    return command
