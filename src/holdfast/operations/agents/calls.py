"""Calls to agents: an item is left for the agent, and its result is waited for. The agent asks; nobody asks it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from holdfast.core import base64url, reasons
from holdfast.core.agents.agent import AgentRow, AgentState
from holdfast.core.agents.item import AgentItem
from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.operations.agents.context import AgentContext
from holdfast.operations.agents.desk import AgentDesk
from holdfast.pki import agent_keys
from holdfast.secret import Secret
from holdfast.store.agents import agents, items
from holdfast.store.tx import Tx

ANSWERED_WITHIN: Final = 150.0  # seconds, less than a deployment waits for one call
MISSED: Final = 2.5  # polls after which an agent counts as offline
GRACE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentWork:
    """What deployments and issuances ask of agents. TryLater: it is offline or silent; Refused: as the agent says."""

    context: AgentContext
    desk: AgentDesk

    async def call(
        self, agent: str, target: str, call: str, body: Mapping[str, Any], keys: Mapping[str, Secret[bytes]]
    ) -> Mapping[str, Any]:
        new_id = self.context.acme_context.random.new_id("item")
        asked = partial(self._leave, agent=agent, target=target, call=call, body=body, keys=keys, new_id=new_id)
        item = await self.context.acme_context.db.write(asked)
        self.desk.changes.fire(item.agent)
        return answer(agent, await self._result(agent, item))

    def _leave(
        self,
        tx: Tx,
        *,
        agent: str,
        target: str,
        call: str,
        body: Mapping[str, Any],
        keys: Mapping[str, Secret[bytes]],
        new_id: str,
    ) -> AgentItem:
        row, now = agents.named(tx, agent), tx.now()
        if row is None:
            raise Refused(f"There is no agent {agent!r:.80}.", reason=Reason.TARGET_UNKNOWN.value)
        if row.state is not AgentState.ACTIVE:
            raise Refused(f"Agent {agent} is {row.state}, and gets no work.", reason=Reason.TARGET_REFUSED.value)
        self._must_be_online(tx, row)
        item = AgentItem(
            id=new_id,
            agent=row.id,
            target=target,
            call=call,
            fence=items.next_fence(tx, row.id, target, now),
            body=json.dumps({**body, "keys": _sealed(row, new_id, keys)}),
            created_at=now,
            deadline=now + timedelta(seconds=ANSWERED_WITHIN),
        )
        items.insert(tx, item)
        return item

    def _must_be_online(self, tx: Tx, row: AgentRow) -> None:
        """An agent that is away costs no waiting: its targets are woken when it comes back."""
        heard = max((at for at in (row.last_seen_at, self.desk.last(row.id)) if at is not None), default=None)
        if heard is None or tx.now() - heard > MISSED * self.context.policy.poll_for + GRACE:
            when = "never" if heard is None else f"last at {heard:%F %T}Z"
            raise TryLater(f"Agent {row.name} was {when} heard of.", reason=Reason.TARGET_UNREACHABLE.value)

    async def _result(self, agent: str, item: AgentItem) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(ANSWERED_WITHIN):
                while True:
                    found = await self.context.acme_context.db.read(lambda tx: items.get(tx, item.id))
                    if found is None or found.state == "over":
                        break
                    if found.result is not None:
                        return json.loads(found.result)  # type: ignore[no-any-return]
                    await self.desk.await_item(item.id, 1.0)
        except TimeoutError:
            await self.context.acme_context.db.write(lambda tx: items.give_up(tx, item.id))
        why = f"Agent {agent} did not answer: {item.call} of target {item.target}."
        raise TryLater(why, reason=Reason.TARGET_UNREACHABLE.value)


def _sealed(row: AgentRow, item: str, keys: Mapping[str, Secret[bytes]]) -> dict[str, str]:
    """Keys that only this agent can read, for this item alone. An empty one is on the host already."""
    to = base64url.decode(row.sealing_key)
    return {name: base64url.encode(agent_keys.seal(each, to, purpose=item)) for name, each in keys.items() if each}


def answer(agent: str, result: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the agent told; or its error, as the deployer on its host raised it."""
    if result.get("ok") is True and isinstance(result.get("data"), dict):
        data: Mapping[str, Any] = result["data"]
        return data
    found = reasons.of(str(result.get("reason", "")))
    why = str(result.get("why") or f"Agent {agent} did not say why.")[:1000]
    if result.get("refused") is False:
        reason = Reason.TARGET_UNREACHABLE if found is Reason.INTERNAL else found
        raise TryLater(why, reason=reason.value)
    reason = Reason.TARGET_REFUSED if found is Reason.INTERNAL else found
    raise Refused(why, reason=reason.value)
