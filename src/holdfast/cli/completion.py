"""`holdfast completion`: scripts for shells, and what they ask: commands, options, and the names that there are now."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

import typer

if TYPE_CHECKING:
    from typer._click import Command

app = typer.Typer()
_SAFE: Final = re.compile(r"[\w.@:/+*%,=-]+")
NAMES: Final = 200  # live ones, at most: more is no help

SCRIPTS: Final = {
    "bash": """\
_holdfast() {
    local IFS=$'\\n'
    COMPREPLY=($(holdfast __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _holdfast holdfast""",
    "zsh": """\
#compdef holdfast
_holdfast() {
    local -a found
    found=("${(@f)$(holdfast __complete -- "${words[@]:1:$((CURRENT-1))}" 2>/dev/null)}")
    [[ -n $found ]] && compadd -a found
}
compdef _holdfast holdfast""",
    "fish": """\
complete -c holdfast -f -a '(holdfast __complete -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'""",
}
HOW: Final = {
    "bash": "holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast",
    "zsh": "holdfast completion zsh > ~/.zfunc/_holdfast   (with fpath+=~/.zfunc before compinit)",
    "fish": "holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
}


@app.command("completion")
def completion(shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish")]) -> None:
    """Print the script that completes commands, options and live names."""
    from holdfast.cli.terminal import say

    print(SCRIPTS[shell])
    if sys.stdout.isatty():
        say(f"\n# Keep it: {HOW[shell]}")


@app.command("__complete", hidden=True)
def complete(words: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Print the words that can replace the last of these words."""
    for each in found(words or [""]):
        print(each)


def found(words: Sequence[str]) -> list[str]:
    from holdfast.cli import main

    *before, prefix = words
    name = next((word for word in before if word in main.COMMANDS), None)  # after options of the whole program
    if name is None:
        return [] if before and not before[0].startswith("-") else _fitting(prefix, main.COMMANDS)
    return _of(main.load(name), before[before.index(name) + 1 :], prefix)


def _of(command: Command, before: Sequence[str], prefix: str) -> list[str]:
    """Of a group, its commands; of a command, its options, the choices of one, or live names."""
    inner: dict[str, Command] = getattr(command, "commands", {})
    if inner:
        chosen = next((word for word in before if word in inner), None)
        if chosen is None:
            return _fitting(prefix, inner)
        return _of(inner[chosen], before[before.index(chosen) + 1 :], prefix)
    by_option = {flag: each for each in command.params for flag in each.opts if flag.startswith("-")}
    if before and before[-1] in by_option and not getattr(by_option[before[-1]], "is_flag", False):
        option = by_option[before[-1]]
        return _fitting(prefix, _choices(option)) or _live(option.opts, prefix)
    if prefix.startswith("-"):
        return _fitting(prefix, [flag for flag in by_option if flag.startswith("--")])
    return _live([_metavar(each) for each in command.params if not each.opts[0].startswith("-")], prefix)


def _choices(option: Any) -> Iterable[str]:
    return [each for each in get_args(option.type_descriptor.annotation) if isinstance(each, str)]


def _metavar(argument: Any) -> str:
    """The word that says what it is: [REPLICA] and [NOTIFICATION]... are one that may be left out, or several."""
    return str(argument.metavar or "").strip("[].")


# What an argument or an option names: where those that there are now are listed, and which field it is.
_LISTED: Final = {
    "CERT": ("/certificates", "name"),
    "CERT|JOB": ("/certificates", "name"),
    "CA": ("/cas", "ca"),
    "ISSUER": ("/issuers", "name"),
    "--ca": ("/cas", "ca"),
    "--issuer": ("/issuers", "name"),
    "--owner": ("/certificates", "owner"),
    "APPROVAL": ("/approvals", "id"),
    "NOTIFICATION": ("/notifications", "id"),
    "CHANNEL": ("/channels", "name"),
    "JOB": ("/jobs", "id"),
    "TOKEN": ("/tokens", "id"),
    "REPLICA": ("/cluster", "name"),
}


def _live(wanted: Iterable[str], prefix: str) -> list[str]:
    """The existing names that fit the argument; none if the server does not answer."""
    listed = next((_LISTED[each] for each in wanted if each in _LISTED), None)
    try:
        return [] if listed is None else _fitting(prefix, _names(*listed, prefix))
    except Exception:
        return []  # at a prompt, an error is only in the way


def _names(path: str, field: str, prefix: str) -> set[str]:
    from holdfast.cli import client
    from holdfast.cli.installation.config import settings

    query: dict[str, Any] = {} if path in ("/cluster", "/channels") else {"limit": NAMES}
    query |= {"q": prefix} if (path, field) == ("/certificates", "name") and prefix else {}
    with client.here(settings()) as line:
        found = line.get(path, **query)
    rows = found if isinstance(found, list) else found.get("items", found.get("replicas"))
    return {str(row[field]) for row in rows if row[field]}


def _fitting(prefix: str, words: Iterable[str]) -> list[str]:
    """Names are other people's text, and bash puts them on the line as they are: what it would run is left out."""
    fit = (word for word in words if word.startswith(prefix) and not word.startswith("__"))
    return sorted(word for word in fit if _SAFE.fullmatch(word))
