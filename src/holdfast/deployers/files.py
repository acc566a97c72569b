"""Files of this machine: bundles in a folder, of which a link names the current one; a program tests, another reloads.

Each certificate has a folder of its own below that of the target:

    FOLDER/www.example.com/current/fullchain.pem, privkey.pem, cert.pem, chain.pem, combined.pem, roots.pem

`current` is a link, and one rename of it swaps all files at once. Where a daemon insists on files in other places, they
are written there as well, one rename after the other: that is not atomic, and the deployment says so.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from pydantic import Field, model_validator

from holdfast.core.kind import Kind, Trait
from holdfast.core.reasons import Reason
from holdfast.core.target import DeployLimits
from holdfast.deployers.base import Bundle, Written, later, refused
from holdfast.deployers.kind import DeployerKind, DeployerParts
from holdfast.deployers.local_file import PROGRAMS
from holdfast.deployers.swapping import FIXED, FixedPath, Swap, folder_name
from holdfast.kind_settings import KindSettings, Text
from holdfast.ports import FileAccess, Place, Unreadable

ONE_RENAME: Final = "swapped by one rename"
_PASSES: Final = frozenset(
    {errno.EAGAIN, errno.EBUSY, errno.EIO, errno.EINTR, errno.ENOSPC, errno.EDQUOT, errno.ESTALE}
)


class FilesSettings(KindSettings):
    folder: Text = Field(description="The folder for bundles; the host must allow it (deployment.local_file).")
    test: Text = Field(default="", description="A program of the host that tests the daemon's configuration.")
    reload: Text = Field(default="", description="A program of the host that reloads the daemon.")
    drain: Text = Field(default="", description="A program of the host that takes it out of its balancer first.")
    undrain: Text = Field(default="", description="A program of the host that puts it back, whatever happened.")
    owner: Text = Field(default="", description="The user who owns the files; else as before.")
    group: Text = Field(default="", description="A group that may read the key; else as before.")
    certificate_path: Text = Field(default="", description="Also write the certificate with its chain here.")
    key_path: Text = Field(default="", description="Also write the key here; with a certificate path, not atomic.")
    combined_path: Text = Field(default="", description="Also write key, certificate and chain here, in one file.")
    roots_path: Text = Field(default="", description="Also write the roots of our own CAs here, in PEM.")

    @model_validator(mode="after")
    def _both(self) -> Self:
        if bool(self.drain) != bool(self.undrain):
            raise ValueError("drain and undrain are set together: what is taken out must be put back")
        return self


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

    @property
    def drained_by(self) -> str:
        return self.settings.drain

    async def drain(self) -> None:
        if self.settings.drain:
            await self.parts.run(self.settings.drain, Reason.DRAIN_FAILED)

    async def undrain(self) -> None:
        if self.settings.undrain:
            await self.parts.run(self.settings.undrain, Reason.DRAIN_FAILED)

    async def write(self, bundle: Bundle) -> Written:
        with self.told():
            return await self._swap(bundle).write(bundle)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        with self.told():
            await self._swap(bundle).restore(bundle, previous)

    async def test(self) -> None:
        if self.settings.test:
            await self.parts.run(self.settings.test, Reason.CONFIG_TEST_FAILED)

    async def reload(self) -> None:
        if self.settings.reload:
            await self.parts.run(self.settings.reload, Reason.RELOAD_FAILED)

    async def probe(self) -> str:
        place = self.allowed(self.settings.folder)
        for each in (self.settings.test, self.settings.reload, self.settings.drain, self.settings.undrain):
            if each:
                self.parts.program(each)
        with self.told():
            await self.parts.bundles.names(place)
        if self.settings.test:
            await self.test()
        atomic = "not swapped in one go" if self.settings.key_path and self.settings.certificate_path else ONE_RENAME
        return f"{self.settings.folder} can be written to; key and certificate are {atomic}."

    async def close(self) -> None:
        """Nothing stays open."""

    # ── Where ──

    def _swap(self, bundle: Bundle) -> Swap:
        return Swap(
            target=self.parts.target,
            folders=self.parts.bundles,
            place=self.place(bundle),
            access=FileAccess(owner=self.settings.owner, group=self.settings.group),
            fixed=tuple(self._fixed()),
        )

    def _fixed(self) -> Iterator[FixedPath]:
        for setting, file in FIXED.items():
            if path := getattr(self.settings, setting):
                yield FixedPath(file=file, place=self.allowed(str(Path(path).parent)), name=Path(path).name)

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

    @contextmanager
    def told(self) -> Iterator[None]:
        """What the system says of a file, as one of our two answers."""
        try:
            yield
        except Unreadable as why:
            raise refused(f"Target {self.parts.target}: {why}.", Reason.TARGET_TAKEN) from None
        except BlockingIOError:
            held = f"Target {self.parts.target}: another program changes {self.settings.folder} now."
            raise later(held, Reason.TARGET_BUSY) from None
        except KeyError as error:
            raise refused(f"Target {self.parts.target}: {error.args[0]}.") from None
        except OSError as error:
            said = f"Target {self.parts.target}: {error.strerror or error}."
            raise (later(said, Reason.TARGET_BUSY) if error.errno in _PASSES else refused(said)) from None


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
