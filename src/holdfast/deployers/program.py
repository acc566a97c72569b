"""A program of this host installs the bundle: a deploy hook of certbot or a deploy script of acme.sh, unchanged.

It finds the files by its environment, in a folder that is removed when it ends. Exit 0 is done, 75 (EX_TEMPFAIL) is
later, 77 (EX_NOPERM) needs a person. It is run again for the same bundle: that it ended well once proves nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from holdfast.core.kind import Kind, Trait
from holdfast.core.reasons import Reason
from holdfast.core.target import DeployLimits
from holdfast.deployers.base import Bundle, Written, refused
from holdfast.deployers.files import FilesDeployer, FilesSettings
from holdfast.deployers.kind import DeployerKind, DeployerParts
from holdfast.deployers.swapping import files_of, folder_name, name_of
from holdfast.kind_settings import KindSettings, Text
from holdfast.ports import FileAccess, Place

_RECORD: Final = "deployed.json"


class ProgramSettings(KindSettings):
    program: Text = Field(description="A program of the host that installs the bundle (deployment.local_file).")
    folder: Text = Field(description="The folder for the files while it runs; the host must allow it, too.")


@dataclass(frozen=True, slots=True)
class ProgramDeployer:
    settings: ProgramSettings
    parts: DeployerParts

    async def write(self, bundle: Bundle) -> Written:
        before = await self._newest_allowed(bundle)
        await self._run(bundle, "deploy")
        return Written(changed=before.get("content_id") != bundle.content_id, atomic=False)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        await self._newest_allowed(bundle)
        if previous is None:
            raise refused(f"Target {self.parts.target}: no bundle from before is known.")
        await self._run(previous, "restore")

    async def probe(self) -> str:
        self.parts.program(self.settings.program)
        await self._files.probe()
        return f"This host allows the program {self.settings.program}; it was not run."

    async def close(self) -> None:
        """Nothing stays open."""

    @property
    def _files(self) -> FilesDeployer:
        return FilesDeployer(FilesSettings(folder=self.settings.folder), self.parts)

    def _place(self, bundle: Bundle) -> Place:
        """Two targets may share a folder; what each of them did stays its own."""
        found = self._files.allowed(self.settings.folder)
        below = (*found.below, folder_name(self.parts.target), folder_name(bundle.certificate))
        return Place(root=found.root, below=below)

    async def _newest_allowed(self, bundle: Bundle) -> dict[str, Any]:
        """What was deployed last; Refused if that is newer than this one."""
        with self._files.told():
            content = await self.parts.bundles.read(self._place(bundle), _RECORD)
        record = _read(content)
        if record.get("number", -1) > bundle.number:
            why = f"Target {self.parts.target}: deployment {record['number']} is in place, which is newer."
            raise refused(why, Reason.TARGET_HAS_NEWER)
        return record

    async def _run(self, bundle: Bundle, why: Literal["deploy", "restore"]) -> None:
        """The name of the folder is the certificate's, since hooks of certbot take it for that."""
        self.parts.program(self.settings.program)  # an unknown one is refused before a key is on disk
        place = self._place(bundle)
        private = Place(root=place.root, below=(*place.below, name_of(bundle)))
        lineage = private.root.joinpath(*private.below, folder_name(bundle.certificate))
        with self._files.told():
            await self.parts.bundles.prune(place, [])  # left behind by a crash
            await self.parts.bundles.put(private, lineage.name, files_of(bundle), FileAccess())
        try:
            env = {**_paths(lineage), **_facts(bundle, self.parts.target, why)}
            told = json.dumps({**env, "names": bundle.names}).encode()
            await self.parts.run(
                self.settings.program,
                Reason.DEPLOY_FAILED,
                stdin=told,
                env=env,
                hidden=bundle.key.reveal().splitlines(),
            )
        finally:
            await self.parts.bundles.prune(place, [])
        record = json.dumps({"number": bundle.number, "content_id": bundle.content_id}).encode()
        with self._files.told():
            await self.parts.bundles.replace([(place, _RECORD, record)], FileAccess())


def _paths(lineage: Path) -> dict[str, str]:
    return {
        "RENEWED_LINEAGE": str(lineage),
        "HOLDFAST_PRIVATE": str(lineage),
        "HOLDFAST_CERTIFICATE": str(lineage / "cert.pem"),
        "HOLDFAST_KEY": str(lineage / "privkey.pem"),
        "HOLDFAST_CHAIN": str(lineage / "chain.pem"),
        "HOLDFAST_FULLCHAIN": str(lineage / "fullchain.pem"),
        "HOLDFAST_COMBINED": str(lineage / "combined.pem"),
        "HOLDFAST_ROOTS": str(lineage / "roots.pem"),
    }


def _facts(bundle: Bundle, target: str, why: str) -> dict[str, str]:
    return {
        "RENEWED_DOMAINS": " ".join(bundle.names),
        "HOLDFAST_NAME": bundle.certificate,
        "HOLDFAST_TARGET": target,
        "HOLDFAST_NUMBER": str(bundle.number),
        "HOLDFAST_SERIAL": bundle.serial,
        "HOLDFAST_NOT_AFTER": bundle.not_after.isoformat(),
        "HOLDFAST_REASON": why,
    }


def _read(record: bytes | None) -> dict[str, Any]:
    """What cannot be read says nothing: the program is run."""
    try:
        found = json.loads(record or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("number"), int) else {}


PROGRAM: Final[DeployerKind[ProgramSettings]] = Kind(
    name="program",
    summary="A program of this machine: a deploy hook of certbot, a deploy script of acme.sh, or your own.",
    settings=ProgramSettings,
    limits=DeployLimits(),
    traits=frozenset({Trait.RUNS_HERE}),
    make=ProgramDeployer,
)
