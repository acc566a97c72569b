"""Files of this machine: bundles in a folder, of which a link names the current one; a program tests, another reloads.

Each certificate has a folder of its own below that of the target:

    FOLDER/www.example.com/current/fullchain.pem, privkey.pem, cert.pem, chain.pem, combined.pem

`current` is a link, and one rename of it swaps all files at once. Where a daemon insists on files in other places, they
are written there as well, one rename after the other: that is not atomic, and the deployment says so.
"""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import Field

from holdfast.core.kind import Kind, Trait
from holdfast.core.reasons import Reason
from holdfast.core.target import DeployLimits
from holdfast.deployers.base import Bundle, Written, later, refused
from holdfast.deployers.kind import DeployerKind, DeployerParts
from holdfast.deployers.local_file import PROGRAMS
from holdfast.kind_settings import KindSettings, Text
from holdfast.ports import FileAccess, FileContent, Place, Unreadable
from holdfast.secret import Secret

_SAFE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_BUNDLE: Final = re.compile(r"bundle-(\d+)-([0-9a-f]{16})")
_PASSES: Final = frozenset(
    {errno.EAGAIN, errno.EBUSY, errno.EIO, errno.EINTR, errno.ENOSPC, errno.EDQUOT, errno.ESTALE}
)
FOREIGN: Final = 0  # the number of what was in place before us


class FilesSettings(KindSettings):
    folder: Text = Field(description="The folder for bundles; the host must allow it (deployment.local_file).")
    test: Text = Field(default="", description="A program of the host that tests the daemon's configuration.")
    reload: Text = Field(default="", description="A program of the host that reloads the daemon.")
    owner: Text = Field(default="", description="The user who owns the files; else as before.")
    group: Text = Field(default="", description="A group that may read the key; else as before.")
    certificate_path: Text = Field(default="", description="Also write the certificate with its chain here.")
    key_path: Text = Field(default="", description="Also write the key here; with a certificate path, not atomic.")
    combined_path: Text = Field(default="", description="Also write key, certificate and chain here, in one file.")


