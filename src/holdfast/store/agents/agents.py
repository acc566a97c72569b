"""Agents and their identities; a write compares the version of the row that it read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from holdfast.core.agents.agent import AgentIdentity, AgentRow, AgentToken
from holdfast.errors import TxConflict
from holdfast.store.rows import LABELS, SETTINGS, Table, assignments
from holdfast.store.tx import Tx, value_list

PAGE: Final = 200
AGENTS: Final = Table(AgentRow, "agents", codecs={"labels": LABELS, "evidence": SETTINGS})
IDENTITIES: Final = Table(AgentIdentity, "agent_identities")
TOKENS: Final = Table(AgentToken, "agent_tokens", codecs={"labels": LABELS})
IDENTITIES_KEPT: Final = 4


# ── Agents ──


def insert(tx: Tx, row: AgentRow) -> bool:
    """Add one; False if its name or its binding key is taken."""
    return tx.run(f"{AGENTS.insert} ON CONFLICT DO NOTHING", **AGENTS.values(row)) == 1


def save(tx: Tx, before: AgentRow, **changes: Any) -> AgentRow:
    """Write what changed, as the next version; TxConflict if another was faster."""
    after = replace(before, version=before.version + 1, changed_at=tx.now(), **changes)
    written = AGENTS.changes({name: getattr(after, name) for name in (*changes, "version", "changed_at")})
    changed = tx.run(
        f"UPDATE agents SET {assignments(written)} WHERE id = :id AND version = :was",
        id=before.id,
        was=before.version,
        **written,
    )
    if not changed:
        raise TxConflict(f"agent {before.name} was changed meanwhile")
    return after


def delete(tx: Tx, agent: str) -> bool:
    tx.run("DELETE FROM agent_identities WHERE agent = :id", id=agent)
    return tx.run("DELETE FROM agents WHERE id = :id", id=agent) == 1


def get(tx: Tx, agent: str, *, lock: bool = False) -> AgentRow | None:
    row = tx.row(f"SELECT {AGENTS.columns} FROM agents WHERE id = :id {'/* FOR UPDATE */' if lock else ''}", id=agent)
    return None if row is None else AGENTS.read(row)


def named(tx: Tx, name: str) -> AgentRow | None:
    row = tx.row(f"SELECT {AGENTS.columns} FROM agents WHERE name = :name", name=name)
    return None if row is None else AGENTS.read(row)


def by_binding(tx: Tx, sha256: str) -> AgentRow | None:
    row = tx.row(f"SELECT {AGENTS.columns} FROM agents WHERE binding_sha256 = :digest", digest=sha256)
    return None if row is None else AGENTS.read(row)


def page(tx: Tx, *, after: str = "", limit: int = PAGE) -> list[AgentRow]:
    """By name."""
    rows = tx.rows(
        f"SELECT {AGENTS.columns} FROM agents WHERE name > :after ORDER BY name LIMIT :limit", after=after, limit=limit
    )
    return [AGENTS.read(row) for row in rows]


def seen(tx: Tx, last: Mapping[str, tuple[datetime, str]]) -> None:
    """When agents were last heard of, and from where: many at once, and no version of a row changes."""
    found = sorted(last.items())
    for start in range(0, len(found), PAGE):
        rows = [(agent, at, address) for agent, (at, address) in found[start : start + PAGE]]
        text, values = value_list(rows)
        tx.run(
            f"""WITH heard (id, at, address) AS ({text})
                UPDATE agents SET last_seen_at = heard.at, address = heard.address FROM heard
                 WHERE agents.id = heard.id AND (agents.last_seen_at IS NULL OR agents.last_seen_at < heard.at)""",
            **values,
        )


# ── Identities ──


def add_identity(tx: Tx, identity: AgentIdentity) -> None:
    """The newest one; the oldest are forgotten."""
    if not tx.run(f"{IDENTITIES.insert} ON CONFLICT DO NOTHING", **IDENTITIES.values(identity)):
        raise TxConflict(f"agent {identity.agent} has an identity {identity.generation} by now")
    tx.run(
        "DELETE FROM agent_identities WHERE agent = :agent AND generation <= :oldest",
        agent=identity.agent,
        oldest=identity.generation - IDENTITIES_KEPT,
    )


def identity(tx: Tx, agent: str, generation: int) -> AgentIdentity | None:
    row = tx.row(
        f"SELECT {IDENTITIES.columns} FROM agent_identities WHERE agent = :agent AND generation = :generation",
        agent=agent,
        generation=generation,
    )
    return None if row is None else IDENTITIES.read(row)


# ── Tokens ──


def insert_token(tx: Tx, token: AgentToken) -> None:
    tx.run(TOKENS.insert, **TOKENS.values(token))


def get_token(tx: Tx, token: str, *, lock: bool = False) -> AgentToken | None:
    row = tx.row(
        f"SELECT {TOKENS.columns} FROM agent_tokens WHERE id = :id {'/* FOR UPDATE */' if lock else ''}", id=token
    )
    return None if row is None else TOKENS.read(row)


def token_page(tx: Tx, *, after: str = "", limit: int = PAGE) -> list[AgentToken]:
    rows = tx.rows(
        f"SELECT {TOKENS.columns} FROM agent_tokens WHERE id > :after ORDER BY id LIMIT :limit",
        after=after,
        limit=limit,
    )
    return [TOKENS.read(row) for row in rows]


def use_token(tx: Tx, token: AgentToken) -> None:
    changed = tx.run(
        "UPDATE agent_tokens SET used = used + 1 WHERE id = :id AND used = :was AND used < uses",
        id=token.id,
        was=token.used,
    )
    if not changed:
        raise TxConflict(f"agent token {token.id} was used meanwhile")


def revoke_token(tx: Tx, token: str) -> bool:
    """False if it was revoked before."""
    changed = tx.run("UPDATE agent_tokens SET revoked_at = now_us() WHERE id = :id AND revoked_at IS NULL", id=token)
    return changed == 1


# ── The key that signs work ──


class SignerRow(NamedTuple):
    key_secret: str
    public_key: str  # base64 of its SPKI


def signer(tx: Tx) -> SignerRow | None:
    row = tx.row("SELECT key_secret, public_key FROM agent_signer WHERE only_one = 1")
    return None if row is None else SignerRow(row["key_secret"], row["public_key"])


def keep_signer(tx: Tx, made: SignerRow) -> bool:
    """False if another replica was quicker: its key counts."""
    changed = tx.run(
        "INSERT INTO agent_signer (only_one, key_secret, public_key) VALUES (1, :secret, :key) ON CONFLICT DO NOTHING",
        secret=made.key_secret,
        key=made.public_key,
    )
    return changed == 1
