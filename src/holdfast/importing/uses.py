"""Where certificates are used: the configuration of nginx, Apache, Postfix and Dovecot, read and never changed.

The folder is that of all configuration, /etc. Files that are included are read as well, within it and within bounds.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from holdfast.importing import reading
from holdfast.importing.daemon_files import DAEMONS, Daemon, Statement
from holdfast.importing.found import FoundCertificate, ImportTrouble
from holdfast.ports import Tree

_MOST_FILES: Final = 2_000  # opened for one daemon
_MOST_DEEP: Final = 10  # includes within includes
_HOST: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+")
_PORT: Final = re.compile(r"(?:.*:)?(\d{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One server of a daemon that reads a certificate."""

    daemon: Daemon
    file: str  # of its configuration
    certificate: str  # the path, as the daemon opens it
    serial: str | None  # of what is there; None: it could not be read here
    key: str | None
    names: tuple[str, ...]
    ports: tuple[str, ...]

    def serves(self, found: FoundCertificate) -> bool:
        """The same file; or a copy or a link, as `acme.sh --install-cert` makes them."""
        return self.certificate == found.file or self.serial == found.serial

    def endpoints(self, found: FoundCertificate) -> list[str]:
        """Where it is seen: under those names of the server that it is for, else under its own."""
        hosts = [each for each in self.names if _HOST.fullmatch(each) and _is_for(found, each)]
        hosts = hosts or [each for each in found.names if _HOST.fullmatch(each)][:1]
        return [self.daemon.place.format(name=host, port=port) for host in hosts for port in self.ports]


def _is_for(found: FoundCertificate, host: str) -> bool:
    return bool({host, f"*.{host.partition('.')[2]}"} & set(found.names))


def read(tree: Tree) -> tuple[list[Use], list[str]]:
    """Every use, and what could not be looked at."""
    uses, notes = [], []
    for daemon in DAEMONS:
        for file in daemon.files:
            files = _Files(tree, daemon, file.partition("/")[0])
            uses += [use for block in files.blocks(file) for use in _uses(files, block)]
            notes += files.notes
    return list(dict.fromkeys(uses)), list(dict.fromkeys(notes))


# ── Blocks ──


@dataclass(slots=True, eq=False)
class _Block:
    """What one pair of braces says; the rest it has from the one around it."""

    head: Statement
    file: str
    around: _Block | None = None
    said: list[Statement] = field(default_factory=list)

    def values(self, words: Iterable[str]) -> list[str]:
        block: _Block | None = self
        while block is not None:
            if found := [value for first, *values in block.said if first in words for value in values]:
                return found
            block = block.around
        return []


class _Files:
    """The files of one daemon."""

    def __init__(self, tree: Tree, daemon: Daemon, folder: str) -> None:
        self.tree, self.daemon, self.notes = tree, daemon, list[str]()
        self._root, self._folder, self._opened = tree.shown("").rstrip("/"), folder, 0

    def blocks(self, file: str) -> list[_Block]:
        """The servers, complete only when all is read: what stands around them may come after them."""
        top = current = _Block((), file)
        found = [top] if not self.daemon.block else []
        for where, statement in self._statements(file, 0):
            if statement[0] == "{":
                current = _Block(statement[1:], where, current)
                found += [current] if self.daemon.block in statement[1:2] else []
            elif statement[0] == "}":
                current = current.around or top
            else:
                current.said.append(statement)
        return found

    def _statements(self, file: str, depth: int) -> Iterator[tuple[str, Statement]]:
        for statement in self.daemon.statements(self._text(file)):
            if statement[0] not in self.daemon.includes:
                yield file, statement
            elif depth < _MOST_DEEP:
                for each in self._matching(" ".join(statement[1:]), posixpath.dirname(file)):
                    yield from self._statements(each, depth + 1)

    def _text(self, file: str) -> str:
        self._opened += 1
        if self._opened > _MOST_FILES:
            self.notes.append(
                f"{self.daemon.preset} includes more than {_MOST_FILES} files: the others were not looked at."
            )
            return ""
        try:
            return (reading.content(self.tree, file) or b"").decode("utf-8", "replace")
        except ImportTrouble as trouble:
            self.notes.append(f"{trouble.problem.file}: {trouble.problem.problem} What it uses is not known.")
            return ""

    def _matching(self, pattern: str, beside: str) -> list[str]:
        """The files below the folder of all that an include means, by name."""
        inside = self.inside(pattern, beside)
        found = [""] if inside is not None else []
        for part in (inside or "").split("/"):
            found = [posixpath.join(folder, name) for folder in found for name in self._named(folder, part)]
        return found[: _MOST_FILES + 1]

    def _named(self, folder: str, part: str) -> list[str]:
        if not set(part) & set("*?["):
            return [part]
        try:
            names = reading.file_names(self.tree, folder)
        except ImportTrouble:
            return []
        return [name for name in names if fnmatchcase(name, part) and not name.startswith(".")]

    def absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._root, self._folder, path))

    def inside(self, path: str, beside: str = "") -> str | None:
        """The path below the folder of all; None if it leads out."""
        base = beside if self.daemon.counts_from_file else self._folder
        full = posixpath.normpath(posixpath.join(self._root, base, path))
        return full.removeprefix(f"{self._root}/") if full.startswith(f"{self._root}/") else None


# ── Uses ──


def _uses(files: _Files, block: _Block) -> list[Use]:
    daemon = files.daemon
    keys = [files.absolute(each) for each in block.values(daemon.key)]
    paths = [files.absolute(each) for each in block.values(daemon.certificate)]
    return [
        Use(
            daemon=daemon,
            file=files.tree.shown(block.file),
            certificate=files.tree.shown(path),
            serial=_serial(files, path),
            key=None if key is None else files.tree.shown(key),
            names=tuple(map(_host, block.values(daemon.names))),
            ports=_ports(daemon, block),
        )
        for path, key in zip(paths, [*keys, *[None] * len(paths)], strict=False)
    ]


def _serial(files: _Files, path: str) -> str | None:
    inside = files.inside(path)
    try:
        content = None if inside is None else reading.content(files.tree, inside)
        return f"{reading.certificates(content, path)[0].serial_number:x}" if content else None
    except ImportTrouble:
        return None


def _host(written: str) -> str:
    """Apache may have a scheme and a port there."""
    return written.rpartition("//")[2].partition(":")[0].lower()


def _ports(daemon: Daemon, block: _Block) -> tuple[str, ...]:
    """Those of nginx's `listen … ssl`, and of `<VirtualHost *:443>`."""
    listens = [words[1] for words in block.said if words[0] == "listen" and "ssl" in words[2:]]
    heard = [_PORT.fullmatch(each) for each in (*listens, *block.head[1:])]
    return tuple(dict.fromkeys(each[1] for each in heard if each is not None)) or (daemon.port,)
