"""Vault's key-value store, version 2: one write is one version, and check-and-set catches a second writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field

from holdfast.core.kind import Credential, Kind, Trait
from holdfast.core.reasons import Reason
from holdfast.core.target import DeployLimits
from holdfast.deployers.base import Bundle, Written, refused
from holdfast.deployers.held import Held, nothing_before, texts_of
from holdfast.deployers.kind import DeployerKind, DeployerParts
from holdfast.deployers.rest import Remote, RestTargetSettings, read_json, table
from holdfast.kind_settings import Flag, whole

_NAME: Final = "[A-Za-z0-9_.-]+"
_PATH: Final = f"{_NAME}(?:/{_NAME})*"
_DENIED: Final = {
    403: "Check the credential token: it needs create, read and update on the path with data/ in it.",
    404: "Check the setting mount: it must be a key-value store of version 2.",
}


class VaultKvSettings(RestTargetSettings):
    mount: str = Field(default="secret", pattern=whole(_PATH), description="The mount of the store, version 2.")
    path: str = Field(pattern=whole(_PATH), description="The path of the secret below the mount.")
    namespace: str = Field(default="", pattern=whole(_PATH), description="Of Vault Enterprise; empty: none.")
    take_over: Flag = Field(default=False, description="Overwrite a secret that was not written from here.")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvVersion:
    """What is at the path: `number` 0, if there never was anything."""

    number: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class VaultKvDeployer:
    settings: VaultKvSettings
    parts: DeployerParts

    async def write(self, bundle: Bundle) -> Written:
        return await self._replaced(await self._read(), bundle, None)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        found = await self._read()
        if previous is not None:
            await self._replaced(found, previous, bundle)
            return
        held = Held.read(found.data)
        if held is None or held.number != bundle.number:
            return  # it was taken away before
        before = await self._read(found.number - 1)
        if not before.data:
            raise nothing_before(self.parts.target, "Vault")
        await self._put(before.data, found.number)

    async def probe(self) -> str:
        found = await self._read()
        return f"Vault answers for {self.settings.mount}/{self.settings.path}, which is at version {found.number}."

    async def close(self) -> None:
        """Nothing stays open."""

    async def _replaced(self, found: KvVersion, bundle: Bundle, instead_of: Bundle | None) -> Written:
        held = Held.read(found.data)
        if held is not None:
            held.yields(self.parts.target, bundle, instead_of)
        elif found.data and not self.settings.take_over:
            why = f"{self.settings.mount}/{self.settings.path} holds a secret that was not written from here"
            raise refused(
                f"Target {self.parts.target}: {why}. Set take_over to true to replace it.", Reason.TARGET_TAKEN
            )
        wanted = _data(bundle)
        if found.data == wanted:
            return Written(changed=False)
        await self._put(wanted, found.number)
        return Written(changed=any(found.data.get(each) != wanted[each] for each in ("leaf", "chain", "private_key")))

    async def _read(self, version: int = 0) -> KvVersion:
        remote, asked = self._remote(), f"?version={version}" if version else ""
        response = await remote.ask("GET", f"{self._path}{asked}", headers=self._headers())
        said = table(read_json(response))
        if response.status == 404 and said.get("errors") == []:
            return KvVersion(number=0, data={})
        if response.status == 404 and "data" in said:  # deleted, which is a version as well
            return KvVersion(number=_version(said), data={})
        return KvVersion(number=_version(remote.answer(response, _DENIED)), data=table(table(said["data"]).get("data")))

    async def _put(self, data: dict[str, Any], number: int) -> None:
        remote, body = self._remote(), {"options": {"cas": number}, "data": data}
        response = await remote.ask("POST", self._path, body=body, headers=self._headers())
        if response.status == 400 and b"check-and-set" in response.body and b"did not match" in response.body:
            raise remote.passing(response, Reason.TARGET_BUSY)  # the next look finds what the other one wrote
        remote.answer(response, _DENIED)

    @property
    def _path(self) -> str:
        return f"/v1/{self.settings.mount}/data/{self.settings.path}"

    def _headers(self) -> dict[str, str]:
        named = {"X-Vault-Namespace": self.settings.namespace} if self.settings.namespace else {}
        return {"X-Vault-Token": self.parts.credentials["token"].reveal(), "X-Vault-Request": "true", **named}

    def _remote(self) -> Remote:
        settings, secrets = self.settings, tuple(self.parts.credentials.values())
        base = settings.base_url.removesuffix("/v1")
        return Remote(parts=self.parts, name="Vault", base=base, roots=settings.roots, secrets=secrets)


def _version(said: dict[str, Any]) -> int:
    number = table(table(said.get("data")).get("metadata")).get("version")
    return number if isinstance(number, int) else 0


def _data(bundle: Bundle) -> dict[str, str]:
    return {
        **texts_of(bundle),
        "leaf": bundle.leaf.decode(),
        "chain": bundle.chain.decode(),
        "fullchain": bundle.fullchain.decode(),
        "private_key": bundle.key.reveal().decode(),
        **({"roots": bundle.roots.decode()} if bundle.roots else {}),
    }


VAULT_KV: Final[DeployerKind[VaultKvSettings]] = Kind(
    name="vault-kv",
    summary="A secret in the key-value store, version 2, of Vault (HashiCorp Vault, OpenBao).",
    settings=VaultKvSettings,
    credentials=(Credential(name="token", summary="A token that may read and write the secret."),),
    limits=DeployLimits(certificates=1),
    traits=frozenset({Trait.ATOMIC, Trait.KEEPS_PREVIOUS}),
    make=VaultKvDeployer,
)
