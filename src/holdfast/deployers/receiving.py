"""`holdfast-receive`: the forced command of an SSH key, which may deploy to folders that its machine names.

One call is one JSON object on its standard input, and one on its standard output. It makes the steps of the kind
`files`, by the rules of the file on its own machine: neither a shell nor SFTP is needed there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from holdfast.core import reasons
from holdfast.deployers.base import Bundle, Written, later, refused
from holdfast.deployers.files import FilesDeployer, FilesSettings
from holdfast.deployers.kind import DeployerParts, tail
from holdfast.deployers.ssh_line import SshLine
from holdfast.errors import Refused, TryLater
from holdfast.secret import Secret

COMMAND: Final = "holdfast-receive"
MOST: Final = 1024 * 1024  # bytes of a call: two bundles with long chains are far below it
WITHIN: Final = 300.0  # seconds for a call; its programs have bounds of their own there

_Message = dict[str, Any]


# ── Here: the replica that deploys ──


@dataclass(frozen=True, slots=True)
class ReceiverDeployer:
    target: str
    line: SshLine
    settings: Mapping[str, str]

    @property
    def tested_by(self) -> str:
        return self.settings.get("test", "")

    @property
    def reloaded_by(self) -> str:
        return self.settings.get("reload", "")

    async def write(self, bundle: Bundle) -> Written:
        said = await self._call("write", bundle=_told(bundle))
        return Written(changed=said.get("changed") is not False, atomic=said.get("atomic") is not False)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        await self._call("restore", bundle=_told(bundle), previous=None if previous is None else _told(previous))

    async def test(self) -> None:
        await self._call("test")

    async def reload(self) -> None:
        await self._call("reload")

    async def probe(self) -> str:
        return f"{self.line.host} answers by {COMMAND}: {(await self._call('probe')).get('said', '')!s:.300}"

    async def close(self) -> None:
        await self.line.close()

    async def _call(self, call: str, **more: Any) -> _Message:
        asked = json.dumps({"call": call, "target": self.target, "settings": self.settings, **more}).encode()
        ended = await self.line.run(COMMAND, COMMAND, within=WITHIN, stdin=asked)
        said = _object(ended.said)
        if said is None or said.get("received") is not True:
            hint = tail(ended.errors) if call in ("test", "reload", "probe") else ""  # others hold the key
            why = f"the account does not answer as {COMMAND} does (exit {ended.code}). {hint}"
            raise refused(f"Target {self.target}: {why.rstrip()}")
        if (error := said.get("error")) is not None:
            made = later if said.get("later") is True else refused
            raise made(str(error)[:1000], reasons.of(str(said.get("reason"))))
        return said


# ── There: the machine that receives ──


async def answer(call: bytes, parts: DeployerParts) -> _Message:
    """The answer to one call, whatever it was."""
    try:
        return {"received": True, **await _answered(call, parts)}
    except (TryLater, Refused) as why:
        return {"received": True, "error": str(why), "reason": why.reason, "later": isinstance(why, TryLater)}


async def _answered(call: bytes, parts: DeployerParts) -> _Message:
    asked = _object(call) if len(call) <= MOST else None
    if asked is None:
        raise refused(f"{COMMAND} takes one JSON object of at most {MOST} bytes.")
    named = replace(parts, target=f"{asked.get('target')!s:.100}")  # in sentences only
    deployer = FilesDeployer(_settings(asked.get("settings")), named)
    match asked.get("call"):
        case "write":
            written = await deployer.write(_bundle(asked.get("bundle")))
            return {"changed": written.changed, "atomic": written.atomic}
        case "restore":
            back = asked.get("previous")
            await deployer.restore(_bundle(asked.get("bundle")), None if back is None else _bundle(back))
        case "test":
            await deployer.test()
        case "reload":
            await deployer.reload()
        case "probe":
            return {"said": await deployer.probe()}
        case other:
            raise refused(f"{COMMAND} knows no call {other!r:.60}.")
    return {}


def _object(text: bytes) -> _Message | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _settings(given: object) -> FilesSettings:
    try:
        return FilesSettings.model_validate(given)
    except (ValidationError, TypeError, ValueError):
        raise refused(f"{COMMAND} cannot use these settings; is it of another version?") from None


def _told(bundle: Bundle) -> _Message:
    """A bundle as JSON; its key is in it, in the clear, within the connection."""
    told = {each.name: getattr(bundle, each.name) for each in fields(bundle)}
    return {name: _plain(value) for name, value in told.items()}


def _plain(value: Any) -> Any:
    match value:
        case Secret():
            return _plain(value.reveal())
        case bytes():
            return value.decode()
        case datetime():
            return value.isoformat()
        case _:
            return value


def _bundle(told: object) -> Bundle:
    if not isinstance(told, dict) or {each.name for each in fields(Bundle)} - set(told) - {"roots"}:
        raise refused(f"{COMMAND} got no bundle that it can read; is it of another version?")
    try:
        return Bundle(
            certificate=str(told["certificate"]),
            names=tuple(map(str, told["names"])),
            leaf=told["leaf"].encode(),
            chain=told["chain"].encode(),
            key=Secret(told["key"].encode()),
            roots=told.get("roots", "").encode(),
            number=int(told["number"]),
            content_id=f"{int(told['content_id'], 16):016x}",  # it becomes part of a file's name
            leaf_sha256=str(told["leaf_sha256"]),
            serial=str(told["serial"]),
            not_before=datetime.fromisoformat(told["not_before"]),
            not_after=datetime.fromisoformat(told["not_after"]),
        )
    except (AttributeError, TypeError, ValueError):
        raise refused(f"{COMMAND} got a bundle that is not well-formed.") from None
