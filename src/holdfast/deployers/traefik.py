"""Traefik: it watches its dynamic configuration and not the files of certificates, so that is what is replaced.

A bundle is written first, into a folder that nothing names yet. Then one rename puts a dynamic file in place that names
this very bundle: pair and trigger move together, and Traefik never reads a mixture.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import Field

from holdfast.core.kind import Kind, Trait
from holdfast.core.target import DeployLimits
from holdfast.deployers.base import Bundle, Written
from holdfast.deployers.files import FilesDeployer, FilesSettings
from holdfast.deployers.kind import DeployerKind, DeployerParts
from holdfast.deployers.swapping import folder_name
from holdfast.kind_settings import KindSettings, Text
from holdfast.ports import FileAccess


class TraefikSettings(KindSettings):
    folder: Text = Field(description="The folder for bundles; the host must allow it (deployment.local_file).")
    dynamic: Text = Field(description="The folder that providers.file.directory names, with watch; likewise.")
    owner: Text = Field(default="", description="The user who owns the files; else as before.")
    group: Text = Field(default="", description="A group that may read keys; else as before.")


@dataclass(frozen=True, slots=True)
class TraefikDeployer:
    settings: TraefikSettings
    parts: DeployerParts

    async def write(self, bundle: Bundle) -> Written:
        """Of the bundles before, the last one is kept: until the rename, the dynamic file names it."""
        written = await self._files.write(bundle)
        return Written(changed=await self._named(bundle) or written.changed, atomic=True)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        await self._files.restore(bundle, previous)
        await self._named(bundle)

    async def probe(self) -> str:
        self._files.allowed(self.settings.dynamic)
        return f"{await self._files.probe()} Traefik is told of it by a file in {self.settings.dynamic}."

    async def close(self) -> None:
        """Nothing stays open."""

    @property
    def _files(self) -> FilesDeployer:
        same = self.settings.model_dump(include={"folder", "owner", "group"})
        return FilesDeployer(FilesSettings(**same), self.parts)

    async def _named(self, bundle: Bundle) -> bool:
        """Let the dynamic file name the bundle that is current; whether it did not before."""
        files, name = self._files, f"holdfast-{folder_name(bundle.certificate)}.yml"
        place = files.place(bundle)
        current = await self.parts.bundles.current(place)
        content = _dynamic(place.root.joinpath(*place.below, str(current)))
        dynamic = files.allowed(self.settings.dynamic)
        with files.told():
            if await self.parts.bundles.read(dynamic, name) == content:
                return False
            access = FileAccess(owner=self.settings.owner, group=self.settings.group)
            await self.parts.bundles.replace([(dynamic, name, content)], access)
        return True


def _dynamic(folder: Path) -> bytes:
    """JSON is YAML, too, and quotes whatever a path may hold."""
    pair = {"certFile": str(folder / "fullchain.pem"), "keyFile": str(folder / "privkey.pem")}
    return (json.dumps({"tls": {"certificates": [pair]}}, indent=2) + "\n").encode()


TRAEFIK: Final[DeployerKind[TraefikSettings]] = Kind(
    name="traefik",
    summary="Traefik of this machine, by its file provider: nothing is reloaded.",
    settings=TraefikSettings,
    limits=DeployLimits(),
    traits=frozenset({Trait.ATOMIC, Trait.KEEPS_PREVIOUS, Trait.RUNS_HERE}),
    make=TraefikDeployer,
)
