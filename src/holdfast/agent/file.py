"""The agent's own file: what may be written and run on this host. Nothing in it ever comes from the server.

folders = ["/etc/nginx/tls"]          # the keys of deployment.local_file: folders, allow, sockets, programs
allow = ["nginx"]

[targets.web]
kind = "nginx"                        # a kind of deployer, or the preset of a daemon
endpoints = ["127.0.0.1:443"]         # where it is looked for; the server may name these and no others
[targets.web.settings]
folder = "/etc/nginx/tls"
[targets.web.credential_files]        # such as the password of a PKCS#12 store
password = "/etc/holdfast/p12-password"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast import kind_settings, plugins
from holdfast.core.endpoint import Endpoint, endpoint_of
from holdfast.core.kind import Trait
from holdfast.core.reasons import Reason
from holdfast.deployers import local_file
from holdfast.deployers.base import Deployer, refused
from holdfast.deployers.kind import DeployerParts, LocalRules
from holdfast.local_bundles import LocalBundles
from holdfast.machine import LocalFiles, SystemRandom
from holdfast.network import SystemNet
from holdfast.ports import Files, Request, Response
from holdfast.secret import Secret
from holdfast.system_clock import SystemClock

_TARGET: Final = frozenset({"kind", "settings", "endpoints", "credential_files"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTarget:
    name: str
    kind: str
    settings: Mapping[str, Any]
    endpoints: tuple[Endpoint, ...] = ()
    credential_files: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFile:
    rules: LocalRules
    targets: Mapping[str, AgentTarget]

    def target(self, name: str) -> AgentTarget:
        found = self.targets.get(name)
        if found is None:
            known = ", ".join(sorted(self.targets)) or "none"
            raise refused(f"The agent's file has no target {name!r:.60}; it has: {known}.", Reason.TARGET_UNKNOWN)
        return found


def read(text: str) -> AgentFile:
    """What the file says; ValueError says what is wrong with it."""
    found = tomllib.loads(text)
    tables = found.pop("targets", {})
    if not isinstance(tables, dict):
        raise ValueError("targets are tables: [targets.NAME]")
    return AgentFile(
        rules=local_file.rules_from(found), targets={name: _target(name, each) for name, each in tables.items()}
    )


def _target(name: str, table: Any) -> AgentTarget:
    if not isinstance(table, dict) or set(table) - _TARGET or not isinstance(table.get("kind"), str):
        raise ValueError(f"targets.{name} is a table with kind, and perhaps settings, endpoints and credential_files")
    preset = _presets().get(table["kind"])
    kind, settings = (table["kind"], {}) if preset is None else preset
    return AgentTarget(
        name=name,
        kind=kind,
        settings={**settings, **dict(table.get("settings", {}))},
        endpoints=tuple(endpoint_of(str(each)) for each in table.get("endpoints", [])),
        credential_files={key: Path(str(path)) for key, path in dict(table.get("credential_files", {})).items()},
    )


def _presets() -> dict[str, tuple[str, Mapping[str, Any]]]:
    known = plugins.kinds(plugins.DEPLOYERS)
    return {name: (kind.name, given) for kind in known.values() for name, given in kind.presets.items()}


class _NoTransport:
    async def request(self, request: Request) -> Response:
        raise refused("An agent deploys to its own host alone.")


def opened(target: AgentTarget, rules: LocalRules) -> Deployer:
    """The same deployers as the server's, of those kinds that work on the host that they run on."""
    known = plugins.kinds(plugins.DEPLOYERS)
    if target.kind not in known or Trait.RUNS_HERE not in known[target.kind].traits:
        raise refused(f"Target {target.name}: {target.kind!r:.40} is no kind for an agent.", Reason.TARGET_UNKNOWN)
    files = LocalFiles()
    credentials = {name: _secret(files, path) for name, path in target.credential_files.items()}
    try:
        settings = kind_settings.read(known[target.kind], target.settings, credentials)
    except ValueError as why:
        raise refused(f"Target {target.name}: {why}.") from None
    parts = DeployerParts(
        target=target.name,
        credentials=credentials,
        transport=_NoTransport(),
        net=SystemNet(),
        files=files,
        bundles=LocalBundles(),
        clock=SystemClock(),
        random=SystemRandom(),
        local=rules,
    )
    made: Deployer = known[target.kind].make(settings, parts)
    return made


def _secret(files: Files, path: Path) -> Secret[str]:
    content = files.read(path)
    if not content:
        raise refused(f"There is no secret in {path}.", Reason.KEY_MISSING)
    return Secret(content.decode("utf-8", "replace").strip())
