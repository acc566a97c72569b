"""HAProxy: one combined file for each certificate, and, by its runtime API, the same in memory without a reload.

The runtime API has one transaction for the whole process: `set ssl cert` begins it, and until `commit` or `abort` no
other certificate can be changed. One that we left open is aborted; one of another program is waited for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from pydantic import Field

from holdfast.core.kind import Kind, Trait
from holdfast.core.reasons import Reason
from holdfast.core.target import DeployLimits
from holdfast.deployers.base import Bundle, Written, later, refused
from holdfast.deployers.files import FilesDeployer, FilesSettings
from holdfast.deployers.kind import DeployerKind, DeployerParts
from holdfast.deployers.swapping import folder_name
from holdfast.errors import Refused, TryLater
from holdfast.kind_settings import KindSettings, Text
from holdfast.ports import NetProblem
from holdfast.secret import Secret

ANSWERS_FOR: Final = 15.0  # seconds for one command
_MOST: Final = 1024 * 1024  # bytes of an answer: a process may have thousands of certificates
_SAID: Final = 300
_UNUSED: Final = "Status: Unused"
_PLAIN: Final = re.compile(r"[!-~]{1,400}")  # a name in a command is one word


class HaproxySettings(KindSettings):
    folder: Text = Field(description="The folder for bundles; the host must allow it (deployment.local_file).")
    certificates: Text = Field(description="The folder that `crt` of a bind line names: one file for each certificate.")
    socket: Text = Field(
        default="", description="The stats socket, level admin; the host must allow it. Left out: `reload` is run."
    )
    test: Text = Field(default="", description="A program of the host that tests the configuration.")
    reload: Text = Field(default="", description="A program of the host that reloads HAProxy, without a socket.")
    owner: Text = Field(default="", description="The user who owns the files; else as before.")
    group: Text = Field(default="", description="A group that may read the files; else as before.")


@dataclass(frozen=True, slots=True)
class HaproxyDeployer:
    settings: HaproxySettings
    parts: DeployerParts

    @property
    def tested_by(self) -> str:
        return self.settings.test

    @property
    def reloaded_by(self) -> str:
        return "" if self.settings.socket else self.settings.reload

    async def write(self, bundle: Bundle) -> Written:
        """The file and the memory change within one transaction of HAProxy: either of them alone comes back."""
        on_disk = self._files(bundle)
        if not self.settings.socket:
            return await on_disk.write(bundle)
        written, changed = await self._in_memory(bundle, lambda: on_disk.write(bundle))
        return Written(changed=written.changed or changed, atomic=written.atomic)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        on_disk = self._files(bundle)
        if not self.settings.socket or previous is None:
            await on_disk.restore(bundle, previous)
        if not self.settings.socket:
            return
        if previous is not None:
            await self._in_memory(previous, lambda: on_disk.restore(bundle, previous))
            return
        name = Path(self._name(bundle))
        kept = await self.parts.bundles.read(on_disk.allowed(str(name.parent)), name.name)
        if kept is None:
            raise refused(f"Target {self.parts.target}: no file from before is kept.")
        await self._changed(str(name), Secret(kept), _nothing)

    async def test(self) -> None:
        await self._programs().test()

    async def reload(self) -> None:
        if not self.settings.socket:
            await self._programs().reload()

    async def probe(self) -> str:
        said = await self._programs().probe()
        if not self.settings.socket:
            return said
        names, _ = await self._listed()
        return f"{said} HAProxy answers at {self.settings.socket}, and has {len(names)} certificates."

    async def close(self) -> None:
        """Each command has a connection of its own."""

    # ── Files ──

    def _files(self, bundle: Bundle) -> FilesDeployer:
        return self._programs(combined_path=self._name(bundle))

    def _programs(self, **more: str) -> FilesDeployer:
        same = self.settings.model_dump(include={"folder", "test", "reload", "owner", "group"})
        return FilesDeployer(FilesSettings(**same, **more), self.parts)

    def _name(self, bundle: Bundle) -> str:
        """The path, spelled as the configuration has it: by that HAProxy knows a certificate."""
        name = f"{self.settings.certificates.rstrip('/')}/{folder_name(bundle.certificate)}.pem"
        if not _PLAIN.fullmatch(name):
            raise refused(f"Target {self.parts.target}: a path of HAProxy has no spaces: {name!r:.200}.")
        return name

    # ── Memory ──

    async def _in_memory(self, bundle: Bundle, change: Callable[[], Awaitable[Written | None]]) -> tuple[Written, bool]:
        """Change the files while a transaction is open; commit it if that went well. Whether the memory changed."""
        name = self._name(bundle)
        changes = not await self._holds(name, bundle.leaf)
        found = await (self._changed(name, bundle.combined, change) if changes else change())
        if not await self._holds(name, bundle.leaf):
            raise refused(f"Target {self.parts.target}: HAProxy does not hold {name} after its commit.")
        if _UNUSED in await self._ask(f"show ssl cert {name}"):  # it was not there when HAProxy began
            await self._said(f"add ssl crt-list {Path(name).parent} {name}", ("Success",))
        return found or Written(changed=changes), changes

    async def _changed(
        self, name: str, combined: Secret[bytes], change: Callable[[], Awaitable[Written | None]]
    ) -> Written | None:
        await self._begin(name)
        try:
            await self._said(f"set ssl cert {name}", ("Transaction created", "Transaction updated"), payload=combined)
            found = await change()
            await self._said(f"commit ssl cert {name}", ("Success",))
        except BaseException:
            await self._abandon(name)
            raise
        return found

    async def _begin(self, name: str) -> None:
        """See to it that no transaction is open, and that HAProxy knows the name."""
        names, transaction = await self._listed()
        if transaction is not None and Path(transaction).parent == Path(name).parent:
            await self._ask(f"abort ssl cert {transaction}")  # ours: whoever began it is gone, or we would not be here
        elif transaction is not None:
            why = f"HAProxy has an open transaction about {transaction:.200}, which another program began"
            ends = f"It ends by `abort ssl cert {transaction:.200}` on its socket."
            raise later(f"Target {self.parts.target}: {why}. {ends}", Reason.TARGET_BUSY)
        if name not in names:
            await self._said(f"new ssl cert {name}", ("New empty certificate store",))

    async def _abandon(self, name: str) -> None:
        """What cannot be aborted now is aborted by the next one."""
        with suppress(TryLater, Refused):
            await self._ask(f"abort ssl cert {name}")

    async def _listed(self) -> tuple[set[str], str | None]:
        """The certificates that HAProxy knows, and the one that a transaction is open for."""
        lines = (await self._ask("show ssl cert")).splitlines()
        found = [each for each in lines if each and not each.startswith("#")]
        open_for = next((each.removeprefix("*") for each in found if each.startswith("*")), None)
        return {each for each in found if not each.startswith("*")}, open_for

    async def _holds(self, name: str, leaf: bytes) -> bool:
        shown = await self._ask(f"show ssl cert {name}")
        digest = x509.load_pem_x509_certificate(leaf).fingerprint(hashes.SHA1()).hex()  # noqa: S303
        return f"fingerprint: {digest}" in shown.lower() and "status: empty" not in shown.lower()

    async def _said(self, command: str, wanted: tuple[str, ...], *, payload: Secret[bytes] | None = None) -> None:
        answer = await self._ask(command, payload)
        if not any(each in answer for each in wanted):
            said = " ".join(answer.split())[:_SAID] or "nothing"
            reason = Reason.TARGET_BUSY if "ongoing transaction" in answer.lower() else Reason.TARGET_REFUSED
            text = f"Target {self.parts.target}: HAProxy answered to `{command:.250}`: {said}"
            raise later(text, reason) if reason is Reason.TARGET_BUSY else refused(text, reason)

    async def _ask(self, command: str, payload: Secret[bytes] | None = None) -> str:
        """One command on a connection of its own. An empty line ends a payload, so it has none within."""
        path = self._socket()
        body = b"" if payload is None else b" <<\n" + _without_blank_lines(payload.reveal()) + b"\n"
        try:
            with closing(await self.parts.net.connect_local(path, deadline_for=ANSWERS_FOR)) as line:
                async with asyncio.timeout(ANSWERS_FOR):
                    await line.write(command.encode() + body + b"\n")
                    return await _whole(line.read)
        except NetProblem as why:
            raise later(f"Target {self.parts.target}: {why}.") from None
        except TimeoutError:
            raise later(f"Target {self.parts.target}: HAProxy does not answer at {path}.") from None

    def _socket(self) -> str:
        if Path(self.settings.socket) not in self.parts.local.sockets:
            why = f"this host allows no deployment by the socket {self.settings.socket!r:.200}"
            raise refused(f"Target {self.parts.target}: {why} (sockets in deployment.local_file).")
        return self.settings.socket


async def _nothing() -> None:
    """The files are as they should be."""


async def _whole(read: Callable[[int], Awaitable[bytes]]) -> str:
    """Until HAProxy hangs up, which it does after one command."""
    found = bytearray()
    while piece := await read(65536):
        found += piece
        if len(found) > _MOST:
            raise NetProblem("reset", "HAProxy's answer is longer than any list of certificates")
    return found.decode("utf-8", "replace")


def _without_blank_lines(pem: bytes) -> bytes:
    return b"".join(each + b"\n" for each in pem.splitlines() if each.strip())


HAPROXY: Final[DeployerKind[HaproxySettings]] = Kind(
    name="haproxy",
    summary="HAProxy of this machine: combined files, and its runtime API, so that nothing is reloaded.",
    settings=HaproxySettings,
    limits=DeployLimits(),
    traits=frozenset({Trait.ATOMIC, Trait.KEEPS_PREVIOUS, Trait.RUNS_HERE}),
    make=HaproxyDeployer,
)
