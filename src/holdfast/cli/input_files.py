"""Files and labels that are given to commands: read within limits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from holdfast.errors import Usage, UserError

STDIN: Final = "-"


class NotGiven(UserError):
    code = "file-refused"

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint or "Check the path, and whether you may read the file."


def content(file: Path, limit: int, *, hint: str = "Check the path.") -> bytes:
    """A file that was named, wherever its links lead; '-' is stdin."""
    from holdfast.ports import Unreadable
    from holdfast.world import LocalTree

    if str(file) == STDIN:
        return sys.stdin.buffer.read(limit + 1)
    place = file.expanduser().resolve()
    try:
        found = LocalTree(place.parent).read(place.name, limit)
    except Unreadable as why:
        raise NotGiven(f"{file} cannot be read: {why}.") from None
    if found is None:
        raise NotGiven(f"There is no file {file}.", hint)
    return found


class NotALabel(Usage):
    code = "not-a-label"
    hint = "For example: --label team=web"


def label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise NotALabel(f"{text!r:.60} is no label.")
    return name, value


def filtered(text: str) -> str:
    """A label to look for, as it is sent: refused here, in the words of commands."""
    return "=".join(label(text))
