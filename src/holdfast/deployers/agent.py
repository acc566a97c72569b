"""A target at an agent: every call is carried out on its host, by the same deployers, as the agent's own file says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import Field

from holdfast.core.endpoint import Endpoint, Sighting, SightingProblem
from holdfast.core.kind import Kind, Trait
from holdfast.core.target import DeployLimits
from holdfast.deployers.base import Bundle, Written, refused
from holdfast.deployers.bundle_wire import bundle_body
from holdfast.deployers.kind import AgentCalls, DeployerKind, DeployerParts
from holdfast.kind_settings import KindSettings, Text


class AgentTargetSettings(KindSettings):
    agent: Text = Field(description="The agent's name.")
    target: Text | None = Field(default=None, description="The target's name in the agent's file; else its name here.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDeployer:
    calls: AgentCalls
    agent: str
    target: str

    async def _call(self, call: str, body: Mapping[str, Any], **keys: Any) -> Mapping[str, Any]:
        return await self.calls.call(self.agent, self.target, call, body, keys)

    async def write(self, bundle: Bundle) -> Written:
        found = await self._call("write", {"bundle": bundle_body(bundle)}, bundle=bundle.key)
        return Written(changed=found.get("changed") is not False, atomic=found.get("atomic") is not False)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        body: dict[str, Any] = {"bundle": bundle_body(bundle)}
        keys = {"bundle": bundle.key}
        if previous is not None:
            body["previous"] = bundle_body(previous)
            keys["previous"] = previous.key
        await self._call("restore", body, **keys)

    @property
    def tested_by(self) -> str:
        return f"target {self.target} of agent {self.agent}"

    async def test(self) -> None:
        await self._call("test", {})

    @property
    def reloaded_by(self) -> str:
        return self.tested_by

    async def reload(self) -> None:
        await self._call("reload", {})

    async def probe(self) -> str:
        return str((await self._call("probe", {})).get("detail", "The agent answers."))[:400]

    async def look(self, endpoint: Endpoint) -> tuple[Sighting, ...]:
        found = (await self._call("look", {"endpoint": asdict(endpoint)})).get("sightings")
        if not isinstance(found, list) or not 0 < len(found) <= 1000:
            raise refused(f"Agent {self.agent} told nothing that it saw.")
        return tuple(_sighting(each) for each in found)

    async def close(self) -> None:
        """The agent asks us: there is no connection."""


def _sighting(raw: Any) -> Sighting:
    try:
        at = raw.get("not_after")
        return Sighting(
            **{
                **raw,
                "chain": tuple(raw.get("chain", ())),
                "names": tuple(raw.get("names", ())),
                "not_after": None if at is None else datetime.fromisoformat(at),
                "problem": None if raw.get("problem") is None else SightingProblem(raw["problem"]),
            }
        )
    except (AttributeError, TypeError, ValueError):
        raise refused("The agent told something else than what it saw.") from None


def _make(settings: AgentTargetSettings, parts: DeployerParts) -> AgentDeployer:
    if parts.agents is None:
        raise refused(f"Target {parts.target}: this process has no agents.")
    return AgentDeployer(calls=parts.agents, agent=settings.agent, target=settings.target or parts.target)


AGENT: Final[DeployerKind[AgentTargetSettings]] = Kind(
    name="agent",
    summary="A target on the host of an agent, as the agent's own file describes it.",
    settings=AgentTargetSettings,
    limits=DeployLimits(),
    traits=frozenset({Trait.KEEPS_PREVIOUS, Trait.HAS_KEYS}),
    make=_make,
    address="agent",
    destinations=frozenset({"agent", "target"}),
)
