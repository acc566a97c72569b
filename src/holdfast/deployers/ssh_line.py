"""One SSH connection to a target: its host key is pinned, programs are bounded, and errors are our two answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.core.reasons import Reason
from holdfast.deployers.base import later, refused
from holdfast.secret import Secret

if TYPE_CHECKING:
    from asyncssh import SFTPClient, SSHClientConnection, SSHReader

CONNECTED_WITHIN: Final = 20.0
_KEPT: Final = 65536  # bytes of what a program says


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A program that ended there."""

    code: int | None  # None: by a signal
    said: bytes  # the end of its output
    errors: bytes


@dataclass(slots=True, kw_only=True)
class SshLine:
    target: str
    host: str
    port: int
    user: str
    host_key: str
    key: Secret[str]
    _line: SSHClientConnection | None = None

    async def close(self) -> None:
        if self._line is not None:
            self._line.close()
            await self._line.wait_closed()
            self._line = None

    @asynccontextmanager
    async def sftp(self) -> AsyncIterator[SFTPClient]:
        line = await self._connected()
        import asyncssh  # it is there, or nothing were connected

        try:
            async with await asyncio.wait_for(line.start_sftp_client(), CONNECTED_WITHIN) as sftp:
                yield sftp
        except TimeoutError:
            hint = "Set receive to true if its account runs holdfast-receive"
            raise refused(f"Target {self.target}: {self.host} does not answer by SFTP. {hint}.") from None
        except asyncssh.SFTPConnectionLost as why:
            raise later(f"Target {self.target}: {why.reason}.") from None
        except asyncssh.SFTPError as why:
            raise refused(f"Target {self.target}: SFTP: {why.reason:.200}.") from None
        except (asyncssh.Error, OSError) as why:
            raise later(f"Target {self.target}: {why!s:.200}.") from None

    async def run(self, command: str, what: str, *, within: float, stdin: bytes = b"") -> Ended:
        """Run a command line there. TryLater if it does not end in time; it loses its connection then."""
        line = await self._connected()
        import asyncssh

        try:
            async with asyncio.timeout(within), line.create_process(command, encoding=None) as process:
                process.stdin.write(stdin)
                process.stdin.write_eof()
                said, errors = await asyncio.gather(_end_of(process.stdout), _end_of(process.stderr))
                await process.wait_closed()
        except (asyncssh.Error, OSError, TimeoutError) as why:
            busy = Reason.TARGET_BUSY if isinstance(why, TimeoutError) else Reason.TARGET_UNREACHABLE
            raise later(f"Target {self.target}: {what} did not end: {why!s:.200}.", busy) from None
        return Ended(code=process.exit_status, said=said, errors=errors)

    async def _connected(self) -> SSHClientConnection:
        if self._line is None:
            self._line = await self._connect()
        return self._line

    async def _connect(self) -> SSHClientConnection:
        try:
            import asyncssh
        except ImportError:
            raise refused(f"Target {self.target}: install holdfast[ssh] for targets of this kind.") from None
        who = f"Target {self.target}: {self.host}"
        try:
            pinned = asyncssh.import_public_key(self.host_key)
            key = asyncssh.import_private_key(self.key.reveal() + "\n")
        except asyncssh.KeyImportError as why:
            raise refused(f"Target {self.target}: host_key, or the credential key, is unusable: {why}.") from None
        try:
            return await asyncssh.connect(
                self.host, self.port, username=self.user, client_keys=[key], config=None,
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
            raise refused(f"{who} does not let {self.user} in with the credential key.") from None
        except (asyncssh.Error, OSError, TimeoutError) as why:
            raise later(f"{who} cannot be reached: {why!s:.200}.") from None


async def _end_of(output: SSHReader[bytes]) -> bytes:
    """All of it is read, and the end of it kept: a program that floods us ends with its time."""
    kept = b""
    while piece := await output.read(_KEPT):
        kept = (kept + piece)[-_KEPT:]
    return kept
