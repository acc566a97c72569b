"""What one process knows of its agents without asking the store: who waits for work here, and who was heard of."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.operations.acme.context import Changes
from holdfast.store.agents import agents, items
from holdfast.store.database import Store


@dataclass(slots=True, kw_only=True)
class AgentDesk:
    """Parked requests cost one coroutine each. Last-seen times are written in groups, never one by one."""

    limit: int
    changes: Changes = field(default_factory=Changes)  # by the id of an agent, or of an item
    parked: Counter[str] = field(default_factory=Counter)
    heard: dict[str, tuple[datetime, str]] = field(default_factory=dict)  # since the last flush
    known: dict[str, datetime] = field(default_factory=dict)
    awaited: Counter[str] = field(default_factory=Counter)  # items

    @property
    def full(self) -> bool:
        return self.parked.total() >= self.limit

    def note(self, agent: str, at: datetime, address: str) -> None:
        self.heard[agent] = (at, address)
        self.known[agent] = at

    def last(self, agent: str) -> datetime | None:
        """When this process last heard of an agent."""
        return self.known.get(agent)

    async def await_item(self, item: str, seconds: float) -> None:
        self.awaited[item] += 1
        try:
            await self.changes.wait(item, seconds)
        finally:
            self.awaited[item] -= 1
            if not self.awaited[item]:
                del self.awaited[item]

    async def hint(self, db: Store) -> int:
        """Wake those who wait here for what another process wrote."""
        if not self.parked and not self.awaited:
            return 0
        found = await db.read(lambda tx: items.hinted(tx, list(self.awaited)))
        for each in found:
            self.changes.fire(each)
        return len(found)

    async def park(self, agent: str, seconds: float) -> bool:
        """Wait for a hint that there is something for this agent; False if none came."""
        self.parked[agent] += 1
        try:
            return await self.changes.wait(agent, seconds)
        finally:
            self.parked[agent] -= 1
            if not self.parked[agent]:
                del self.parked[agent]

    async def flush(self, db: Store) -> int:
        """Write down when agents were last heard of."""
        heard, self.heard = self.heard, {}
        if heard:
            await asyncio.shield(db.write(lambda tx: agents.seen(tx, heard)))
        return len(heard)
