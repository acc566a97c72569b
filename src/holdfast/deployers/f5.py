"""F5 BIG-IP, by iControl REST: a pair is installed under new names, and one transaction lets a profile use it.

The pair before stays for a rollback, and older ones are removed. So are the uploaded files, which hold the key. A
change is saved, since a BIG-IP forgets at its next start what is not.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pydantic import Field

from holdfast.core.kind import DESTINATIONS, Credential, Kind, Trait
from holdfast.core.reasons import Reason
from holdfast.core.target import DeployLimits
from holdfast.deployers.base import Bundle, Written, later, refused
from holdfast.deployers.held import nothing_before
from holdfast.deployers.kind import DeployerKind, DeployerParts
from holdfast.deployers.rest import Remote, RestTargetSettings, table
from holdfast.deployers.swapping import folder_name
from holdfast.errors import Refused, TryLater
from holdfast.kind_settings import Text, whole
from holdfast.secret import Secret

UPLOADS: Final = "/var/config/rest/downloads"  # where uploaded files are found, whatever the name says
_WORD: Final = "[A-Za-z0-9_.-]{1,200}"
_OURS: Final = re.compile(r"holdfast_([A-Za-z0-9_.-]+)_(\d{1,18})_([0-9a-f]{16})\.crt")
_DENIED: Final = {
    401: "Check the setting user and the credential password.",
    403: "The user needs the role Administrator on the partition.",
    404: "Check the settings partition and profile.",
}


class F5Settings(RestTargetSettings):
    user: Text = Field(description="The user who logs in.")
    login_provider: Text = Field(default="tmos", description="The provider that knows the user.")
    partition: str = Field(default="Common", pattern=whole(_WORD), description="The partition of the profile.")
    profile: str = Field(pattern=whole(_WORD), description="The name of a client SSL profile with one pair.")
    device_group: str = Field(default="", pattern=whole(_WORD), description="A device group to sync after a change.")


@dataclass(frozen=True, slots=True)
class PairNames:
    """The names of a pair on the BIG-IP say which bundle it is."""

    certificate: str
    number: int
    content_id: str

    @classmethod
    def of(cls, bundle: Bundle) -> PairNames:
        return cls(folder_name(bundle.certificate), bundle.number, bundle.content_id)

    @classmethod
    def read(cls, path: object) -> PairNames | None:
        """None: it is not ours."""
        found = _OURS.fullmatch(str(path).rpartition("/")[2])
        return None if found is None else cls(found[1], int(found[2]), found[3])

    @property
    def stem(self) -> str:
        return f"holdfast_{self.certificate}_{self.number}_{self.content_id}"


@dataclass(slots=True)
class F5Deployer:
    settings: F5Settings
    parts: DeployerParts
    _token: Secret[str] | None = None

    async def write(self, bundle: Bundle) -> Written:
        there, wanted = await self._in_use(), PairNames.of(bundle)
        self._yields(there, bundle, bundle.number)
        if there is not None and there.content_id == bundle.content_id:
            return Written(changed=False)
        await self._install(bundle, wanted)
        await self._switch(wanted, chain=bool(bundle.chain))
        await self._prune(wanted, there)
        return Written(changed=True)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        self._yields(await self._in_use(), bundle, bundle.number)
        if previous is not None:
            await self._install(previous, PairNames.of(previous))
            await self._switch(PairNames.of(previous), chain=bool(previous.chain))
            return
        kept = [each for each in await self._kept(PairNames.of(bundle)) if each.number < bundle.number]
        if not kept:
            raise nothing_before(self.parts.target, "the BIG-IP")
        await self._switch(max(kept, key=lambda each: each.number), chain=bool(bundle.chain))

    async def probe(self) -> str:
        there = await self._in_use()
        ours = "a pair of another make" if there is None else f"number {there.number} of {there.certificate}"
        return f"The BIG-IP is active, and its profile {self.settings.profile} has {ours}."

    async def close(self) -> None:
        """Log out: a user may have 100 tokens at a time."""
        token, self._token = self._token, None
        if token is not None:
            with suppress(TryLater, Refused):
                headers = {"X-F5-Auth-Token": token.reveal()}
                await self._remote(token).ask("DELETE", f"/mgmt/shared/authz/tokens/{token.reveal()}", headers=headers)

    # ── The profile ──

    async def _in_use(self) -> PairNames | None:
        """The pair of the profile, if it is ours."""
        state = str(await self._call("GET", "/mgmt/tm/cm/failover-status"))
        if "STANDBY" in state.upper():
            why = "this unit is on standby, and its changes would be overwritten. Let base_url lead to the active one"
            raise later(f"Target {self.parts.target}: {why}.", Reason.TARGET_BUSY)
        return PairNames.read((await self._pair()).get("cert"))

    async def _pair(self) -> dict[str, Any]:
        pairs = (await self._call("GET", self._profile)).get("certKeyChain")
        if isinstance(pairs, list) and len(pairs) > 1:
            why = f"profile {self.settings.profile} has {len(pairs)} pairs; name one that has a single pair"
            raise refused(f"Target {self.parts.target}: {why}.", Reason.TARGET_TAKEN)
        return table(pairs[0]) if isinstance(pairs, list) and pairs else {}

    def _yields(self, there: PairNames | None, bundle: Bundle, highest: int) -> None:
        if there is not None and there.certificate != folder_name(bundle.certificate):
            why = f"profile {self.settings.profile} has the certificate {there.certificate:.100}"
            raise refused(f"Target {self.parts.target}: {why}; one profile has one.", Reason.TARGET_TAKEN)
        if there is not None and there.number > highest:
            why = f"deployment {there.number} is in place, which is newer"
            raise refused(f"Target {self.parts.target}: {why}.", Reason.TARGET_HAS_NEWER)

    async def _switch(self, names: PairNames, *, chain: bool) -> None:
        """In a transaction: without its header each change would be made at once, and one could fail alone."""
        stem = f"/{self.settings.partition}/{names.stem}"
        pair = {"name": "holdfast", "cert": f"{stem}.crt", "key": f"{stem}.key"}
        async with self._transaction() as number:
            within = {"X-F5-REST-Coordination-Id": str(number)}
            body = {"certKeyChain": [pair | ({"chain": f"{stem}.chain.crt"} if chain else {})]}
            await self._call("PATCH", self._profile, body, within)
        if PairNames.read((await self._pair()).get("cert")) != names:
            raise refused(f"Target {self.parts.target}: the profile is not as it was set.")
        await self._call("POST", "/mgmt/tm/sys/config", {"command": "save"})
        if self.settings.device_group:
            sync = {"command": "run", "utilCmdArgs": f"config-sync to-group {self.settings.device_group}"}
            await self._call("POST", "/mgmt/tm/cm", sync)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[int]:
        found = (await self._call("POST", "/mgmt/tm/transaction", {})).get("transId")
        if not isinstance(found, int):
            raise refused(f"Target {self.parts.target}: the BIG-IP began no transaction.")
        path = f"/mgmt/tm/transaction/{found}"
        try:
            yield found
            said = await self._call("PATCH", path, {"state": "VALIDATING"})
            if said.get("state") not in ("COMPLETED", "FAILED"):
                said = await self._call("GET", path)
        except BaseException:
            with suppress(TryLater, Refused):
                await self._call("DELETE", path)
            raise
        if said.get("state") == "FAILED":
            why = f"the BIG-IP refused the change: {said.get('failureReason')!s:.300}"
            raise refused(f"Target {self.parts.target}: {why}")
        if said.get("state") != "COMPLETED":
            raise later(f"Target {self.parts.target}: the BIG-IP is still at its transaction.", Reason.TARGET_BUSY)

    @property
    def _profile(self) -> str:
        return f"/mgmt/tm/ltm/profile/client-ssl/~{self.settings.partition}~{self.settings.profile}"

    # ── Pairs ──

    async def _install(self, bundle: Bundle, names: PairNames) -> None:
        files: list[tuple[str, str, bytes | Secret[bytes]]] = [
            ("key", f"{names.stem}.key", bundle.key),
            ("cert", f"{names.stem}.crt", bundle.leaf),
        ]
        if bundle.chain:
            files.append(("cert", f"{names.stem}.chain.crt", bundle.chain))
        for kind, name, content in files:
            await self._installed(kind, name, content.reveal() if isinstance(content, Secret) else content)

    async def _installed(self, kind: str, name: str, content: bytes) -> None:
        path = f"{UPLOADS}/{name}"
        try:
            span = {"Content-Type": "application/octet-stream", "Content-Range": f"0-{len(content) - 1}/{len(content)}"}
            await self._call("POST", f"/mgmt/shared/file-transfer/uploads/{name}", content, span)
            asked = {"command": "install", "name": f"/{self.settings.partition}/{name}", "from-local-file": path}
            await self._call("POST", f"/mgmt/tm/sys/crypto/{kind}", asked)
        finally:
            await self._call("POST", "/mgmt/tm/util/unix-rm", {"command": "run", "utilCmdArgs": path})

    async def _kept(self, like: PairNames) -> list[PairNames]:
        """Pairs of ours for the same certificate."""
        listed = (await self._call("GET", "/mgmt/tm/sys/file/ssl-cert?$select=name")).get("items")
        read = [PairNames.read(table(each).get("name")) for each in listed] if isinstance(listed, list) else []
        return [each for each in read if each is not None and each.certificate == like.certificate]

    async def _prune(self, *keep: PairNames | None) -> None:
        """What another profile uses is refused, and stays."""
        for each in await self._kept(keep[0]) if keep[0] else []:
            if each not in keep:
                for kind, name in (("key", ".key"), ("cert", ".crt"), ("cert", ".chain.crt")):
                    with suppress(Refused):
                        path = f"ssl-{kind}/~{self.settings.partition}~{each.stem}{name}"
                        await self._call("DELETE", f"/mgmt/tm/sys/file/{path}")

    # ── The API ──

    async def _call(
        self, method: str, path: str, body: Any = b"", headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        token = await self._logged_in()
        remote = self._remote(token)
        told = {"X-F5-Auth-Token": token.reveal(), **(headers or {})}
        response = await remote.ask(method, path, body=body, headers=told)
        if method == "DELETE" and 200 <= response.status < 300:
            return {}
        return remote.answer(response, _DENIED)

    async def _logged_in(self) -> Secret[str]:
        if self._token is None:
            asked = {
                "username": self.settings.user,
                "password": self.parts.credentials["password"].reveal(),
                "loginProviderName": self.settings.login_provider,
            }
            remote = self._remote()
            said = remote.answer(await remote.ask("POST", "/mgmt/shared/authn/login", body=asked), _DENIED)
            given = table(said.get("token")).get("token")
            if not isinstance(given, str) or not re.fullmatch(r"[A-Za-z0-9]{1,200}", given):
                raise refused(f"Target {self.parts.target}: the BIG-IP gave no token.")
            self._token = Secret(given)
        return self._token

    def _remote(self, *more: Secret[str]) -> Remote:
        known = (*self.parts.credentials.values(), *more)
        settings = self.settings
        return Remote(
            parts=self.parts, name="The BIG-IP", base=settings.base_url, roots=settings.roots, secrets=known
        )  # fmt: skip


F5: Final[DeployerKind[F5Settings]] = Kind(
    name="f5",
    summary="A client SSL profile of an F5 BIG-IP, by iControl REST (version 12 or later).",
    settings=F5Settings,
    credentials=(Credential(name="password", summary="The password of the user."),),
    limits=DeployLimits(certificates=1, verify_for=timedelta(minutes=2)),
    traits=frozenset({Trait.ATOMIC, Trait.KEEPS_PREVIOUS}),
    destinations=DESTINATIONS | {"login_provider"},
    make=F5Deployer,
)
