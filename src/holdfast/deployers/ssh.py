"""Files of another machine, by SSH: the same folders as `files` has, swapped by one rename of a link.

By SFTP this replica makes each step itself. With `receive`, the account there runs nothing but `holdfast-receive`,
which makes the same steps on its own machine (see receiving.py).
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import Field

from holdfast.core.kind import Credential, Kind, Trait
from holdfast.core.reasons import Reason
from holdfast.core.target import DeployLimits
from holdfast.deployers.base import Bundle, Deployer, Written, refused
from holdfast.deployers.kind import DeployerKind, DeployerParts, tail
from holdfast.deployers.receiving import ReceiverDeployer
from holdfast.deployers.ssh_line import SshLine
from holdfast.deployers.swapping import FIXED, FixedPath, Swap, folder_name
from holdfast.kind_settings import Flag, KindSettings, Number, Text
from holdfast.ports import BundleFolders, Place, Unreadable

_PATH: Final = r"^/[^\x00-\x1f\x7f]{1,400}$"


class SshSettings(KindSettings):
    host: Text = Field(description="The name or address of the machine.")
    port: Number = Field(default=22, le=65535, description="The port of its SSH server.")
    user: Text = Field(description="The user who writes the files there.")
    host_key: Text = Field(description="Its host key, as in /etc/ssh/ssh_host_ed25519_key.pub; no other is accepted.")
    folder: str = Field(pattern=_PATH, description="The folder for bundles on that machine.")
    receive: Flag = Field(
        default=False, description="The account there runs holdfast-receive, and has no shell and no SFTP."
    )
    test: Text = Field(default="", description="A program of deployment.local_file that is run there, as a test.")
    reload: Text = Field(default="", description="A program of deployment.local_file that is run there, to reload.")
    certificate_path: str = Field(default="", pattern=_PATH, description="Also write the certificate and chain here.")
    key_path: str = Field(default="", pattern=_PATH, description="Also write the key here; then it is not atomic.")
    combined_path: str = Field(default="", pattern=_PATH, description="Also write all of them here, in one file.")
    roots_path: str = Field(default="", pattern=_PATH, description="Also write the roots of our own CAs here.")


@dataclass(frozen=True, slots=True)
class SftpDeployer:
    settings: SshSettings
    parts: DeployerParts
    line: SshLine

    @property
    def tested_by(self) -> str:
        return self.settings.test

    @property
    def reloaded_by(self) -> str:
        return self.settings.reload

    async def write(self, bundle: Bundle) -> Written:
        async with self._folders() as folders:
            return await self._swap(folders, bundle).write(bundle)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        async with self._folders() as folders:
            await self._swap(folders, bundle).restore(bundle, previous)

    async def test(self) -> None:
        await self._run(self.settings.test, Reason.CONFIG_TEST_FAILED)

    async def reload(self) -> None:
        await self._run(self.settings.reload, Reason.RELOAD_FAILED)

    async def probe(self) -> str:
        async with self._folders() as folders:
            await folders.names(Place(root=Path(self.settings.folder)))
        return f"{self.settings.host} shows its pinned key, and has the folder {self.settings.folder}."

    async def close(self) -> None:
        await self.line.close()

    def _swap(self, folders: BundleFolders, bundle: Bundle) -> Swap:
        place = Place(root=Path(self.settings.folder), below=(folder_name(bundle.certificate),))
        return Swap(target=self.parts.target, folders=folders, place=place, fixed=tuple(self._fixed()))

    def _fixed(self) -> Iterator[FixedPath]:
        for setting, file in FIXED.items():
            if path := getattr(self.settings, setting):
                yield FixedPath(file=file, place=Place(root=Path(path).parent), name=Path(path).name)

    @asynccontextmanager
    async def _folders(self) -> AsyncIterator[BundleFolders]:
        async with self.line.sftp() as sftp:
            from holdfast.deployers.sftp_folders import SftpFolders  # it needs asyncssh, which is an extra

            try:
                yield SftpFolders(sftp, self.parts.random)
            except Unreadable as why:
                raise refused(f"Target {self.parts.target}: {why}.", Reason.TARGET_TAKEN) from None

    async def _run(self, name: str, reason: Reason) -> None:
        """The argv is of a file on our host; the shell there splits it again, so it is quoted."""
        if not name:
            return
        program = self.parts.program(name)
        ended = await self.line.run(shlex.join(program.argv), name, within=program.timeout)
        if ended.code != 0:
            said = tail(ended.said + b" " + ended.errors)
            raise refused(f"Target {self.parts.target}: {name} exited with {ended.code}: {said}", reason)


def _make(settings: SshSettings, parts: DeployerParts) -> Deployer:
    line = SshLine(
        target=parts.target, host=settings.host, port=settings.port, user=settings.user, host_key=settings.host_key,
        key=parts.credentials["key"],
    )  # fmt: skip
    if not settings.receive:
        return SftpDeployer(settings, parts, line)
    shared = settings.model_dump(include={"folder", "test", "reload", *FIXED})
    return ReceiverDeployer(parts.target, line, shared)


SSH: Final[DeployerKind[SshSettings]] = Kind(
    name="ssh",
    summary="Files of another machine, by SSH: the host key is pinned, and one rename swaps all files.",
    settings=SshSettings,
    credentials=(Credential(name="key", summary="The private key that logs in, in OpenSSH's format or PEM."),),
    limits=DeployLimits(),
    traits=frozenset({Trait.ATOMIC, Trait.KEEPS_PREVIOUS}),
    address="host",
    make=_make,
)
