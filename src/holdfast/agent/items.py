"""Items of work on the host: verified, fenced, carried out one at a time, and told until the server has heard it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from holdfast.agent.keys import HostKeys
from holdfast.agent.log import AgentLog
from holdfast.agent.state import AgentFolder, Enrolled
from holdfast.core import base64url
from holdfast.core.agents.item import CALLS, BadItem, WorkOrder, failed, read_item
from holdfast.errors import TryLater
from holdfast.pki import agent_keys
from holdfast.pki.refused import PkiRefused
from holdfast.ports import Clock

SPOOL: Final = "spool.json"
LONGEST_RUN: Final = 140.0  # seconds for one item
MARK: Final = "RESULT "
MOST_ITEMS: Final = 16
EXPIRES_SOON: Final = timedelta(days=7)


@dataclass(slots=True, kw_only=True)
class Last:
    """The newest item of a target; its result is kept, so that the same item gives the same."""

    fence: int
    item: str
    result: dict[str, Any] | None = None
    told: bool = False  # the server has acknowledged it
    call: str = ""


@dataclass(slots=True, kw_only=True)
class Worker:
    """`last` is written before an item is begun and when it is done: a crash in between carries it out again."""

    folder: AgentFolder
    config: Path
    log: AgentLog
    clock: Clock
    last: dict[str, Last] = field(default_factory=dict)
    ready: dict[str, dict[str, Any]] = field(default_factory=dict)  # results that could not be written down
    queue: asyncio.Queue[WorkOrder] = field(default_factory=asyncio.Queue)
    running: set[str] = field(default_factory=set)
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def load(self) -> None:
        try:
            raw = json.loads(self.folder.files.read(self.folder.path / SPOOL) or b"{}")
            self.last = {target: Last(**each) for target, each in raw.items()}
        except (ValueError, TypeError) as error:
            self.log("spool_unreadable", why=str(error))
        self.idle.set()

    def _keep(self) -> None:
        content = json.dumps({target: asdict(each) for target, each in self.last.items()}).encode()
        self.folder.files.write_private(self.folder.path / SPOOL, content, replace=True)

    # ── Between polls ──

    def results(self) -> list[dict[str, Any]]:
        spooled = {each.item: each.result for each in self.last.values() if each.result is not None and not each.told}
        return [{"id": item, "result": result} for item, result in {**spooled, **self.ready}.items()]

    def acknowledged(self, items: object) -> None:
        heard = {each for each in items if isinstance(each, str)} if isinstance(items, list) else set()
        changed = [each for each in self.last.values() if each.item in heard and not each.told]
        for each in changed:
            each.told = True
        for item in heard & self.ready.keys():
            del self.ready[item]
        if changed:
            self._keep_quietly()

    def accept(self, state: Enrolled, work: object) -> None:
        """Take in what an answer carried. What is not signed by our server is not looked at any further."""
        for raw in work[:MOST_ITEMS] if isinstance(work, list) else []:
            try:
                self._take(read_item(_verified(state, raw)), state)
            except BadItem as why:
                self.log("item_refused", why=str(why))

    def _take(self, item: WorkOrder, state: Enrolled) -> None:
        before = self.last.get(item.target)
        if item.agent != state.agent:
            raise BadItem("the item is for another agent")
        if item.id in self.running:
            return
        if before is not None and before.item == item.id and before.result is not None:
            before.told = False  # asked again: the same result
            return
        if before is not None and item.fence < before.fence:
            why = f"Target {item.target}: a newer item was carried out here before this one."
            self.ready[item.id] = failed("TARGET_REFUSED", why, refused=True)
            self.log("fence_refused", item=item.id, target=item.target, fence=item.fence, newest=before.fence)
            return
        if item.call not in CALLS:
            self.ready[item.id] = failed("TARGET_REFUSED", f"This agent does not know {item.call!r:.40}.", refused=True)
            return
        self.last[item.target] = Last(fence=item.fence, item=item.id, call=item.call)
        try:
            self._keep()
        except OSError as error:
            self._restore(item.target, before)
            why = f"The agent cannot write to {self.folder.path}: {error.strerror or error}. Nothing was changed."
            self.ready[item.id] = failed("TARGET_BUSY", why, refused=False)
            self.log("spool_full", why=why)
            return
        self.running.add(item.id)
        self.idle.clear()
        self.queue.put_nowait(item)

    def _restore(self, target: str, before: Last | None) -> None:
        if before is None:
            del self.last[target]
        else:
            self.last[target] = before

    def _keep_quietly(self) -> None:
        try:
            self._keep()
        except OSError as error:
            self.log("spool_full", why=str(error))

    # ── The work ──

    async def work(self) -> None:
        """One item after the other: two never change one daemon at a time."""
        while True:
            item = await self.queue.get()
            result = await self._done(item)
            self.log("done" if result.get("ok") else "failed", item=item.id, call=item.call, target=item.target,
                     **({} if result.get("ok") else {"why": result.get("why", "")}))  # fmt: skip
            found = self.last.get(item.target)
            if found is not None and found.item == item.id:
                found.result = result
                self._keep_quietly()
            else:
                self.ready[item.id] = result
            self.running.discard(item.id)
            if not self.running:
                self.idle.set()

    async def _done(self, item: WorkOrder) -> dict[str, Any]:
        keys = HostKeys(folder=self.folder)
        try:
            if item.call == "csr":
                return keys.csr(item)
            given = keys.for_item(item)
        except (PkiRefused, OSError, ValueError) as why:
            return failed("KEY_MISSING", str(why), refused=True)
        asked = {
            "config": str(self.config), "target": item.target, "call": item.call, "body": dict(item.body),
            "keys": {name: key.reveal().decode() for name, key in given.items()},
        }  # fmt: skip
        return await self.carry_out(asked)

    async def without_server(self) -> None:
        """Watch what is served, and repeat reloads that failed: the last settings are in the agent's own file."""
        for target, last in list(self.last.items()):
            if last.call == "reload" and last.result is not None and not last.result.get("ok"):
                again = await self.carry_out({**self._asked, "target": target, "call": "reload", "body": {}})
                self.log("reloaded_offline" if again.get("ok") else "reload_fails", target=target)
                if again.get("ok"):
                    last.result, last.told = again, False
                    self._keep_quietly()
        await self.watch()

    async def watch(self) -> list[dict[str, Any]]:
        """What the endpoints of the agent's file show; what is wrong or about to expire is said aloud."""
        data = (await self.carry_out({**self._asked, "target": "", "call": "watch", "body": {}})).get("data", {})
        seen: list[dict[str, Any]] = data.get("seen", []) if isinstance(data, dict) else []
        for each in seen:
            at = each.get("not_after")
            left = None if not at else datetime.fromisoformat(at) - self.clock.now()
            if each.get("problem") or (left is not None and left < EXPIRES_SOON):
                why = each.get("why") or each.get("problem") or f"it expires at {at}"
                self.log("watch", target=each["target"], endpoint=each.get("endpoint", ""), why=why)
        return seen

    @property
    def _asked(self) -> dict[str, Any]:
        return {"config": str(self.config), "keys": {}}

    async def carry_out(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """In a process of its own; keys go by its stdin, and are in no argument and no file of ours."""
        try:
            argv = [sys.executable, "-m", "holdfast.agent.work"]
            content = json.dumps(asked).encode()
            code, output = await self.folder.files.run(argv, stdin=content, timeout=LONGEST_RUN, env=_import_path())
        except (TryLater, OSError) as why:
            return failed("TARGET_BUSY", str(why), refused=False)
        lines = [line for line in output.decode(errors="replace").splitlines() if line.startswith(MARK)]
        try:
            found = json.loads(lines[-1].removeprefix(MARK))
        except (IndexError, ValueError):
            return failed("INTERNAL", f"The agent's work ended with {code}, without a result.", refused=True)
        return found if isinstance(found, dict) else failed("INTERNAL", "The result is no result.", refused=True)


def _import_path() -> dict[str, str]:
    """A program gets none of our environment, and must find the same modules."""
    return {"PYTHONPATH": ":".join(each for each in sys.path if each)}


def _verified(state: Enrolled, raw: object) -> str:
    """The text of an item, if our server signed exactly that."""
    if not isinstance(raw, dict) or not isinstance(raw.get("item"), str) or not isinstance(raw.get("signature"), str):
        raise BadItem("the item is not of this protocol")
    try:
        key = agent_keys.read_public(base64url.decode(state.server_key))
        signature = base64url.decode(raw["signature"])
    except (PkiRefused, ValueError):
        raise BadItem("the signature of the item cannot be read") from None
    if not agent_keys.verifies(key, signature, raw["item"].encode()):
        raise BadItem("the item is not signed by our server")
    text: str = raw["item"]
    return text
