"""`python -m holdfast.agent.work`: one item in a process of its own, with the deployers of the server.

It reads the item and its keys from stdin, and writes one line with the result. The agent itself stays small, and a
deployer that fails takes nothing down with it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, get_args

from holdfast.agent import file as agent_file
from holdfast.agent.file import AgentFile, AgentTarget
from holdfast.core.agents.item import failed, well
from holdfast.core.endpoint import Endpoint, EndpointProtocol, KeyFamily, Sighting
from holdfast.core.reasons import Reason
from holdfast.deployers.base import Bundle, ChecksConfig, Deployer, Probes, Reloads, refused
from holdfast.deployers.bundle_wire import read_bundle
from holdfast.endpoints import probe
from holdfast.errors import Refused, TryLater
from holdfast.machine import LocalFiles, SystemRandom
from holdfast.network import SystemNet
from holdfast.secret import Secret
from holdfast.undumpable import forbid_core_dumps

MARK: Final = "RESULT "
FAMILIES: Final[tuple[KeyFamily, ...]] = get_args(KeyFamily)
LONGEST: Final = 8 * 1024 * 1024
# Where the endpoints of this host's own file may be, besides public addresses.
NEAR: Final = ("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
HANDSHAKE_FOR: Final = 10.0


async def carried_out(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The result of one item, whatever happens."""
    try:
        found = _file(Path(asked["config"]))
        if asked["call"] == "watch":
            return well({"seen": [each async for each in _watched(found)]})
        target = found.target(asked["target"])
        return well(await _call(found, target, asked["call"], asked["body"], asked.get("keys", {})))
    except TryLater as why:
        after = None if why.after is None else why.after.total_seconds()
        return failed(why.reason, str(why), refused=False, after_s=after)
    except Refused as why:
        return failed(why.reason, str(why), refused=True)
    except Exception as error:
        return failed(Reason.INTERNAL.value, f"{type(error).__name__}: {error}", refused=True)


def _file(path: Path) -> AgentFile:
    content = LocalFiles().read(path)
    if content is None:
        raise refused(f"The agent has no file {path}, so nothing is allowed on its host.", Reason.TARGET_UNKNOWN)
    try:
        return agent_file.read(content.decode())
    except ValueError as error:
        raise refused(f"The agent's file {path} cannot be used: {error}.") from None


async def _call(
    found: AgentFile, target: AgentTarget, call: str, body: Mapping[str, Any], keys: Mapping[str, str]
) -> dict[str, Any]:
    if call == "look":
        return {"sightings": [_told(each) for each in await _look(target, body["endpoint"])]}
    deployer = agent_file.opened(target, found.rules)
    try:
        return await _on(deployer, call, body, keys)
    finally:
        await deployer.close()


async def _on(deployer: Deployer, call: str, body: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    match call:
        case "write":
            return asdict(await deployer.write(_bundle(body, keys, "bundle")))
        case "restore":
            previous = _bundle(body, keys, "previous") if "previous" in body else None
            await deployer.restore(_bundle(body, keys, "bundle"), previous)
        case "test" if isinstance(deployer, ChecksConfig):
            await deployer.test()
        case "reload" if isinstance(deployer, Reloads):
            await deployer.reload()
        case "probe":
            detail = await deployer.probe() if isinstance(deployer, Probes) else "Its settings can be used."
            return {"detail": detail}
    return {}


def _bundle(body: Mapping[str, Any], keys: Mapping[str, str], name: str) -> Bundle:
    if name not in keys:
        raise refused("The key of this certificate is not on this host.", Reason.KEY_MISSING)
    return read_bundle(body[name], Secret(keys[name].encode()))


async def _look(target: AgentTarget, raw: Mapping[str, Any]) -> tuple[Sighting, ...]:
    asked = _endpoint(raw)
    places = {(each.host, each.port, each.protocol) for each in target.endpoints}
    if (asked.host, asked.port, asked.protocol) not in places:
        raise refused(f"The agent's file lists no endpoint {asked.shown} for target {target.name}.")
    resolvers = tuple(_name_servers()) or ("127.0.0.1",)
    made = probe.make(SystemNet(), SystemRandom(), resolvers=resolvers, networks=NEAR, each=HANDSHAKE_FOR)
    return await made.look(asked)


async def _watched(found: AgentFile) -> AsyncIterator[dict[str, Any]]:
    """What every endpoint of the file shows, and whether every target can be used. No server is asked."""
    for target in found.targets.values():
        yield {"target": target.name, "problem": await _unusable(found, target)}
        for endpoint in target.endpoints:
            for each in await _look(target, asdict(endpoint)):
                yield {"target": target.name, "endpoint": endpoint.shown, **_told(each)}


async def _unusable(found: AgentFile, target: AgentTarget) -> str:
    try:
        await _call(found, target, "probe", {}, {})
    except (TryLater, Refused) as why:
        return str(why)
    return ""


def _endpoint(raw: Mapping[str, Any]) -> Endpoint:
    try:
        return Endpoint(
            host=str(raw["host"]),
            port=int(raw["port"]),
            protocol=EndpointProtocol(raw["protocol"]),
            server_name=None if raw.get("server_name") is None else str(raw["server_name"]),
            addresses=tuple(str(each) for each in raw.get("addresses", ())),
            samples=int(raw.get("samples", 1)),
            keys=tuple(family for family in FAMILIES if family in raw.get("keys", ())),
        )
    except (KeyError, TypeError, ValueError):
        raise refused("The endpoint is not of this protocol.") from None


def _told(sighting: Sighting) -> dict[str, Any]:
    at = sighting.not_after
    return {**asdict(sighting), "not_after": None if at is None else at.isoformat()}


def _name_servers() -> list[str]:
    content = LocalFiles().read(Path("/etc/resolv.conf")) or b""
    lines = [line.split() for line in content.decode(errors="replace").splitlines()]
    return [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver" and "%" not in words[1]]


def main() -> None:
    forbid_core_dumps()
    asked = json.loads(sys.stdin.buffer.read(LONGEST))
    print(MARK + json.dumps(asyncio.run(carried_out(asked))), flush=True)


if __name__ == "__main__":
    main()
