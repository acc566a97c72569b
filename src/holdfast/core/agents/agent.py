"""An agent: a host that carries out deployments by itself, known by a binding key that never leaves it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from typing import Any, Final, Literal

from holdfast.errors import IllegalMove

NAME: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
SESSIONS_KEPT: Final = 8
SKEW: Final = timedelta(seconds=300)  # between the clocks of an agent and of the server


class AgentState(StrEnum):
    PENDING = "pending"  # it has enrolled, and a person must approve it
    ACTIVE = "active"
    CLONED = "cloned"  # two hosts use its keys: neither gets work
    BANNED = "banned"  # it is refused, and may be let in again
    RETIRED = "retired"  # its work is over


AgentEvent = Literal["approved", "cloned", "settled", "banned", "unbanned", "retired"]
MOVES: Final[Mapping[tuple[AgentState, AgentEvent], AgentState]] = {
    (AgentState.PENDING, "approved"): AgentState.ACTIVE,
    (AgentState.ACTIVE, "cloned"): AgentState.CLONED,
    (AgentState.CLONED, "settled"): AgentState.ACTIVE,
    (AgentState.PENDING, "banned"): AgentState.BANNED,
    (AgentState.ACTIVE, "banned"): AgentState.BANNED,
    (AgentState.CLONED, "banned"): AgentState.BANNED,
    (AgentState.BANNED, "unbanned"): AgentState.ACTIVE,
    **{(state, "retired"): AgentState.RETIRED for state in AgentState if state is not AgentState.RETIRED},
}


def move(state: AgentState, event: AgentEvent) -> AgentState:
    """The state after an event; no other function says one."""
    try:
        return MOVES[state, event]
    except KeyError:
        raise IllegalMove(f"an agent that is {state} cannot be {event!r}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a host says of itself. It proves nothing: it shows that keys were copied to another host."""

    hostname: str = ""
    machine: str = ""  # digest of /etc/machine-id
    product: str = ""  # digest of the hardware's UUID
    boot: str = ""  # changes with each start of the host
    system: str = ""
    version: str = ""  # of the agent's program

    @classmethod
    def read(cls, raw: object) -> Evidence:
        """Of JSON that a stranger sent: texts of a bounded length, and nothing else."""
        given = raw if isinstance(raw, dict) else {}
        texts = {name: given.get(name) for name in cls.__slots__}
        return cls(**{name: _plain(text) for name, text in texts.items() if isinstance(text, str)})

    def another_host(self, other: Evidence) -> bool:
        """Whether all that is known of both hosts differs."""
        pairs = [(self.machine, other.machine), (self.product, other.product)]
        known = [(mine, theirs) for mine, theirs in pairs if mine and theirs]
        return bool(known) and all(mine != theirs for mine, theirs in known)


def _plain(text: str) -> str:
    return "".join(char for char in text[:128] if char.isprintable())


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRow:
    id: str
    name: str
    state: AgentState = AgentState.ACTIVE
    version: int = 1  # of the row
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    binding_key: str  # base64 of its SPKI
    binding_sha256: str  # hex
    sealing_key: str = ""  # base64 of an X25519 public key: what is secret is sealed to it
    token: str = ""  # the id of the token that it enrolled with
    generation: int = 0  # of the newest identity that was issued to it
    used_generation: int = 0  # of the newest that it has used: older ones are refused from then on
    recoveries_left: int = 5
    recoveries: int = 0  # in all
    evidence: Mapping[str, Any] = field(default_factory=dict)
    session: str = ""  # of its running program
    session_since: datetime | None = None
    earlier: tuple[str, ...] = ()  # sessions before it
    address: str = ""
    created_at: datetime
    changed_at: datetime
    last_seen_at: datetime | None = None

    @property
    def host(self) -> Evidence:
        return Evidence.read(dict(self.evidence))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentIdentity:
    """One generation of an agent's identity: a key, and the order of its certificate."""

    agent: str
    generation: int
    spki: str  # base64
    order_id: str
    not_after: datetime
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentToken:
    """What lets hosts enrol. Its secret is the seed of a key whose public half is here."""

    id: str
    name: str
    public_key: str  # base64 of an Ed25519 public key
    uses: int = 1
    used: int = 0
    names: tuple[str, ...] = ()  # patterns that the agent's name must match; empty: any
    networks: tuple[str, ...] = ()  # that it may come from; empty: any
    approval: bool = False  # a person approves each agent
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    created_by: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class AgentRefusal:
    """Why a request of an agent is refused: one code, and the sentence beside it."""

    status: int
    code: str
    why: str


