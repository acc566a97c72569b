"""The adapter of Witness: lines in a file of this machine, synced before anybody hears of what they say."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final

from holdfast.core import witness

SLOT: Final = 1024  # bytes for one head
_LOGS: Final = re.compile(r"witness-\d+\.(old\.)?log")


class WitnessFile:
    """Two files of which the older one is dropped when the newer one is half of the limit.

    Processes that share a folder have a number each: the lock of a number is the kernel's, so a killed process leaves
    none behind, and the next one goes on with its files.
    """

    def __init__(self, folder: Path, *, limit: int) -> None:
        self.folder = folder
        self._half = limit // 2
        self._guard = threading.Lock()
        self._lock, number = _taken(folder)
        self._path = folder / f"witness-{number}.log"
        self._old = folder / f"witness-{number}.old.log"
        self._heads = _opened(folder / f"witness-{number}.head")
        self._log = _opened(self._path)
        self._size = self._whole()

    def append(self, lines: Sequence[bytes]) -> None:
        content = b"".join(lines)
        with self._guard:
            if self._size and self._size + len(content) > self._half:
                self._turn_over()
            try:
                _write_all(self._log, content)
                os.fdatasync(self._log)
            except OSError:
                with contextlib.suppress(OSError):  # so that the next line does not begin in the middle of this one
                    os.ftruncate(self._log, self._size)
                raise
            self._size += len(content)

    def note(self, head: bytes, turn: int) -> None:
        os.pwrite(self._heads, head.ljust(SLOT, b"\n"), turn % 2 * SLOT)

    def heads(self) -> list[bytes]:
        return [os.pread(self._heads, SLOT, place * SLOT).strip(b"\n\0") for place in (0, 1)]

    def contents(self) -> list[bytes]:
        logs = sorted(path for path in self.folder.iterdir() if _LOGS.fullmatch(path.name))
        return [path.read_bytes() for path in sorted(logs, key=lambda path: ".old." not in path.name)]

    def close(self) -> None:
        for handle in (self._log, self._heads, self._lock):
            os.close(handle)

    def _whole(self) -> int:
        """The size of the log; a line that a crash cut is ended, so that it spoils no other."""
        size = os.fstat(self._log).st_size
        if size and os.pread(self._log, 1, size - 1) != b"\n":
            _write_all(self._log, b"\n")
            size += 1
        return size

    def _turn_over(self) -> None:
        self._path.rename(self._old)
        os.close(self._log)
        self._log, self._size = _opened(self._path), 0


def known_installation(folder: Path) -> str:
    """The installation that the witnesses in a folder tell of; empty if there is none."""
    heads = [path.read_bytes() for path in sorted(folder.glob("witness-*.head"))]
    lines = [content[place : place + SLOT].strip(b"\n\0") for content in heads for place in (0, SLOT)]
    head, _ = witness.newest_head(filter(None, lines))
    return "" if head is None else head.installation


def _opened(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.lseek(handle, 0, os.SEEK_END)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return handle


def _taken(folder: Path) -> tuple[int, int]:
    for number in count(1):
        handle = os.open(folder / f"witness-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
        else:
            return handle, number
    raise AssertionError("count() never ends")


def _write_all(handle: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]
