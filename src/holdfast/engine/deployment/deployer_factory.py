"""Makes the deployer of a stored target: opens its credentials and checks its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast import kind_settings, plugins
from holdfast.core.reasons import Reason
from holdfast.core.target import TargetRow
from holdfast.deployers.base import Deployer, Probes, refused
from holdfast.deployers.kind import AgentCalls, DeployerParts, LocalRules, Offers
from holdfast.operations import remotes
from holdfast.operations.installation.secret_store import SecretStore
from holdfast.ports import BundleFolders, Clock, Net, Random, Transport
from holdfast.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployers:
    """One for a process: the engine and `holdfast target test` reach targets in the same way."""

    secret_store: SecretStore
    transport: Transport
    net: Net
    bundles: BundleFolders
    clock: Clock
    random: Random
    offers: Offers
    host: str  # the name of this replica
    local: LocalRules
    agents: AgentCalls | None = None

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(plugins.kinds(plugins.DEPLOYERS))

    async def check(self, name: str, kind: str, settings: Mapping[str, Any], credentials: Mapping[str, Any]) -> None:
        """Refused names the setting or credential that is wrong. Nothing is reached."""
        self._make(name, kind, settings, {purpose: _text(each) for purpose, each in credentials.items()})

    async def open(self, row: TargetRow) -> Deployer:
        opened = await remotes.opened(self.secret_store, row)
        return self._make(row.name, row.kind, row.settings, {each: _text(held) for each, held in opened.items()})

    async def probe(self, row: TargetRow) -> str:
        """Whether a deployment would work; TryLater or Refused if not."""
        deployer = await self.open(row)
        try:
            return await deployer.probe() if isinstance(deployer, Probes) else "Its settings can be used."
        finally:
            await deployer.close()

    def _make(
        self, name: str, kind: str, settings: Mapping[str, Any], credentials: Mapping[str, Secret[str]]
    ) -> Deployer:
        known = plugins.kinds(plugins.DEPLOYERS)
        if kind not in known:
            raise refused(f"Target {name}: {known.problem(kind)}.", Reason.TARGET_UNKNOWN)
        try:
            read = kind_settings.read(known[kind], settings, {each: held for each, held in credentials.items() if held})
        except ValueError as why:
            raise refused(f"Target {name}: {why}.") from None
        parts = DeployerParts(
            target=name,
            credentials=credentials,
            transport=self.transport,
            net=self.net,
            files=self.secret_store.files,
            bundles=self.bundles,
            clock=self.clock,
            random=self.random,
            offers=self.offers,
            local=self.local,
            agents=self.agents,
        )
        made: Deployer = known[kind].make(read, parts)
        return made


def _text(content: Secret[bytes]) -> Secret[str]:
    return Secret(content.reveal().decode("utf-8", "replace").strip())
