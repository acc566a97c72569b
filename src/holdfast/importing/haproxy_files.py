"""Where HAProxy is told to find certificates: `crt` of its bind lines, files or folders, and lists of them."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from holdfast.importing import reading
from holdfast.importing.found import ImportTrouble
from holdfast.ports import Tree, Unreadable

_CONFIGURATION: Final = "haproxy/haproxy.cfg"
_MOST: Final = 2_000  # files
_BESIDE: Final = (".key", ".ocsp", ".issuer", ".sctl", ".dh")  # what may lie beside a certificate


def certificates(etc: Tree) -> list[str]:
    """The paths, as HAProxy opens them. Such a file mostly has the key in it, too: what reads it must stop there."""
    try:
        text = (reading.content(etc, _CONFIGURATION) or b"").decode("utf-8", "replace")
    except ImportTrouble:
        return []
    return list(dict.fromkeys(_found(etc, text)))[:_MOST]


def _found(etc: Tree, text: str) -> Iterator[str]:
    base = ""
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["crt-base"] and len(words) == 2:
            base = words[1]
        if words[:1] == ["bind"]:
            for word, path in pairwise(words):
                if word == "crt":
                    yield from _files(etc, posixpath.join(base, path))


def _files(etc: Tree, path: str) -> Iterator[str]:
    """Of a folder, all that is in it."""
    inside = path.removeprefix(etc.shown("").rstrip("/") + "/")
    try:
        names = None if inside == path else etc.names(inside)
    except Unreadable:
        names = None  # the path itself is told of
    if names is None:
        yield path
        return
    yield from (f"{path.rstrip('/')}/{name}" for name in names if not name.endswith(_BESIDE) and name[:1] != ".")
