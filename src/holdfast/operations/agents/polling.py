"""The long poll of an agent: heartbeat, results, acknowledgement and work in one request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from holdfast.core.agents.agent import AgentRefusal, AgentRow, AgentState
from holdfast.operations.agents.context import AgentContext, AgentProblem
from holdfast.operations.agents.desk import AgentDesk


async def poll(context: AgentContext, desk: AgentDesk, row: AgentRow, asked: Mapping[str, Any]) -> dict[str, object]:
    """Answer as soon as there is something for this agent, or after the time that a request may wait."""
    if row.state is not AgentState.ACTIVE:
        why = f"Agent {row.name} is {row.state}, and gets no work."
        raise AgentProblem(AgentRefusal(409, row.state.value, why), retry_after=60)
    wait = asked.get("wait_s")
    seconds = context.policy.poll_for.total_seconds()
    if isinstance(wait, int | float) and 0 <= wait <= seconds:
        seconds = float(wait)
    if seconds:
        async with asyncio.timeout(seconds + 5):
            await desk.park(row.id, seconds)
    return {"state": row.state.value, "poll_s": context.policy.poll_for.total_seconds()}
