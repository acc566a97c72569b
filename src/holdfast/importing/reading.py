"""Files of another client, read within bounds; whatever cannot be read is a Trouble that names the file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from holdfast.importing.found import Trouble
from holdfast.ports import Tree, Unreadable

LIMIT: Final = 256 * 1024  # bytes of one file; a chain has a few KiB
_MOST_DEEP: Final = 8
_MOST_FOLDERS: Final = 20_000
READABLE: Final = "Run the import as a user who may read it, usually root."
_NEXT_STEPS: Final = {
    "it is a link": "Copy what it points to into the folder, or import from where that is.",
    "it is longer": "It is not a file of this kind; move it away, and import again.",
    "it is not a plain": "Replace it by a plain file, or move it away, and import again.",
}


def content(tree: Tree, path: str) -> bytes | None:
    """A file, or None if there is none."""
    try:
        return tree.read(path, LIMIT)
    except Unreadable as why:
        raise _trouble(tree, path, why) from None


def required(tree: Tree, path: str, next_step: str) -> bytes:
    found = content(tree, path)
    if found is None:
        raise Trouble(tree.shown(path), "The file is not there.", next_step)
    return found


def text(tree: Tree, path: str) -> str | None:
    found = content(tree, path)
    try:
        return None if found is None else found.decode()
    except UnicodeDecodeError:
        raise Trouble(tree.shown(path), "This is not a text file.", "Restore it from a backup.") from None


def json_object(tree: Tree, path: str) -> Mapping[str, Any] | None:
    found = text(tree, path)
    if found is None:
        return None
    try:
        parsed = json.loads(found)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise Trouble(tree.shown(path), "This is not a JSON object.", "Restore it from a backup.")
    return parsed


def names(tree: Tree, folder: str) -> list[str]:
    """What is in a folder; nothing, if there is no such folder."""
    try:
        return tree.names(folder) or []
    except Unreadable as why:
        raise _trouble(tree, folder, why) from None


def has_folder(tree: Tree, folder: str) -> bool:
    try:
        return tree.names(folder) is not None
    except Unreadable as why:
        raise _trouble(tree, folder, why) from None


def walk(tree: Tree, folder: str = "") -> Iterable[str]:
    """Every path below a folder that is not a folder itself, in order, hidden ones too."""
    to_read, seen = [(folder, 0)], 0
    while to_read:
        current, depth = to_read.pop()
        seen += 1
        if depth > _MOST_DEEP or seen > _MOST_FOLDERS:
            raise Trouble(tree.shown(current), "The folder is nested too deeply.", "Import a folder further below.")
        for name in names(tree, current):
            path = f"{current}/{name}" if current else name
            if _is_folder(tree, path):
                to_read.append((path, depth + 1))
            else:
                yield path


def _is_folder(tree: Tree, path: str) -> bool:
    try:
        return tree.names(path) is not None
    except Unreadable:
        return False  # reading it says what is wrong


def _trouble(tree: Tree, path: str, why: Unreadable) -> Trouble:
    said = str(why)
    step = next((step for start, step in _NEXT_STEPS.items() if said.startswith(start)), READABLE)
    return Trouble(tree.shown(path), f"It cannot be read: {said[:1].lower()}{said[1:]}.", step)
