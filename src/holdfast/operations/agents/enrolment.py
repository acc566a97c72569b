"""Enrolment of agents, and their recovery: both prove a key, and both give the same answer when asked again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core import base64url
from holdfast.core.agents.agent import (
    UNKNOWN,
    AgentRefusal,
    AgentRow,
    AgentState,
    AgentToken,
    Evidence,
    enrolment_refusal,
    recovery_refusal,
    state_refusal,
    token_refusal,
)
from holdfast.core.agents.protocol import (
    challenge_text,
    enrolment_transcript,
    fingerprint_words,
    recovery_transcript,
)
from holdfast.operations.agents import identities
from holdfast.operations.agents.context import AgentContext, AgentProblem, spki_sha256
from holdfast.operations.agents.identities import IssuedIdentity
from holdfast.pki import agent_keys, csr, keys
from holdfast.pki.refused import KeyRefused, PkiRefused
from holdfast.store import journal
from holdfast.store.agents import agents
from holdfast.store.tx import Tx

CHALLENGE_FOR: Final = timedelta(minutes=5)
_UNKNOWN_TOKEN: Final = AgentRefusal(
    401, "token-unknown", "This server does not know the token, or the proof does not fit it."
)
_MALFORMED: Final = AgentRefusal(400, "malformed", "The request of the agent is not of this protocol.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """What a host sends to be let in."""

    token: str
    name: str
    binding: bytes  # SPKI
    sealing: bytes  # SPKI
    csr: bytes
    proof: bytes  # by the token's key, over all of these
    possession: bytes  # the same, by the binding key
    evidence: Evidence

    @property
    def transcript(self) -> bytes:
        return enrolment_transcript(self.token, self.name, self.binding, self.sealing, self.csr)

    @classmethod
    def read(cls, raw: Mapping[str, object]) -> Enrolment:
        return cls(
            token=text_of(raw, "token"),
            name=text_of(raw, "name"),
            binding=octets_of(raw, "binding"),
            sealing=octets_of(raw, "sealing"),
            csr=octets_of(raw, "csr"),
            proof=octets_of(raw, "proof"),
            possession=octets_of(raw, "possession"),
            evidence=Evidence.read(raw.get("evidence")),
        )


@dataclass(frozen=True, slots=True)
class Enrolled:
    row: AgentRow
    identity: IssuedIdentity


@dataclass(frozen=True, slots=True)
class AwaitsApproval:
    row: AgentRow

    @property
    def fingerprint(self) -> str:
        return fingerprint_words(self.row.binding_sha256)


async def enrol(context: AgentContext, asked: Enrolment, address: str) -> Enrolled | AwaitsApproval:
    """Let a host in. The same token and binding key give the same agent, however often the reply is lost."""
    token = await context.acme_context.db.read(lambda tx: agents.get_token(tx, asked.token))
    _check_proofs(token, asked)
    new_id = context.acme_context.random.new_id("agent")
    row = await context.acme_context.db.write(lambda tx: _admit(tx, context, asked, address, new_id))
    if row.state is AgentState.PENDING:
        return AwaitsApproval(row)
    return Enrolled(row, await identities.issue(context, row, asked.csr))


def _check_proofs(token: AgentToken | None, asked: Enrolment) -> None:
    try:
        binding = agent_keys.read_public(asked.binding)
        agent_keys.read_sealing(asked.sealing)
    except KeyRefused as refused:
        raise AgentProblem(AgentRefusal(400, refused.code, str(refused))) from None
    if token is None:
        raise AgentProblem(_UNKNOWN_TOKEN)
    key = agent_keys.read_public(base64url.decode(token.public_key))
    if not agent_keys.verifies(key, asked.proof, asked.transcript):
        raise AgentProblem(_UNKNOWN_TOKEN)
    if not agent_keys.verifies(binding, asked.possession, asked.transcript):
        raise AgentProblem(AgentRefusal(401, "binding-unproved", "The binding key did not sign this request."))


def _admit(tx: Tx, context: AgentContext, asked: Enrolment, address: str, new_id: str) -> AgentRow:
    token, now = agents.get_token(tx, asked.token, lock=True), tx.now()
    if token is None:
        raise AgentProblem(_UNKNOWN_TOKEN)
    digest = spki_sha256(asked.binding)
    known = agents.by_binding(tx, digest)
    again = known is not None and known.token == token.id
    _refuse(token_refusal(token, now, again=again))
    if known is not None:
        _refuse(state_refusal(known))
        return known
    _refuse(enrolment_refusal(token, asked.name, address))
    made = _row(context, asked, token, new_id, digest, address, now)
    if not agents.insert(tx, made):
        why = f"There is an agent {asked.name} already. Choose another --name, or: holdfast agent rm {asked.name}"
        raise AgentProblem(AgentRefusal(409, "name-taken", why))
    agents.use_token(tx, token)
    facts = {"agent": made.name, "token": token.id, "binding": digest, "address": address}
    journal.audit(tx, "agent_enrolled", made.id, actor=f"agent:{made.name}", state=made.state.value, **facts)
    journal.event(tx, "agent.enrolled", made.id, state=made.state.value, **facts)
    return made


def _row(
    context: AgentContext, asked: Enrolment, token: AgentToken, new_id: str, digest: str, address: str, now: datetime
) -> AgentRow:
    return AgentRow(
        id=new_id,
        name=asked.name,
        state=AgentState.PENDING if token.approval else AgentState.ACTIVE,
        owner=token.owner,
        labels=token.labels,
        binding_key=base64url.encode(asked.binding),
        binding_sha256=digest,
        sealing_key=base64url.encode(asked.sealing),
        token=token.id,
        recoveries_left=context.policy.recoveries,
        evidence=asdict(asked.evidence),
        address=address,
        created_at=now,
        changed_at=now,
    )


# ── Recovery ──


async def challenge(context: AgentContext, agent: str) -> str:
    """A text for the binding key to sign. It is signed by us, so that no replica need remember it."""
    at = int((await context.acme_context.db.read(lambda tx: tx.now())).timestamp())
    signature = agent_keys.sign(await context.signer(), challenge_text(agent, at))
    return f"{at}.{base64url.encode(signature)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    agent: str
    challenge: str
    csr: bytes
    signature: bytes  # by the binding key
    evidence: Evidence

    @classmethod
    def read(cls, raw: Mapping[str, object]) -> Recovery:
        return cls(
            agent=text_of(raw, "agent"),
            challenge=text_of(raw, "challenge"),
            csr=octets_of(raw, "csr"),
            signature=octets_of(raw, "signature"),
            evidence=Evidence.read(raw.get("evidence")),
        )


async def recover(context: AgentContext, asked: Recovery, address: str) -> Enrolled:
    """A new identity for an agent whose last one is lost or expired, however long ago. Counted, audited and told."""
    row, now = await context.acme_context.db.read(lambda tx: (agents.get(tx, asked.agent), tx.now()))
    if row is None:
        raise AgentProblem(UNKNOWN)
    await _check_challenge(context, asked, now)
    binding = agent_keys.read_public(base64url.decode(row.binding_key))
    transcript = recovery_transcript(asked.agent, asked.challenge, asked.csr)
    if not agent_keys.verifies(binding, asked.signature, transcript):
        raise AgentProblem(AgentRefusal(401, "binding-unproved", "The binding key of this agent did not sign this."))
    spki = _spki_of(asked.csr)
    _refuse(await context.acme_context.db.write(lambda tx: _count(tx, asked, spki, address)))
    return Enrolled(row, await identities.issue(context, row, asked.csr))


def _spki_of(content: bytes) -> str:
    try:
        return base64url.encode(keys.spki(csr.key_of(content)))
    except PkiRefused as refused:
        raise AgentProblem(AgentRefusal(400, refused.code, str(refused))) from None


async def _check_challenge(context: AgentContext, asked: Recovery, now: datetime) -> None:
    at, _, signature = asked.challenge.partition(".")
    wrong = AgentProblem(
        AgentRefusal(401, "challenge-wrong", "This challenge is not ours, or too old: ask for another.")
    )
    if not at.isdigit() or len(at) > 12 or abs(now.timestamp() - int(at)) > CHALLENGE_FOR.total_seconds():
        raise wrong
    try:
        octets = base64url.decode(signature)
    except ValueError:
        raise wrong from None
    public = (await context.signer()).public_key()
    if not agent_keys.verifies(public, octets, challenge_text(asked.agent, int(at))):
        raise wrong


def _count(tx: Tx, asked: Recovery, spki: str, address: str) -> AgentRefusal | None:
    """Why it is refused, which is told as well; None once it is counted."""
    row = agents.get(tx, asked.agent, lock=True)
    if row is None:
        return UNKNOWN
    newest = agents.identity(tx, row.id, row.generation)
    if newest is not None and newest.spki == spki:
        return state_refusal(row)  # the reply was lost: this recovery is counted already
    refusal = recovery_refusal(row, asked.evidence)
    facts: dict[str, Any] = {"agent": row.name, "address": address, "left": max(row.recoveries_left - 1, 0)}
    if refusal is not None:
        journal.event(tx, "agent.recovery_refused", row.id, code=refusal.code, error=refusal.why, **facts)
        return refusal
    agents.save(tx, row, recoveries=row.recoveries + 1, recoveries_left=row.recoveries_left - 1, earlier=(), session="")
    journal.audit(tx, "agent_recovered", row.id, actor=f"agent:{row.name}", **facts)
    journal.event(tx, "agent.recovered", row.id, **facts)
    return None


def _refuse(refusal: AgentRefusal | None) -> None:
    if refusal is not None:
        raise AgentProblem(refusal)


# ── What strangers send ──


def text_of(raw: Mapping[str, object], name: str) -> str:
    found = raw.get(name)
    if not isinstance(found, str) or len(found) > 1000:
        raise AgentProblem(_MALFORMED)
    return found


def octets_of(raw: Mapping[str, object], name: str) -> bytes:
    found = raw.get(name)
    try:
        if not isinstance(found, str) or len(found) > 100_000:
            raise ValueError
        return base64url.decode(found)
    except ValueError:
        raise AgentProblem(_MALFORMED) from None
