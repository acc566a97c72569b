"""Folders of bundles on another machine, by SFTP: the adapter of BundleFolders for targets of the kind `ssh`.

SFTP has neither locks nor handles of folders. That no two replicas write at once is up to the lease of the job; a user
of that machine who may change the folders is trusted, and each step below them is looked at before it is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import asyncssh

from holdfast.deployers.swapping import plain
from holdfast.ports import FileAccess, FileContent, Place, Random, Unreadable

if TYPE_CHECKING:
    from asyncssh import SFTPAttrs, SFTPClient

CURRENT: Final = "current"
BUNDLE: Final = "bundle-"
FILE, FOLDER, LINK = asyncssh.FILEXFER_TYPE_REGULAR, asyncssh.FILEXFER_TYPE_DIRECTORY, asyncssh.FILEXFER_TYPE_SYMLINK
_MOST: Final = 1024 * 1024  # bytes of a file: no bundle has more
_NEW: Final = asyncssh.FXF_WRITE | asyncssh.FXF_CREAT | asyncssh.FXF_EXCL


@dataclass(frozen=True, slots=True)
class SftpFolders:
    sftp: SFTPClient
    random: Random

    async def current(self, place: Place) -> str | None:
        folder = await self._folder(place)
        there = None if folder is None else await self._look(f"{folder}/{CURRENT}")
        if there is None:
            return None
        if there.type != LINK:
            raise Unreadable(f"{folder}/{CURRENT} is there, and is no link of ours")
        found = str(await self.sftp.readlink(f"{folder}/{CURRENT}"))
        if not found.startswith(BUNDLE) or "/" in found:
            raise Unreadable(f"{folder}/{CURRENT} leads to somewhere else")
        return found

    async def names(self, place: Place) -> list[str]:
        folder = await self._folder(place)
        found = [] if folder is None else [str(each) for each in await self.sftp.listdir(folder)]
        return sorted(each for each in found if each.startswith(BUNDLE))

    async def read(self, place: Place, name: str) -> bytes | None:
        folder = await self._folder(place)
        return None if folder is None else await self._content(f"{folder}/{name}")

    async def put(self, place: Place, name: str, files: Mapping[str, FileContent], access: FileAccess) -> None:
        folder = await self._folder(place, make=True)
        new, temporary = f"{folder}/{name}", f"{folder}/.{name}.{self._token()}"
        if await self._holds(new, files):
            return
        await self.sftp.mkdir(temporary, asyncssh.SFTPAttrs(permissions=0o700))
        try:
            for each, content in files.items():
                before = await self._look(f"{folder}/{CURRENT}/{each}")
                await self._upload(f"{temporary}/{each}", content, access, before)
            if not await self._holds(temporary, files):
                raise Unreadable(f"a file in {temporary} reads other than it was written")
            await self.sftp.chmod(temporary, 0o755)  # its keys have modes of their own
            await self._remove(new)  # left behind by a crash, or tampered with
            await self.sftp.posix_rename(temporary, new)
        except BaseException:
            with suppress(asyncssh.Error):
                await self._remove(temporary)
            raise

    async def switch(self, place: Place, name: str) -> None:
        folder = await self._folder(place)
        there = None if folder is None else await self._look(f"{folder}/{name}")
        if there is None or there.type != FOLDER:
            raise Unreadable(f"{name} is no bundle: {CURRENT} never leads to nothing")
        if await self.current(place) == name:
            return
        temporary = f"{folder}/.{CURRENT}.{self._token()}"
        await self.sftp.symlink(name, temporary)
        await self.sftp.posix_rename(temporary, f"{folder}/{CURRENT}")

    async def prune(self, place: Place, keep: Collection[str]) -> None:
        kept, folder = {*keep, await self.current(place)}, await self._folder(place)
        for each in [] if folder is None else map(str, await self.sftp.listdir(folder)):
            left = each.startswith((f".{BUNDLE}", f".{CURRENT}."))
            if left or (each.startswith(BUNDLE) and each not in kept):
                await self._remove(f"{folder}/{each}")

    async def replace(self, files: Sequence[tuple[Place, str, FileContent]], access: FileAccess) -> None:
        written: list[tuple[str, str]] = []
        try:
            for place, name, content in files:
                folder = await self._folder(place)
                if folder is None:
                    raise Unreadable(f"there is no folder for {name}")
                temporary = f"{folder}/.{name}.{self._token()}"
                written.append((temporary, f"{folder}/{name}"))
                await self._upload(temporary, content, access, await self._look(f"{folder}/{name}"))
            for temporary, path in written:
                await self.sftp.posix_rename(temporary, path)
        except BaseException:
            for temporary, _ in written:
                with suppress(asyncssh.Error):
                    await self._remove(temporary)
            raise

    # ── One file, one folder ──

    def _token(self) -> str:
        return self.random.token(8).hex()

    async def _folder(self, place: Place, *, make: bool = False) -> str | None:
        """The path of a folder, step by step: a symbolic link below the root ends the walk."""
        path = str(place.root)
        if not await self.sftp.isdir(path):
            raise Unreadable(f"there is no folder {path}")
        for part in place.below:
            path = f"{path.rstrip('/')}/{part}"
            if part in ("", ".", "..") or "/" in part:
                raise Unreadable("a folder of a target leads nowhere else")
            there = await self._look(path)
            if there is None and not make:
                return None
            if there is None:
                await self.sftp.mkdir(path, asyncssh.SFTPAttrs(permissions=0o755))
            elif there.type != FOLDER:
                raise Unreadable(f"{path} is a link, or no folder")
        return path

    async def _content(self, path: str) -> bytes | None:
        there = await self._look(path)
        if there is None:
            return None
        if there.type != FILE:
            raise Unreadable(f"{path} is not a plain file")
        async with self.sftp.open(path, asyncssh.FXF_READ, encoding=None) as file:
            return plain(await file.read(_MOST))  # type: ignore[arg-type]

    async def _holds(self, folder: str, files: Mapping[str, FileContent]) -> bool:
        return all([await self._content(f"{folder}/{name}") == plain(content) for name, content in files.items()])

    async def _look(self, path: str) -> SFTPAttrs | None:
        """What is at a path, if anything; a link is not followed."""
        try:
            return await self.sftp.lstat(path)
        except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
            return None

    async def _upload(self, path: str, content: FileContent, access: FileAccess, before: SFTPAttrs | None) -> None:
        """It has its owner and mode from the first byte on; another one's file of that name ends the deployment."""
        old = None if before is None or before.permissions is None else before.permissions & 0o777
        mode = access.mode(old, public=isinstance(content, bytes))
        private = asyncssh.SFTPAttrs(permissions=mode & 0o700)
        async with self.sftp.open(path, _NEW, private, encoding=None) as file:
            if before is not None:
                await self._as_before(file, before)
            await file.setstat(asyncssh.SFTPAttrs(permissions=mode))
            await file.write(plain(content))
            with suppress(asyncssh.SFTPOpUnsupported):
                await file.fsync()

    async def _as_before(self, file: asyncssh.SFTPClientFile, before: SFTPAttrs) -> None:
        made = await file.stat()
        if (made.uid, made.gid) != (before.uid, before.gid):
            await file.setstat(asyncssh.SFTPAttrs(uid=before.uid, gid=before.gid))

    async def _remove(self, path: str) -> None:
        there = await self._look(path)
        if there is not None:
            await (self.sftp.rmtree(path) if there.type == FOLDER else self.sftp.remove(path))
