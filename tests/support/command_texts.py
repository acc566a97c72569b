"""Commands that our own texts tell people to type, held against the commands that there are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.cli.main import COMMANDS, load

# Words end at a quote or at the end of a sentence; a dot within a word is a part of it.
_WORD = r"(?:[^\s`'\"().,;:|&>]|[.](?=\w))+"
_COMMAND = re.compile(rf"holdfast ({_WORD}(?: {_WORD})*)")


def texts(path: Path) -> Iterator[str]:
    """The literals of a module; what is put into them when they are used counts as one word."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    formatted = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    for each in formatted:
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in each.values)
    parts = {id(part) for each in formatted for part in each.values}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def wrong(text: str) -> Iterator[str]:
    """What nobody could type: commands and options that do not exist, and arguments that are missing."""
    for found in _COMMAND.finditer(text):
        words = found[1].split()
        if words[0] in COMMANDS and (why := _wrong(words)):
            yield f"holdfast {found[1]}: {why}"


def _wrong(words: Sequence[str]) -> str:
    command, rest = _command(words[0]), list(words[1:])
    while (inner := getattr(command, "commands", None)) and rest and not rest[0].startswith("-"):
        if rest[0] not in inner:
            return "" if rest[0] == "…" else f"there is no command {rest[0]}"
        command = inner[rest.pop(0)]
    options = {name: each for each in command.params for name in (*each.opts, *each.secondary_opts)}
    unknown = [each for each in rest if each.startswith("--") and each.partition("=")[0] not in {*options, "--help"}]
    if unknown:
        return f"there is no option {unknown[0]}"
    if not rest or "--help" in rest or hasattr(command, "commands"):  # named, and not told to be typed like that
        return ""
    needed = [each.name for each in command.params if each.param_type_name == "argument" and each.required]
    return f"it needs {needed}" if len(_arguments(rest, options)) < len(needed) else ""


def _arguments(words: Sequence[str], options: dict[str, Any]) -> list[str]:
    found, values = [], 0
    for word in words:
        if word.startswith("-"):
            values = 0 if "=" in word or getattr(options.get(word), "is_flag", False) else 1
        elif values:
            values -= 1
        else:
            found.append(word)
    return found


@cache
def _command(name: str) -> Any:
    return load(name)
