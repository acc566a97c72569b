"""The adapter of Host: listening sockets with their programs, modes and owners of files, and files without keys."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from holdfast.core.discovery.host import FileFacts, Listener, listening
from holdfast.ports import Unreadable
from holdfast.world import LocalTree

MOST_PROCESSES: Final = 20_000
MOST_LISTENERS: Final = 500
_KEY: Final = b"PRIVATE KEY"


class KeylessTree(LocalTree):
    """A folder of this machine whose files end where a private key begins: not one byte of a key is read."""

    def read(self, path: str, limit: int) -> bytes | None:
        with self._open(path, 0) as handle:
            if handle is None:
                return None
            if not os.path.isfile(f"/proc/self/fd/{handle}"):
                raise Unreadable("it is not a plain file")
            return b"".join(_lines(handle, limit))


def _lines(handle: int, limit: int) -> Iterator[bytes]:
    """Without a buffer, which would read ahead: line by line, until one says that a key follows."""
    size = 0
    with os.fdopen(os.dup(handle), "rb", buffering=0) as file:
        while line := file.readline():
            size += len(line)
            if size > limit:
                raise Unreadable(f"it is longer than {limit} bytes")
            if _KEY in line:
                return
            yield line


class ThisHost:
    """The machine that this process runs on."""

    def __init__(self, ports: Collection[int] = (), proc: Path = Path("/proc")) -> None:
        """`ports`: only what listens there; without any, everything."""
        self._ports, self._proc = ports, proc

    def listeners(self) -> list[Listener]:
        """One for each address and port; of programs of others, their names are known to root only."""
        found = {
            (each.address, each.port): each
            for name in ("tcp", "tcp6")
            for each in listening(self._text(f"net/{name}"))
            if not self._ports or each.port in self._ports
        }
        programs = self._programs({each.inode for each in found.values()})
        return [
            Listener(address=each.address, port=each.port, inode=each.inode, program=programs.get(each.inode, ""))
            for each in sorted(found.values(), key=lambda each: (each.port, each.address))
        ][:MOST_LISTENERS]

    def facts(self, path: str) -> FileFacts | None:
        """Without opening it; of a link, what it leads to."""
        try:
            found = os.stat(path)
        except (OSError, ValueError):
            return None
        try:
            owner = pwd.getpwuid(found.st_uid).pw_name
        except KeyError:
            owner = str(found.st_uid)
        return FileFacts(mode=found.st_mode, owner=owner)

    def _text(self, name: str) -> str:
        try:
            with open(self._proc / name, encoding="ascii", errors="replace") as file:
                return file.read(4 * 1024 * 1024)
        except OSError:
            return ""

    def _programs(self, inodes: set[str]) -> dict[str, str]:
        """By the inode of a socket: the program that holds it open."""
        found: dict[str, str] = {}
        for pid in [each for each in os.listdir(self._proc) if each.isdigit()][:MOST_PROCESSES]:
            for inode in self._sockets(pid) & (inodes - found.keys()):
                found[inode] = self._text(f"{pid}/comm").strip()[:64]
        return found

    def _sockets(self, pid: str) -> set[str]:
        folder = f"{self._proc}/{pid}/fd"
        try:
            links = [_link(f"{folder}/{each}") for each in os.listdir(folder)]
        except OSError:
            return set()  # it ended, or is somebody else's
        return {each[8:-1] for each in links if each.startswith("socket:[")}


class NoSockets(ThisHost):
    """The same machine, of whose sockets nothing is asked."""

    def listeners(self) -> list[Listener]:
        return []


def own_name() -> str:
    """What this machine calls itself."""
    return os.uname().nodename or "localhost"


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
