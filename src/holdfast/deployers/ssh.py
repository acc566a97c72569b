"""Files of another machine, by SFTP: the same folders as `files` has, swapped by one posix-rename of a link.

The host key is pinned in the settings. Another one is refused, and never taken over by itself.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from holdfast.core.kind import Credential, Kind, Trait
from holdfast.core.reasons import Reason
from holdfast.core.target import DeployLimits
from holdfast.deployers.base import Bundle, Written, later, refused
from holdfast.deployers.files import bundle_of, files_of, folder_name, name_of
from holdfast.deployers.kind import DeployerKind, DeployerParts, tail
from holdfast.kind_settings import KindSettings, Number, Text
from holdfast.secret import Secret

if TYPE_CHECKING:
    import asyncssh

CONNECTED_WITHIN: Final = 20.0
_KEPT: Final = 65536  # characters of what a program says


class SshSettings(KindSettings):
    host: Text = Field(description="The name or address of the machine.")
    port: Number = Field(default=22, le=65535, description="The port of its SSH server.")
    user: Text = Field(description="The user who writes the files there.")
    host_key: Text = Field(description="Its host key, as in /etc/ssh/ssh_host_ed25519_key.pub; no other is accepted.")
    folder: Text = Field(pattern="^/[^\\x00-\\x1f]+$", description="The folder for bundles on that machine.")
    test: Text = Field(default="", description="A program of deployment.local_file that is run there, as a test.")
    reload: Text = Field(default="", description="A program of deployment.local_file that is run there, to reload.")


@dataclass(slots=True)
class SshDeployer:
    settings: SshSettings
    parts: DeployerParts
    _line: asyncssh.SSHClientConnection | None = None

    @property
    def tested_by(self) -> str:
        return self.settings.test

    @property
    def reloaded_by(self) -> str:
        return self.settings.reload

    async def write(self, bundle: Bundle) -> Written:
        async with self._sftp() as sftp:
            before = await self._current(sftp, bundle)
            self._not_newer(before, bundle)
            if bundle_of(before)[1] == bundle.content_id:
                return Written(changed=False)
            await self._install(sftp, bundle)
            await self._prune(sftp, bundle, {before, name_of(bundle)})
        return Written(changed=True)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        async with self._sftp() as sftp:
            self._not_newer(await self._current(sftp, bundle), bundle)
            if previous is not None:
                await self._install(sftp, previous)
                return
            names = await sftp.listdir(self._place(bundle))
            kept = [str(each) for each in names if -1 < bundle_of(str(each))[0] < bundle.number]
            if not kept:
                raise refused(f"Target {self.parts.target}: no bundle from before is kept.")
            await self._switch(sftp, self._place(bundle), max(kept, key=lambda each: bundle_of(each)[0]))

    async def test(self) -> None:
        await self._run(self.settings.test, Reason.CONFIG_TEST_FAILED)

    async def reload(self) -> None:
        await self._run(self.settings.reload, Reason.RELOAD_FAILED)

    async def probe(self) -> str:
        async with self._sftp() as sftp:
            if not await sftp.isdir(self.settings.folder):
                raise refused(f"Target {self.parts.target}: there is no folder {self.settings.folder}.")
        return f"{self.settings.host} shows its pinned key, and has the folder {self.settings.folder}."

    async def close(self) -> None:
        if self._line is not None:
            self._line.close()
            await self._line.wait_closed()
            self._line = None

    # ── Files there ──

    def _place(self, bundle: Bundle) -> str:
        return f"{self.settings.folder.rstrip('/')}/{folder_name(bundle.certificate)}"

    async def _current(self, sftp: asyncssh.SFTPClient, bundle: Bundle) -> str | None:
        path = f"{self._place(bundle)}/current"
        if not await sftp.islink(path):
            if await sftp.lexists(path):
                raise refused(f"Target {self.parts.target}: {path} is no link of ours.", Reason.TARGET_TAKEN)
            return None
        return str(await sftp.readlink(path))

    def _not_newer(self, before: str | None, bundle: Bundle) -> None:
        if (number := bundle_of(before)[0]) > bundle.number:
            why = f"Target {self.parts.target}: deployment {number} is in place, which is newer."
            raise refused(why, Reason.TARGET_HAS_NEWER)

    async def _install(self, sftp: asyncssh.SFTPClient, bundle: Bundle) -> None:
        place = self._place(bundle)
        if not await sftp.isdir(place):
            await sftp.mkdir(place)
        new = f"{place}/{name_of(bundle)}"
        if await sftp.lexists(new):
            if (await self._current(sftp, bundle)) == name_of(bundle):
                return
            await sftp.rmtree(new)  # left behind by a crash, or not what it should be
        await sftp.mkdir(new, _attrs(0o700))
        for name, content in files_of(bundle).items():
            await _upload(sftp, f"{new}/{name}", content)
        await sftp.chmod(new, 0o755)  # its keys have modes of their own
        await self._switch(sftp, place, name_of(bundle))

    async def _switch(self, sftp: asyncssh.SFTPClient, place: str, name: str) -> None:
        temporary = f"{place}/.current.{self.parts.random.token(8).hex()}"
        await sftp.symlink(name, temporary)
        await sftp.posix_rename(temporary, f"{place}/current")

    async def _prune(self, sftp: asyncssh.SFTPClient, bundle: Bundle, keep: set[str | None]) -> None:
        for each in map(str, await sftp.listdir(self._place(bundle))):
            if bundle_of(each)[0] > -1 and each not in keep:
                await sftp.rmtree(f"{self._place(bundle)}/{each}")
            elif each.startswith(".current."):
                await sftp.remove(f"{self._place(bundle)}/{each}")

    # ── The connection ──

    @asynccontextmanager
    async def _sftp(self) -> AsyncIterator[asyncssh.SFTPClient]:
        line = await self._connected()
        import asyncssh  # it is there, or nothing were connected

        try:
            async with line.start_sftp_client() as sftp:
                yield sftp
        except asyncssh.SFTPConnectionLost as why:
            raise later(f"Target {self.parts.target}: {why.reason}.") from None
        except asyncssh.SFTPError as why:
            raise refused(f"Target {self.parts.target}: SFTP: {why.reason:.200}.") from None
        except (asyncssh.Error, OSError) as why:
            raise later(f"Target {self.parts.target}: {why!s:.200}.") from None

    async def _connected(self) -> asyncssh.SSHClientConnection:
        if self._line is None:
            self._line = await self._connect()
        return self._line

    async def _connect(self) -> asyncssh.SSHClientConnection:
        try:
            import asyncssh
        except ImportError:
            raise refused(f"Target {self.parts.target}: install holdfast[ssh] for targets of this kind.") from None
        who = f"Target {self.parts.target}: {self.settings.host}"
        try:
            pinned = asyncssh.import_public_key(self.settings.host_key)
            key = asyncssh.import_private_key(self.parts.credentials["key"].reveal() + "\n")
        except asyncssh.KeyImportError as why:
            raise refused(f"Target {self.parts.target}: host_key, or the credential key, is unusable: {why}.") from None
        try:
            return await asyncssh.connect(
                self.settings.host, self.settings.port, username=self.settings.user, client_keys=[key], config=None,
                known_hosts=([pinned], [], []), agent_path=None, connect_timeout=CONNECTED_WITHIN,
                login_timeout=CONNECTED_WITHIN, preferred_auth="publickey",
            )  # fmt: skip
        except asyncssh.HostKeyNotVerifiable:
            why_ = f"{who} shows another host key than host_key. Find out why before you change that setting."
            raise refused(why_, Reason.HOST_KEY_CHANGED) from None
        except asyncssh.KeyExchangeFailed:
            why_ = f"{who} has no host key of the kind that host_key is. Find out why before you change that setting."
            raise refused(why_, Reason.HOST_KEY_CHANGED) from None
        except asyncssh.PermissionDenied:
            raise refused(f"{who} does not let {self.settings.user} in with the credential key.") from None
        except (asyncssh.Error, OSError, TimeoutError) as why:
            raise later(f"{who} cannot be reached: {why!s:.200}.") from None

    async def _run(self, name: str, reason: Reason) -> None:
        """The argv is of a file on our host; the shell there splits it again, so it is quoted."""
        if not name:
            return
        program, line = self.parts.program(name), await self._connected()
        import asyncssh

        try:
            async with asyncio.timeout(program.timeout):
                async with line.create_process(shlex.join(program.argv), stderr=asyncssh.STDOUT) as process:
                    process.stdin.write_eof()
                    said = await _end_of(process.stdout)
                    await process.wait_closed()
        except (asyncssh.Error, OSError, TimeoutError) as why:
            raise later(f"Target {self.parts.target}: {name} did not end: {why!s:.200}.") from None
        if process.exit_status != 0:
            text = f"Target {self.parts.target}: {name} exited with {process.exit_status}: {tail(said.encode())}"
            raise refused(text, reason)


async def _end_of(output: asyncssh.SSHReader[str]) -> str:
    """All of it is read, and the end of it kept: a program that floods us ends with its time."""
    kept = ""
    while piece := await output.read(_KEPT):
        kept = (kept + piece)[-_KEPT:]
    return kept


def _attrs(mode: int) -> Any:
    import asyncssh

    return asyncssh.SFTPAttrs(permissions=mode)


async def _upload(sftp: asyncssh.SFTPClient, path: str, content: bytes | Secret[bytes]) -> None:
    """It has its mode from the first byte on; who made it before us ends the deployment."""
    import asyncssh

    secret = isinstance(content, Secret)
    flags = asyncssh.FXF_WRITE | asyncssh.FXF_CREAT | asyncssh.FXF_EXCL
    async with sftp.open(path, flags, _attrs(0o600 if secret else 0o644), encoding=None) as file:
        await file.write(content.reveal() if isinstance(content, Secret) else content)
        with suppress(asyncssh.SFTPOpUnsupported):
            await file.fsync()


SSH: Final[DeployerKind[SshSettings]] = Kind(
    name="ssh",
    summary="Files of another machine, by SSH: the host key is pinned, and one rename swaps all files.",
    settings=SshSettings,
    credentials=(Credential(name="key", summary="The private key that logs in, in OpenSSH's format or PEM."),),
    limits=DeployLimits(),
    traits=frozenset({Trait.ATOMIC, Trait.KEEPS_PREVIOUS}),
    address="host",
    make=SshDeployer,
)
