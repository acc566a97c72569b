"""The rules of a swap: a bundle is written beside the current one, and becomes current by one rename of a link.

They hold for folders of this machine (`files`) and of another one (`ssh`): BundleFolders is what differs. Each
certificate has a folder of its own:

    FOLDER/www.example.com/current/fullchain.pem, privkey.pem, cert.pem, chain.pem, combined.pem, roots.pem
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast.core.reasons import Reason
from holdfast.deployers.base import Bundle, Written, refused
from holdfast.ports import BundleFolders, FileAccess, FileContent, Place
from holdfast.secret import Secret

_SAFE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_BUNDLE: Final = re.compile(r"bundle-(\d{1,18})-([0-9a-f]{16})")
FOREIGN: Final = 0  # the number of what was in place before us


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPath:
    """Where a file of a bundle is written as well, because a daemon insists on it."""

    file: str  # of the bundle
    place: Place
    name: str


FIXED: Final = {  # in the order of their renames: a daemon that starts between key and certificate refuses to
    "roots_path": "roots.pem",
    "key_path": "privkey.pem",
    "certificate_path": "fullchain.pem",
    "combined_path": "combined.pem",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """The bundles of one certificate on one target. Raises what its folders raise, and Refused."""

    target: str
    folders: BundleFolders
    place: Place
    access: FileAccess = field(default_factory=FileAccess)
    fixed: tuple[FixedPath, ...] = ()  # in the order of their renames

    @property
    def atomic(self) -> bool:
        """Two renames are not one: a reader may meet a new key and an old certificate."""
        return len({each.file for each in self.fixed} & {"privkey.pem", "fullchain.pem"}) < 2

    async def write(self, bundle: Bundle) -> Written:
        before = await self._adopted()
        self._not_newer(before, bundle)
        if bundle_of(before)[1] == bundle.content_id and await self._fixed_hold(bundle):
            return Written(changed=False, atomic=self.atomic)
        await self._install(bundle)
        await self.folders.prune(self.place, [] if before is None else [before])
        return Written(changed=True, atomic=self.atomic)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        self._not_newer(await self.folders.current(self.place), bundle)
        if previous is not None:
            await self._install(previous)
            return
        kept = [each for each in await self.folders.names(self.place) if -1 < bundle_of(each)[0] < bundle.number]
        if not kept:
            raise refused(f"Target {self.target}: no bundle from before is kept.")
        await self._install_kept(max(kept, key=lambda each: bundle_of(each)[0]))

    def _not_newer(self, there: str | None, bundle: Bundle) -> None:
        if (number := bundle_of(there)[0]) > bundle.number:
            why = f"Target {self.target}: deployment {number} is in place, which is newer."
            raise refused(why, Reason.TARGET_HAS_NEWER)

    async def _install(self, bundle: Bundle) -> None:
        """Fixed paths first: if we die in between, the link still says that there is more to do."""
        files = files_of(bundle)
        await self.folders.put(self.place, name_of(bundle), files, self.access)
        await self._switch(name_of(bundle), files)

    async def _install_kept(self, name: str) -> None:
        within = Place(root=self.place.root, below=(*self.place.below, name))
        read = {each.file: await self.folders.read(within, each.file) for each in self.fixed}
        await self._switch(
            name, {file: _hidden(file, content) for file, content in read.items() if content is not None}
        )

    async def _switch(self, name: str, files: Mapping[str, FileContent]) -> None:
        fixed = [(each.place, each.name, files[each.file]) for each in self.fixed if each.file in files]
        if fixed:
            await self.folders.replace(fixed, self.access)
        await self.folders.switch(self.place, name)

    async def _fixed_hold(self, bundle: Bundle) -> bool:
        files = files_of(bundle)
        wanted = [(each, plain(files[each.file])) for each in self.fixed if each.file in files]
        return all([await self.folders.read(each.place, each.name) == content for each, content in wanted])

    async def _adopted(self) -> str | None:
        """The bundle that is current. What is at fixed paths before the first one is kept, to be rolled back to."""
        current = await self.folders.current(self.place)
        if current is not None:
            return current
        found = {each.file: await self.folders.read(each.place, each.name) for each in self.fixed}
        files = {file: _hidden(file, content) for file, content in found.items() if content is not None}
        if not files:
            return None
        digest = hashlib.sha256(b"".join(map(plain, files.values()))).hexdigest()[:16]
        name = f"bundle-{FOREIGN}-{digest}"
        await self.folders.put(self.place, name, files, self.access)
        return name


def files_of(bundle: Bundle) -> dict[str, FileContent]:
    """By the names that certbot made known."""
    return {
        "privkey.pem": bundle.key,
        "fullchain.pem": bundle.fullchain,
        "combined.pem": bundle.combined,
        "cert.pem": bundle.leaf,
        "chain.pem": bundle.chain,
        **({"roots.pem": bundle.roots} if bundle.roots else {}),
    }


def plain(content: FileContent) -> bytes:
    return content if isinstance(content, bytes) else content.reveal()


def _hidden(file: str, content: bytes) -> FileContent:
    return content if file in ("fullchain.pem", "roots.pem") else Secret(content)


def name_of(bundle: Bundle) -> str:
    return f"bundle-{bundle.number}-{bundle.content_id}"


def folder_name(certificate: str) -> str:
    """A folder for a certificate's name: what no file name should hold is not in it, and no two share one."""
    there = certificate.replace("*", "_")
    if _SAFE.fullmatch(there):
        return there
    return f"certificate-{hashlib.sha256(certificate.encode()).hexdigest()[:16]}"


def bundle_of(name: str | None) -> tuple[int, str]:
    """The number and the content id of a bundle; -1 and nothing, if it is none."""
    found = None if name is None else _BUNDLE.fullmatch(name)
    return (-1, "") if found is None else (int(found[1]), found[2])
