"""The reference of commands, read off the commands themselves."""

from collections.abc import Iterator
from typing import Any

from holdfast.cli.main import COMMANDS, load


def commands() -> str:
    lines = [
        "# Commands",
        "",
        "`holdfast COMMAND --help` says the same. Data goes to stdout, talk to stderr. Exit codes: 0 done or nothing to do; 1 failed;",
        "2 usage; 3 still in progress at the timeout; 4 not let in; 5 conflict; 6 not found; 10 findings or changes; 130 interrupted.",
    ]
    for name in COMMANDS:
        lines += _section(f"holdfast {name}", load(name))
    return "\n".join(lines) + "\n"


def _section(path: str, command: Any, depth: int = 2) -> Iterator[str]:
    yield from ("", f"{'#' * depth} {path}", "", _sentence(command))
    rows = [
        row
        for each in command.params
        if each.name != "help" and not getattr(each, "hidden", False)
        for row in [_row(each)]
    ]
    if rows:
        yield from ("", "| argument or option | what it does |", "|---|---|", *rows)
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from _section(f"{path} {name}", inner, depth + 1)


def _sentence(command: Any) -> str:
    return " ".join((command.help or command.callback.__doc__ or "").split())


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        shown = (parameter.metavar or parameter.name or "").upper()
    else:
        shown = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return f"| `{shown}` | {(parameter.help or '').replace('|', chr(92) + '|')} |"
