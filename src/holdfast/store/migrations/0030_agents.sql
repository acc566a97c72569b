-- Agents: hosts that carry out deployments by themselves; the tokens that let them in, and their identities.

CREATE TABLE agent_tokens (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    public_key TEXT NOT NULL,
    uses       INTEGER NOT NULL,
    used       INTEGER NOT NULL DEFAULT 0,
    names      TEXT NOT NULL DEFAULT '[]',
    networks   TEXT NOT NULL DEFAULT '[]',
    approval   BOOLEAN NOT NULL,
    owner      TEXT NOT NULL DEFAULT '',
    labels     TEXT NOT NULL DEFAULT '{}',
    created_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    revoked_at BIGINT
);

CREATE TABLE agents (
    id              TEXT PRIMARY KEY,
    name            TEXT NOT NULL UNIQUE,
    state           TEXT NOT NULL CHECK (state IN ('pending', 'active', 'cloned', 'banned', 'retired')),
    version         INTEGER NOT NULL DEFAULT 1,
    owner           TEXT NOT NULL DEFAULT '',
    labels          TEXT NOT NULL DEFAULT '{}',
    binding_key     TEXT NOT NULL,
    binding_sha256  TEXT NOT NULL UNIQUE,
    sealing_key     TEXT NOT NULL DEFAULT '',
    token           TEXT NOT NULL,
    generation      INTEGER NOT NULL DEFAULT 0,
    used_generation INTEGER NOT NULL DEFAULT 0,
    recoveries_left INTEGER NOT NULL,
    recoveries      INTEGER NOT NULL DEFAULT 0,
    evidence        TEXT NOT NULL DEFAULT '{}',
    session         TEXT NOT NULL DEFAULT '',
    session_since   BIGINT,
    earlier         TEXT NOT NULL DEFAULT '[]',
    address         TEXT NOT NULL DEFAULT '',
    created_at      BIGINT NOT NULL,
    changed_at      BIGINT NOT NULL,
    last_seen_at    BIGINT
);

CREATE TABLE agent_identities (
    agent      TEXT NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    generation INTEGER NOT NULL,
    spki       TEXT NOT NULL,
    order_id   TEXT NOT NULL,
    not_after  BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (agent, generation)
);

-- The key that signs work for agents: one of the installation, made with the first token.
CREATE TABLE agent_signer (
    only_one   INTEGER PRIMARY KEY CHECK (only_one = 1),
    key_secret TEXT NOT NULL,
    public_key TEXT NOT NULL
);
