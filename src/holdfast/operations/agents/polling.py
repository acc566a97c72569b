"""The long poll of an agent: heartbeat, results, acknowledgement and work in one request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from holdfast.core import base64url
from holdfast.core.agents.agent import AgentRefusal, AgentRow, AgentState
from holdfast.core.agents.item import AgentItem
from holdfast.operations.agents.context import AgentContext, AgentProblem
from holdfast.operations.agents.desk import AgentDesk
from holdfast.pki import agent_keys
from holdfast.store.agents import items
from holdfast.store.tx import Tx

MOST_RESULTS: Final = 64  # of one request
LONGEST_RESULT: Final = 64 * 1024
_MALFORMED: Final = AgentRefusal(400, "malformed", "The results of the agent are not of this protocol.")
_NOT_YOURS: Final = AgentRefusal(403, "not-your-item", "A result is of another agent's item: none of them is taken.")


async def poll(context: AgentContext, desk: AgentDesk, row: AgentRow, asked: Mapping[str, Any]) -> dict[str, object]:
    """Answer as soon as there is something for this agent, or after the time that a request may wait."""
    if row.state is not AgentState.ACTIVE:
        why = f"Agent {row.name} is {row.state}, and gets no work."
        raise AgentProblem(AgentRefusal(409, row.state.value, why), retry_after=60)
    results, running = _results(asked), _texts(asked.get("running"))
    if results:
        await context.acme_context.db.write(lambda tx: _accept(tx, row, results))
        for each in results:
            desk.changes.fire(each)
    work = await _work(context, row, running)
    seconds = _patience(context, asked)
    if not work and not results and seconds and await desk.park(row.id, seconds):
        work = await _work(context, row, running)
    return {
        "state": row.state.value,
        "poll_s": context.policy.poll_for.total_seconds(),
        "ack": list(results),
        "work": [await _signed(context, each) for each in work],
    }


def _patience(context: AgentContext, asked: Mapping[str, Any]) -> float:
    longest, wait = context.policy.poll_for.total_seconds(), asked.get("wait_s")
    return min(max(float(wait), 0.0), longest) if isinstance(wait, int | float) else longest


async def _work(context: AgentContext, row: AgentRow, running: frozenset[str]) -> list[AgentItem]:
    found = await context.acme_context.db.read(lambda tx: items.waiting(tx, row.id))
    return [each for each in found if each.id not in running]


async def _signed(context: AgentContext, item: AgentItem) -> dict[str, str]:
    text = item.signed_text()
    return {"item": text, "signature": base64url.encode(agent_keys.sign(await context.signer(), text.encode()))}


# ── What the agent tells ──


def _texts(raw: object) -> frozenset[str]:
    return frozenset(each for each in raw[:100] if isinstance(each, str)) if isinstance(raw, list) else frozenset()


def _results(asked: Mapping[str, Any]) -> dict[str, str]:
    """Results by the ids of their items."""
    raw = asked.get("results", [])
    if not isinstance(raw, list) or len(raw) > MOST_RESULTS:
        raise AgentProblem(_MALFORMED)
    found: dict[str, str] = {}
    for each in raw:
        text = json.dumps(each.get("result")) if isinstance(each, dict) else ""
        if not isinstance(each, dict) or not isinstance(each.get("id"), str) or len(text) > LONGEST_RESULT:
            raise AgentProblem(_MALFORMED)
        found[each["id"]] = text
    return found


def _accept(tx: Tx, row: AgentRow, results: Mapping[str, str]) -> None:
    """A result counts once. One that is not wanted any more is acknowledged, so that the agent forgets it."""
    known = {each: items.get(tx, each) for each in results}
    if any(item is not None and item.agent != row.id for item in known.values()):
        raise AgentProblem(_NOT_YOURS)
    for each, item in known.items():
        if item is not None:
            items.done(tx, each, results[each])
