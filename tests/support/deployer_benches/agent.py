"""A bench for `agent`: the host's side of an item, with its file and its sealing key, without the way there."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.agent.keys import HostKeys
from holdfast.agent.state import AgentFolder
from holdfast.agent.work import carried_out
from holdfast.core import base64url
from holdfast.core.agents.item import WorkOrder
from holdfast.deployers.agent import AGENT, AgentTargetSettings
from holdfast.deployers.base import Deployer, later
from holdfast.machine import LocalFiles
from holdfast.operations.agents.calls import answer
from holdfast.pki import agent_keys
from holdfast.secret import Secret
from tests.support.deployer_benches.files import FilesBench
from tests.support.deploying import parts


class HostCalls:
    """Carries an item out as the agent does."""

    def __init__(self, root: Path, config: Path) -> None:
        self.away = False
        self._config = config
        self._folder = AgentFolder(path=root / "state", files=LocalFiles())

    async def call(
        self, agent: str, target: str, call: str, body: Mapping[str, Any], keys: Mapping[str, Secret[bytes]]
    ) -> Mapping[str, Any]:
        if self.away:
            raise later(f"Agent {agent} was never heard of.")
        to = agent_keys.public_der(self._folder.sealing())
        sealed = {name: base64url.encode(agent_keys.seal(key, to, purpose="item_1")) for name, key in keys.items()}
        sent = json.loads(json.dumps({**body, "keys": sealed}))
        item = WorkOrder(id="item_1", agent="a", target=target, call=call, fence=1, deadline=0, body=sent)
        opened = {name: key.reveal().decode() for name, key in HostKeys(folder=self._folder).for_item(item).items()}
        asked = {"config": str(self._config), "target": target, "call": call, "body": sent, "keys": opened}
        return answer(agent, json.loads(json.dumps(await carried_out(asked))))


class AgentBench(FilesBench):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        config = root / "agent.toml"
        config.write_text(
            f"""folders = ["{root}/live"]
[programs.daemon]
argv = ["{root}/program"]
[targets.web]
kind = "files"
[targets.web.settings]
folder = "{root}/live"
test = "daemon"
reload = "daemon"
"""
        )
        self.calls = HostCalls(root, config)

    async def deployer(self) -> Deployer:
        made: Deployer = AGENT.make(
            AgentTargetSettings(agent="edge", target="web"), replace(parts(self._rules), agents=self.calls)
        )
        return made

    async def go_away(self) -> bool:
        self.calls.away = True
        return True

    async def come_back(self) -> None:
        self.calls.away = False
        await super().come_back()


@asynccontextmanager
async def a_bench() -> AsyncIterator[AgentBench]:
    with tempfile.TemporaryDirectory() as folder:
        yield AgentBench(Path(folder))