# ── Enrolment ──


def token_refusal(token: AgentToken, now: datetime, *, again: bool) -> AgentRefusal | None:
    """Why a token lets nobody in; `again`: it is the agent that this token let in before, whose reply was lost."""
    if token.revoked_at is not None:
        return AgentRefusal(403, "token-revoked", f"Token {token.id} is revoked.")
    if now >= token.expires_at:
        return AgentRefusal(403, "token-expired", f"Token {token.id} expired at {token.expires_at:%F %T}Z.")
    if token.used >= token.uses and not again:
        return AgentRefusal(403, "token-used", f"Token {token.id} is used up: it was for {token.uses}.")
    return None


def enrolment_refusal(token: AgentToken, name: str, address: str) -> AgentRefusal | None:
    """Why this host may not have this name by this token."""
    if not NAME.fullmatch(name):
        why = "The name of an agent has 1 to 63 of a-z, 0-9, dot, dash and underscore."
        return AgentRefusal(400, "name-malformed", why)
    if token.names and not any(fnmatchcase(name, each) for each in token.names):
        return AgentRefusal(403, "name-not-allowed", f"Token {token.id} is for names like {', '.join(token.names)}.")
    if token.networks and not _within(address, token.networks):
        return AgentRefusal(403, "address-not-allowed", f"Token {token.id} is for other networks than {address}'s.")
    return None


def _within(address: str, networks: Sequence[str]) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return any(found in ip_network(each) for each in networks)


# ── Every request afterwards ──

_REFUSED: Final[Mapping[AgentState, AgentRefusal]] = {
    AgentState.BANNED: AgentRefusal(403, "banned", "This agent is banned."),
    AgentState.RETIRED: AgentRefusal(410, "retired", "This agent is retired."),
}
UNKNOWN: Final = AgentRefusal(404, "agent-unknown", "There is no such agent here.")


def state_refusal(row: AgentRow | None) -> AgentRefusal | None:
    return UNKNOWN if row is None else _REFUSED.get(row.state)


def identity_refusal(row: AgentRow, identity: AgentIdentity | None, now: datetime) -> AgentRefusal | None:
    """The newest identity counts, and the one before it until the newest was used."""
    if identity is None:
        return AgentRefusal(401, "identity-unknown", "This agent has no such identity.")
    if identity.generation < row.used_generation:
        return AgentRefusal(401, "identity-superseded", "A newer identity of this agent was used.")
    if now >= identity.not_after:
        return AgentRefusal(401, "identity-expired", f"This identity expired at {identity.not_after:%F %T}Z.")
    return None


def skewed(created: int, now: datetime) -> bool:
    return abs(now.timestamp() - created) > SKEW.total_seconds()


SessionVerdict = Literal["same", "new", "late", "clone"]


def judge_session(row: AgentRow, session: str, created: int) -> SessionVerdict:
    """A restarted agent has a new session and never its old one again: a session that comes back is another host's.

    `created`: when the request was signed. One that was on its way while the agent restarted is late, not a clone.
    """
    if session == row.session:
        return "same"
    if session not in row.earlier:
        return "new"
    late = row.session_since is not None and created <= row.session_since.timestamp()
    return "late" if late else "clone"


def recovery_refusal(row: AgentRow, evidence: Evidence) -> AgentRefusal | None:
    """Why an agent may not have a new identity by its binding key."""
    if (found := state_refusal(row)) is not None:
        return found
    if row.state is not AgentState.ACTIVE:
        return AgentRefusal(409, row.state.value, f"Agent {row.name} is {row.state}.")
    if row.recoveries_left <= 0:
        why = f"Agent {row.name} has recovered as often as it may. Allow more: holdfast agent recoveries {row.name}"
        return AgentRefusal(403, "recoveries-used", why)
    if row.host.another_host(evidence):
        why = f"The keys of agent {row.name} are used on another host than it enrolled from."
        return AgentRefusal(403, "another-host", why)
    return None


# ── Its own renewal ──


def renew_at(issued_at: datetime, lives_for: timedelta, jitter: float) -> datetime:
    """Half of its life, a tenth of that earlier or later; `jitter` is drawn once, from -1 to 1, and kept."""
    return issued_at + lives_for / 2 * (1 + 0.1 * jitter)