@dataclass(frozen=True, slots=True)
class FilesDeployer:
    settings: FilesSettings
    parts: DeployerParts

    @property
    def tested_by(self) -> str:
        return self.settings.test

    @property
    def reloaded_by(self) -> str:
        return self.settings.reload

    async def write(self, bundle: Bundle) -> Written:
        place = self.place(bundle)
        with self.told():
            before = await self._adopted(place)
            number, content = bundle_of(before)
            if number > bundle.number:
                why = f"Target {self.parts.target}: deployment {number} is in place, which is newer."
                raise refused(why, Reason.TARGET_HAS_NEWER)
            if content == bundle.content_id and await self._fixed_hold(bundle):
                return Written(changed=False, atomic=self._atomic)
            await self._put(place, bundle)
            await self._install(place, bundle)
            await self.parts.bundles.prune(place, [] if before is None else [before])
        return Written(changed=True, atomic=self._atomic)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        place = self.place(bundle)
        with self.told():
            now, _ = bundle_of(await self.parts.bundles.current(place))
            if now > bundle.number:
                why = f"Target {self.parts.target}: deployment {now} is in place, which is newer."
                raise refused(why, Reason.TARGET_HAS_NEWER)
            if previous is not None:
                await self._put(place, previous)
                await self._install(place, previous)
                return
            kept = [each for each in await self.parts.bundles.names(place) if bundle_of(each)[0] < bundle.number]
            if not kept:
                raise refused(f"Target {self.parts.target}: no bundle from before is kept.")
            await self._install_kept(place, max(kept, key=lambda each: bundle_of(each)[0]))

    async def test(self) -> None:
        if self.settings.test:
            await self.parts.run(self.settings.test, Reason.CONFIG_TEST_FAILED)

    async def reload(self) -> None:
        if self.settings.reload:
            await self.parts.run(self.settings.reload, Reason.RELOAD_FAILED)

    async def probe(self) -> str:
        place = self.allowed(self.settings.folder)
        for each in (self.settings.test, self.settings.reload):
            if each:
                self.parts.program(each)
        with self.told():
            await self.parts.bundles.names(place)
        if self.settings.test:
            await self.test()
        atomic = "swapped by one rename" if self._atomic else "not swapped in one go"
        return f"{self.settings.folder} can be written to; key and certificate are {atomic}."

    async def close(self) -> None:
        """Nothing stays open."""

    # ── Where ──

    @property
    def _atomic(self) -> bool:
        return not (self.settings.certificate_path and self.settings.key_path)

    def place(self, bundle: Bundle) -> Place:
        found = self.allowed(self.settings.folder)
        return Place(root=found.root, below=(*found.below, folder_name(bundle.certificate)))

    def allowed(self, path: str) -> Place:
        """Below a folder that the file of this host names; never anywhere else."""
        wanted = Path(path)
        for root in self.parts.local.folders:
            if wanted.is_absolute() and ".." not in wanted.parts and wanted.is_relative_to(root):
                return Place(root=root, below=wanted.relative_to(root).parts)
        why = f"Target {self.parts.target}: this host allows no deployment to {path!r:.200} (deployment.local_file)."
        raise refused(why)

    # ── Steps ──

    async def _put(self, place: Place, bundle: Bundle) -> None:
        await self.parts.bundles.put(place, name_of(bundle), files_of(bundle), self._access)

    async def _install(self, place: Place, bundle: Bundle) -> None:
        """Fixed paths first: if we die in between, the link still says that there is more to do."""
        if fixed := self._fixed(files_of(bundle)):
            await self.parts.bundles.replace(fixed, self._access)
        await self.parts.bundles.switch(place, name_of(bundle))

    async def _install_kept(self, place: Place, name: str) -> None:
        within = Place(root=place.root, below=(*place.below, name))
        read = {each: await self.parts.bundles.read(within, each) for each in _FIXED}
        files = {each: _hidden(each, content) for each, content in read.items() if content is not None}
        if fixed := self._fixed(files):
            await self.parts.bundles.replace(fixed, self._access)
        await self.parts.bundles.switch(place, name)

    def _paths(self) -> Iterator[tuple[str, Place, str]]:
        """The key before the certificate: a daemon that starts in between refuses to, rather than serving a mixture."""
        chosen = (self.settings.key_path, self.settings.certificate_path, self.settings.combined_path)
        for file, path in zip(_FIXED, chosen, strict=True):
            if path:
                yield file, self.allowed(str(Path(path).parent)), Path(path).name

    def _fixed(self, files: Mapping[str, FileContent]) -> list[tuple[Place, str, FileContent]]:
        return [(folder, name, files[file]) for file, folder, name in self._paths() if file in files]

    async def _fixed_hold(self, bundle: Bundle) -> bool:
        wanted = self._fixed(files_of(bundle))
        return all([await self.parts.bundles.read(at, name) == _plain(content) for at, name, content in wanted])

    async def _adopted(self, place: Place) -> str | None:
        """The bundle that is current. What is at fixed paths before the first one is kept, to be rolled back to."""
        current = await self.parts.bundles.current(place)
        if current is not None:
            return current
        found = {file: await self.parts.bundles.read(folder, name) for file, folder, name in self._paths()}
        files = {name: _hidden(name, content) for name, content in found.items() if content is not None}
        if not files:
            return None
        digest = hashlib.sha256(b"".join(map(_plain, files.values()))).hexdigest()[:16]
        name = f"bundle-{FOREIGN}-{digest}"
        await self.parts.bundles.put(place, name, files, self._access)
        return name

    @property
    def _access(self) -> FileAccess:
        return FileAccess(owner=self.settings.owner, group=self.settings.group)

    @contextmanager
    def told(self) -> Iterator[None]:
        """What the system says of a file, as one of our two answers."""
        try:
            yield
        except Unreadable as why:
            raise refused(f"Target {self.parts.target}: {why}.", Reason.TARGET_TAKEN) from None
        except BlockingIOError:
            held = f"Target {self.parts.target}: somebody else changes {self.settings.folder} now."
            raise later(held, Reason.TARGET_BUSY) from None
        except KeyError as error:
            raise refused(f"Target {self.parts.target}: {error.args[0]}.") from None
        except OSError as error:
            said = f"Target {self.parts.target}: {error.strerror or error}."
            raise (later(said, Reason.TARGET_BUSY) if error.errno in _PASSES else refused(said)) from None


_FIXED: Final = ("privkey.pem", "fullchain.pem", "combined.pem")  # files of a bundle that may have other paths, too


def files_of(bundle: Bundle) -> dict[str, FileContent]:
    """By the names that certbot made known."""
    return {
        "privkey.pem": bundle.key,
        "fullchain.pem": bundle.fullchain,
        "combined.pem": bundle.combined,
        "cert.pem": bundle.leaf,
        "chain.pem": bundle.chain,
    }


def _plain(content: FileContent) -> bytes:
    return content if isinstance(content, bytes) else content.reveal()


def _hidden(name: str, content: bytes) -> FileContent:
    return content if name == "fullchain.pem" else Secret(content)


def name_of(bundle: Bundle) -> str:
    return f"bundle-{bundle.number}-{bundle.content_id}"


def folder_name(certificate: str) -> str:
    """A folder for a certificate's name: what no file name should hold is not in it, and no two share one."""
    plain = certificate.replace("*", "_")
    if _SAFE.fullmatch(plain):
        return plain
    return f"certificate-{hashlib.sha256(certificate.encode()).hexdigest()[:16]}"


def bundle_of(name: str | None) -> tuple[int, str]:
    found = None if name is None else _BUNDLE.fullmatch(name)
    return (-1, "") if found is None else (int(found[1]), found[2])


FILES: Final[DeployerKind[FilesSettings]] = Kind(
    name="files",
    summary="Files of this machine, with programs that test and reload a daemon.",
    settings=FilesSettings,
    limits=DeployLimits(),
    traits=frozenset({Trait.ATOMIC, Trait.KEEPS_PREVIOUS, Trait.RUNS_HERE}),
    presets={
        daemon: {step: f"{daemon}-{step}" for step in ("test", "reload") if f"{daemon}-{step}" in PROGRAMS}
        for daemon in sorted({name.partition("-")[0] for name in PROGRAMS} - {"haproxy"})  # which is a kind by itself
    },
    make=FilesDeployer,
)
