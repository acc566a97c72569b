"""The adapter of BundleFolders: bundles in folders of this machine, swapped by the rename of one link.

A reader of `current/…` meets the old bundle or the new one. No file is readable to others for a moment: it gets its
owner and mode while it is empty.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import grp
import os
import pwd
import secrets
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.ports import FileAccess, FileContent, Place, Points, Unreadable, no_points

CURRENT: Final = "current"
BUNDLE: Final = "bundle-"  # how the names of bundles begin
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CARRIED: Final = ("system.posix_acl_access", "security.selinux")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """Owner, mode and labels of a file."""

    uid: int
    gid: int
    mode: int
    labels: Mapping[str, bytes]


class LocalBundles:
    def __init__(self, points: Points = no_points) -> None:
        self._points = points

    async def current(self, place: Place) -> str | None:
        return await asyncio.to_thread(self._current, place)

    async def names(self, place: Place) -> list[str]:
        return await asyncio.to_thread(self._names, place)

    async def read(self, place: Place, name: str) -> bytes | None:
        return await asyncio.to_thread(self._read, place, name)

    async def put(self, place: Place, name: str, files: Mapping[str, FileContent], access: FileAccess) -> None:
        await asyncio.to_thread(self._put, place, name, files, access)

    async def switch(self, place: Place, name: str) -> None:
        await asyncio.to_thread(self._switch, place, name)

    async def prune(self, place: Place, keep: Collection[str]) -> None:
        await asyncio.to_thread(self._prune, place, keep)

    async def replace(self, files: Sequence[tuple[Place, str, FileContent]], access: FileAccess) -> None:
        await asyncio.to_thread(self._replace, files, access)

    # ── Looking ──

    def _current(self, place: Place) -> str | None:
        with _within(place, make=False) as folder:
            return None if folder is None else _link(folder)

    def _names(self, place: Place) -> list[str]:
        with _within(place, make=False) as folder:
            return [] if folder is None else sorted(each for each in os.listdir(folder) if each.startswith(BUNDLE))

    def _read(self, place: Place, name: str) -> bytes | None:
        with _within(place, make=False) as folder:
            return None if folder is None else _content(folder, name)

    # ── Writing a bundle ──

    def _put(self, place: Place, name: str, files: Mapping[str, FileContent], access: FileAccess) -> None:
        with _within(place, make=True) as folder, _locked(folder):
            if folder is None:
                raise FileNotFoundError(2, "the folder was removed meanwhile")
            if _holds(folder, name, files):
                return
            before = _link(folder)
            temporary = f".{name}.{secrets.token_hex(8)}"
            os.mkdir(temporary, 0o700, dir_fd=folder)
            try:
                self._fill(folder, temporary, before, files, access)
                _remove(folder, name)  # left behind by a crash, or tampered with: it is not what it should be
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                _remove(folder, temporary)
                raise
            os.fsync(folder)
        self._points("bundle.written")

    def _fill(
        self, folder: int, temporary: str, before: str | None, files: Mapping[str, FileContent], access: FileAccess
    ) -> None:
        with _opened(temporary, _FOLDER, folder) as new:
            for each, content in files.items():
                old = None if before is None else _look(folder, f"{before}/{each}")
                _write(new, each, content, _wanted(old, access, public=isinstance(content, bytes)))
            if not _same(new, files):
                raise OSError(5, "a file reads other than it was written")
            os.fchmod(new, 0o755)  # its keys have modes of their own
            os.fsync(new)

    def _switch(self, place: Place, name: str) -> None:
        with _within(place, make=False) as folder, _locked(folder):
            if folder is None:
                raise FileNotFoundError(2, "there is no such folder")
            with _opened(name, _FOLDER, folder):
                pass  # `current` never leads to nothing
            if _link(folder) == name:
                return
            temporary = f".{CURRENT}.{secrets.token_hex(8)}"
            os.symlink(name, temporary, dir_fd=folder)
            try:
                os.rename(temporary, CURRENT, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(temporary, dir_fd=folder)
                raise
            os.fsync(folder)
        self._points("bundle.switched")

    def _prune(self, place: Place, keep: Collection[str]) -> None:
        with _within(place, make=False) as folder, _locked(folder):
            if folder is None:
                return
            kept = {*keep, _link(folder)}
            for each in os.listdir(folder):
                left = each.startswith((f".{BUNDLE}", f".{CURRENT}."))
                if left or (each.startswith(BUNDLE) and each not in kept):
                    _remove(folder, each)

    # ── Fixed paths ──

    def _replace(self, files: Sequence[tuple[Place, str, FileContent]], access: FileAccess) -> None:
        """Not atomic: between two renames a reader may meet a new key and an old certificate."""
        with contextlib.ExitStack() as stack:
            written = []
            for place, name, content in files:
                folder = stack.enter_context(_within(place, make=False))
                if folder is None:
                    raise FileNotFoundError(2, f"there is no folder for {name}")
                temporary = f".{name}.{secrets.token_hex(8)}"
                public = isinstance(content, bytes)
                _write(folder, temporary, content, _wanted(_look(folder, name), access, public=public))
                stack.callback(_remove, folder, temporary)
                written.append((folder, temporary, name))
            for folder, temporary, name in written:
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
                self._points("bundle.replacing")


# ── Files by the handle of their folder ──


@contextlib.contextmanager
def _opened(name: str, flags: int, folder: int | None = None) -> Iterator[int]:
    handle = os.open(name, flags, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def _within(place: Place, *, make: bool) -> Iterator[int | None]:
    """A handle of the folder, opened step by step: a symbolic link below the root ends the walk."""
    with contextlib.ExitStack() as stack:
        handle = stack.enter_context(_opened(str(place.root), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        _trusted(handle, str(place.root))
        for part in place.below:
            if part in ("", ".", "..") or "/" in part or "\0" in part:
                raise Unreadable("a folder of a target leads nowhere else")
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=handle)
            try:
                handle = stack.enter_context(_opened(part, _FOLDER, handle))
            except FileNotFoundError:
                yield None
                return
            except NotADirectoryError:
                raise Unreadable(f"{part} is a link, or no folder") from None
            _trusted(handle, part)
        yield handle


def _trusted(handle: int, name: str) -> None:
    """A folder that others may change could be swapped for another between two steps."""
    found = os.fstat(handle)
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & stat.S_IWOTH:
        raise Unreadable(f"{name} belongs to another user, or everybody may write to it")


@contextlib.contextmanager
def _locked(folder: int | None) -> Iterator[None]:
    """BlockingIOError while another program changes the folder."""
    if folder is None:
        yield
        return
    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)


def _link(folder: int) -> str | None:
    try:
        found = os.readlink(CURRENT, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError:
        raise Unreadable(f"{CURRENT} is there, and is no link of ours") from None
    if not found.startswith(BUNDLE) or "/" in found:
        raise Unreadable(f"{CURRENT} leads to somewhere else")
    return found


def _content(folder: int, name: str) -> bytes | None:
    try:
        with _opened(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, folder) as handle:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise Unreadable(f"{name} is not a plain file")
            with os.fdopen(os.dup(handle), "rb") as file:
                return file.read()
    except FileNotFoundError:
        return None


def _write(folder: int, name: str, content: FileContent, look: _Look) -> None:
    with _opened_new(name, folder) as handle:
        if (look.uid, look.gid) != (os.geteuid(), os.getegid()):
            os.fchown(handle, look.uid, look.gid)
        os.fchmod(handle, look.mode)
        for label, value in look.labels.items():
            with contextlib.suppress(OSError):  # a file system without them
                os.setxattr(handle, label, value)
        left = memoryview(_plain(content))
        while left:
            left = left[os.write(handle, left) :]
        os.fsync(handle)


@contextlib.contextmanager
def _opened_new(name: str, folder: int) -> Iterator[int]:
    handle = os.open(name, _NEW, 0o600, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)


def _look(folder: int, path: str) -> _Look | None:
    try:
        with _opened(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, folder) as handle:
            found = os.fstat(handle)
            labels = {}
            for each in _CARRIED:
                with contextlib.suppress(OSError):
                    labels[each] = os.getxattr(handle, each)
            return _Look(uid=found.st_uid, gid=found.st_gid, mode=stat.S_IMODE(found.st_mode), labels=labels)
    except OSError:
        return None


def _wanted(old: _Look | None, access: FileAccess, *, public: bool) -> _Look:
    uid = pwd.getpwnam(access.owner).pw_uid if access.owner else old.uid if old else os.geteuid()
    gid = grp.getgrnam(access.group).gr_gid if access.group else old.gid if old else os.getegid()
    mode = access.mode(None if old is None else old.mode, public=public)
    return _Look(uid=uid, gid=gid, mode=mode, labels={} if old is None else old.labels)


def _plain(content: FileContent) -> bytes:
    return content if isinstance(content, bytes) else content.reveal()


def _holds(folder: int, name: str, files: Mapping[str, FileContent]) -> bool:
    try:
        with _opened(name, _FOLDER, folder) as there:
            return _same(there, files)
    except OSError:
        return False


def _same(folder: int, files: Mapping[str, FileContent]) -> bool:
    return all(_content(folder, name) == _plain(content) for name, content in files.items())


def _remove(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
