"""Agents as people see them: list, approve, ban, retire, delete, and allow recoveries."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from holdfast.core.agents.agent import AgentEvent, AgentRow, AgentState, move
from holdfast.core.agents.protocol import fingerprint_words
from holdfast.errors import IllegalMove, UserError
from holdfast.operations.access import Action, Owned, Principal, Verdict, allow, demand
from holdfast.operations.context import Context
from holdfast.operations.inputs import Input, OneOf, Option, Page, Paged, from_row, paged
from holdfast.operations.operation import operation
from holdfast.operations.scopes import VISIBLE, Scope
from holdfast.store import journal
from holdfast.store.agents import agents
from holdfast.store.tx import Tx


class NoSuchAgent(UserError):
    status, code = 404, "no-such-agent"

    def __init__(self, agent: str) -> None:
        super().__init__(f"There is no agent {agent!r:.80}.")
        self.hint = "See what there is: holdfast agent ls"


class AgentRefused(UserError):
    status, code = 409, "agent-refused"
    hint = "See its state: holdfast agent show NAME"


class AgentRef(Input):
    agent: Annotated[str, Option(metavar="AGENT")] = Field(max_length=100, description="The agent's name, or its id.")


def found(tx: Tx, ref: str) -> AgentRow:
    row = agents.named(tx, ref) or agents.get(tx, ref)
    if row is None:
        raise NoSuchAgent(ref)
    return row


def _on_agent(tx: Tx, who: Principal, action: Action, asked: Any) -> None:
    """For an asker who may not see it, it is not there."""
    row = agents.named(tx, asked.agent) or agents.get(tx, asked.agent)
    owned = Owned("", {}) if row is None else Owned(row.owner, row.labels)
    if allow(who, action, owned) is Verdict.HIDDEN:
        raise NoSuchAgent(asked.agent)
    demand(who, action, owned)


AGENT: Final = Scope(name="an agent", check=_on_agent, objects=True)


class AgentView(BaseModel):
    id: str
    name: str
    state: Annotated[str, OneOf(AgentState)]
    owner: str
    labels: dict[str, str]
    fingerprint: str = Field(description="Of its binding key, as `holdfast agent status` shows it on the host.")
    generation: int
    recoveries: int
    recoveries_left: int
    address: str
    hostname: str
    version: str = Field(description="Of its program.")
    created_at: datetime
    last_seen_at: datetime | None


def shown(row: AgentRow) -> AgentView:
    return from_row(
        AgentView,
        row,
        labels=dict(row.labels),
        fingerprint=fingerprint_words(row.binding_sha256),
        hostname=row.host.hostname,
        version=row.host.version,
    )


@operation("agents.list", "GET /agents", command="agent ls", action=Action.SEE_AGENTS, scope=VISIBLE)
def list_agents(tx: Tx, ctx: Context, asked: Paged) -> Page[AgentView]:
    """List agents: their state, when each was last heard of, and its version."""

    def read(after: str, limit: int) -> list[AgentRow]:
        rows: list[AgentRow] = []
        while len(rows) < limit and (more := agents.page(tx, after=after, limit=limit)):
            rows += [each for each in more if _sees(ctx.principal, each)]
            after = more[-1].name
        return rows[:limit]

    return paged(asked, read, lambda row: row.name, shown)


def _sees(who: Principal, row: AgentRow) -> bool:
    return allow(who, Action.SEE_AGENTS, Owned(row.owner, row.labels)) is Verdict.ALLOWED


@operation("agents.get", "GET /agents/{agent}", command="agent show", action=Action.SEE_AGENTS, scope=AGENT)
def get(tx: Tx, ctx: Context, asked: AgentRef) -> AgentView:
    """Show one agent."""
    return shown(found(tx, asked.agent))


def _moved(tx: Tx, ctx: Context, ref: str, event: AgentEvent, action: str, **changes: object) -> AgentView:
    row = found(tx, ref)
    try:
        after = agents.save(tx, row, state=move(row.state, event), **changes)
    except IllegalMove:
        raise AgentRefused(f"Agent {row.name} is {row.state}, and cannot be {event}.") from None
    states = {"before": {"state": row.state.value}, "after": {"state": after.state.value}}
    journal.audit(tx, action, row.id, actor=ctx.actor, name=row.name, **states)
    journal.event(tx, f"agent.{after.state.value}", row.id, agent=row.name)
    return shown(after)


@operation(
    "agents.approve",
    "POST /agents/{agent}/approve",
    command="agent approve",
    action=Action.CHANGE_AGENTS,
    scope=AGENT,
    example="holdfast agent approve edge-1",
    done="Agent {name} is approved.",
)
def approve(tx: Tx, ctx: Context, asked: AgentRef) -> AgentView:
    """Approve an agent that has enrolled. Compare its fingerprint with `holdfast agent status` on the host first."""
    return _moved(tx, ctx, asked.agent, "approved", "agent_approved")


@operation(
    "agents.ban",
    "POST /agents/{agent}/ban",
    command="agent ban",
    action=Action.CHANGE_AGENTS,
    scope=AGENT,
    destructive=True,
    asks="Ban agent {name}? It gets no work until it is unbanned; what it serves stays.",
    done="Agent {name} is banned until: holdfast agent unban {name}",
)
def ban(tx: Tx, ctx: Context, asked: AgentRef) -> AgentView:
    """Ban an agent: all its requests are refused until it is unbanned. What its host serves stays as it is."""
    return _moved(tx, ctx, asked.agent, "banned", "agent_banned")


@operation(
    "agents.unban",
    "POST /agents/{agent}/unban",
    command="agent unban",
    action=Action.CHANGE_AGENTS,
    scope=AGENT,
    done="Agent {name} is let in again. Start it on its host: systemctl start holdfast-agent",
)
def unban(tx: Tx, ctx: Context, asked: AgentRef) -> AgentView:
    """Let a banned agent in again."""
    return _moved(tx, ctx, asked.agent, "unbanned", "agent_unbanned")


@operation(
    "agents.retire",
    "POST /agents/{agent}/retire",
    command="agent retire",
    action=Action.CHANGE_AGENTS,
    scope=AGENT,
    destructive=True,
    asks="Retire agent {name} for good? Its program ends; what it serves stays.",
    done="Agent {name} is retired: its program ends with its next request.",
)
def retire(tx: Tx, ctx: Context, asked: AgentRef) -> AgentView:
    """Retire an agent for good: its program ends by itself. What its host serves stays as it is."""
    return _moved(tx, ctx, asked.agent, "retired", "agent_retired")


@operation(
    "agents.settle",
    "POST /agents/{agent}/settle",
    command="agent settle",
    action=Action.CHANGE_AGENTS,
    scope=AGENT,
    done="Agent {name} gets work again.",
)
def settle(tx: Tx, ctx: Context, asked: AgentRef) -> AgentView:
    """Give an agent work again whose keys were copied. Enrol the copy anew first: holdfast agent reset, on its host."""
    return _moved(tx, ctx, asked.agent, "settled", "agent_settled", session="", earlier=())


class Recoveries(AgentRef):
    left: int = Field(default=5, ge=0, le=1000, description="How often it may recover from now on.")
    another_host: bool = Field(default=False, description="Its keys were moved to another host on purpose.")


@operation(
    "agents.recoveries",
    "POST /agents/{agent}/recoveries",
    command="agent recoveries",
    action=Action.CHANGE_AGENTS,
    scope=AGENT,
    done="Agent {name} may recover {recoveries_left} times.",
)
def recoveries(tx: Tx, ctx: Context, asked: Recoveries) -> AgentView:
    """Say how often an agent may recover by its binding key after its identity was lost or has expired."""
    row = found(tx, asked.agent)
    moved: dict[str, object] = {"evidence": {}} if asked.another_host else {}
    after = agents.save(tx, row, recoveries_left=asked.left, **moved)
    facts = {"name": row.name, "left": asked.left, "another_host": asked.another_host}
    journal.audit(tx, "agent_recoveries_allowed", row.id, actor=ctx.actor, **facts)
    return shown(after)


@operation(
    "agents.delete",
    "DELETE /agents/{agent}",
    command="agent rm",
    action=Action.CHANGE_AGENTS,
    scope=AGENT,
    destructive=True,
    asks="Delete agent {name}? Its host may enrol again with a new token; what it serves stays.",
    done="Agent {name} is deleted.",
)
def delete(tx: Tx, ctx: Context, asked: AgentRef) -> AgentView:
    """Delete an agent. Its host may enrol again with a new token; what it serves stays as it is."""
    row = found(tx, asked.agent)
    agents.delete(tx, row.id)
    journal.audit(tx, "agent_deleted", row.id, actor=ctx.actor, name=row.name)
    journal.event(tx, "agent.deleted", row.id, agent=row.name)
    return shown(row)
