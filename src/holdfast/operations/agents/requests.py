"""Who signed a request: the one place where signatures of agents are verified."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from holdfast.core import base64url
from holdfast.core.agents.agent import (
    SESSIONS_KEPT,
    AgentIdentity,
    AgentRefusal,
    AgentRow,
    AgentState,
    Evidence,
    identity_refusal,
    judge_session,
    move,
    skewed,
    state_refusal,
)
from holdfast.core.agents.http_signature import SignedBy, content_digest, parsed, signature_base
from holdfast.core.issuers.breaker import Breaker
from holdfast.operations.agents.context import AgentContext, AgentProblem
from holdfast.operations.deployment import planning
from holdfast.pki import agent_keys
from holdfast.store import journal
from holdfast.store.agents import agents
from holdfast.store.deployments import targets
from holdfast.store.marks import inline
from holdfast.store.tx import Tx

NONCES_KEPT: Final = 100_000
_WRONG: Final = AgentRefusal(401, "signature-wrong", "The signature of this request is missing or does not fit it.")
_SKEWED: Final = AgentRefusal(401, "clock-skew", "This request was signed more than 5 minutes ago, or ahead of time.")
_REPLAYED: Final = AgentRefusal(401, "replayed", "This request was sent before.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    method: str
    path: str
    body: bytes
    digest: str  # Content-Digest
    signature_input: str
    signature: str


@dataclass(frozen=True, slots=True)
class Caller:
    row: AgentRow
    generation: int
    created: int  # when the request was signed


class Nonces:
    """Nonces of this process's last requests: one that comes again was recorded on the way."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], int] = OrderedDict()

    def fresh(self, agent: str, nonce: str, created: int) -> bool:
        if (agent, nonce) in self._seen:
            return False
        self._seen[agent, nonce] = created
        while len(self._seen) > NONCES_KEPT:
            self._seen.popitem(last=False)
        return True


async def authenticated(context: AgentContext, nonces: Nonces, request: SignedRequest) -> Caller:
    """The agent that signed; AgentProblem for every other request, by its reason."""
    found = parsed(request.signature_input, request.signature)
    if found is None or request.digest != content_digest(request.body):
        raise AgentProblem(_WRONG)
    row, identity, now = await context.acme_context.db.read(inline(lambda tx: _known(tx, found)))
    if row is None:
        raise AgentProblem(AgentRefusal(404, "agent-unknown", "There is no such agent here."))
    if identity is None:
        raise AgentProblem(AgentRefusal(401, "identity-unknown", "This agent has no such identity."))
    _verify(found, identity, request)
    for refusal in (state_refusal(row), _SKEWED if skewed(found.params.created, now) else None):
        if refusal is not None:
            raise AgentProblem(refusal)
    refused = identity_refusal(row, identity, now)
    if refused is not None:
        raise AgentProblem(refused)
    if not nonces.fresh(row.id, found.params.nonce, found.params.created):
        raise AgentProblem(_REPLAYED)
    return Caller(row, identity.generation, found.params.created)


def _known(tx: Tx, found: SignedBy) -> tuple[AgentRow | None, AgentIdentity | None, datetime]:
    row = agents.get(tx, found.params.agent)
    identity = None if row is None else agents.identity(tx, row.id, found.params.generation)
    return row, identity, tx.now()


def _verify(found: SignedBy, identity: AgentIdentity, request: SignedRequest) -> None:
    key = agent_keys.read_public(base64url.decode(identity.spki))
    base = signature_base(request.method, request.path, request.digest, found.params)
    if agent_keys.algorithm_of(key) != found.params.algorithm or not agent_keys.verifies(key, found.signature, base):
        raise AgentProblem(_WRONG)


# ── What a request tells of its sender ──


async def met(context: AgentContext, caller: Caller, session: str, evidence: Evidence) -> AgentRow:
    """Note what is new: the first use of an identity, and a new session. A session that comes back is a clone."""
    row = caller.row
    if caller.generation <= row.used_generation and judge_session(row, session, caller.created) == "same":
        return row
    return await context.acme_context.db.write(lambda tx: _meet(tx, caller, session, evidence))


def _meet(tx: Tx, caller: Caller, session: str, evidence: Evidence) -> AgentRow:
    row = agents.get(tx, caller.row.id, lock=True)
    if row is None:
        raise AgentProblem(AgentRefusal(404, "agent-unknown", "There is no such agent here."))
    changes: dict[str, object] = {}
    if caller.generation > row.used_generation:
        changes["used_generation"] = caller.generation
    verdict = judge_session(row, session, caller.created)
    if verdict == "late":
        raise AgentProblem(AgentRefusal(409, "late", "This agent has restarted since it sent this request."))
    if verdict == "new":
        before = (row.session,) if row.session else ()
        changes |= {"session": session, "session_since": tx.now(), "evidence": asdict(evidence)}
        _wake_targets(tx, row)
        changes["earlier"] = (*before, *row.earlier)[:SESSIONS_KEPT]
    if verdict == "clone" and row.state is AgentState.ACTIVE:
        changes["state"] = move(row.state, "cloned")
        facts = {"agent": row.name, "here": evidence.hostname, "there": row.host.hostname}
        journal.audit(tx, "agent_cloned", row.id, **facts)
        journal.event(tx, "agent.cloned", row.id, **facts)
    return agents.save(tx, row, **changes) if changes else row


def _wake_targets(tx: Tx, row: AgentRow) -> None:
    """What waited for this agent to come back is tried now."""
    for each in targets.all_targets(tx):
        if each.settings.get("agent") == row.name:
            targets.save_breaker(tx, each.name, Breaker())
            planning.wake_target(tx, each.name)
