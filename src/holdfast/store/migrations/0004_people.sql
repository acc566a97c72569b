-- People who log in, and the sessions of their browsers. Of passwords, session cookies, links and codes only hashes are kept.

CREATE TABLE people (
    id            TEXT PRIMARY KEY,
    name          TEXT NOT NULL UNIQUE,
    role          TEXT NOT NULL CHECK (role IN ('admin', 'operator', 'viewer', 'auditor')),
    rights        TEXT NOT NULL DEFAULT '[]',
    -- Only certificates of these owners and with these labels; empty: all of them.
    owners        TEXT NOT NULL DEFAULT '[]',
    labels        TEXT NOT NULL DEFAULT '{}',
    password      TEXT,
    -- The sealed secret that codes are made with, and the last time step of which a code was used.
    totp          TEXT,
    totp_step     BIGINT NOT NULL DEFAULT 0,
    -- Of a person whom an OpenID provider vouches for: who says so, and its name for the person.
    issuer        TEXT,
    subject       TEXT,
    created_by    TEXT NOT NULL,
    created_at    BIGINT NOT NULL,
    last_login_at BIGINT,
    disabled_at   BIGINT,
    version       INTEGER NOT NULL DEFAULT 1
);

CREATE UNIQUE INDEX people_of_provider ON people (issuer, subject) WHERE issuer IS NOT NULL;

CREATE TABLE passkeys (
    id           TEXT PRIMARY KEY,
    person       TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    name         TEXT NOT NULL,
    -- The attested credential data: id and public key, as the authenticator wrote them.
    credential   BYTEA NOT NULL,
    sign_count   BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    last_used_at BIGINT
);

CREATE INDEX passkeys_of ON passkeys (person);

CREATE TABLE recovery_codes (
    hash    TEXT PRIMARY KEY,
    person  TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    used_at BIGINT
);

CREATE INDEX recovery_codes_of ON recovery_codes (person);

CREATE TABLE sessions (
    id         TEXT PRIMARY KEY,
    hash       TEXT NOT NULL UNIQUE,
    person     TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    method     TEXT NOT NULL CHECK (method IN ('password', 'passkey', 'provider', 'link', 'setup')),
    address    TEXT NOT NULL,
    client     TEXT NOT NULL,
    -- What the OpenID provider calls this session.
    sid        TEXT,
    created_at BIGINT NOT NULL,
    used_at    BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    ended_at   BIGINT
);

CREATE INDEX sessions_of ON sessions (person);

CREATE INDEX sessions_old ON sessions (expires_at);

-- What may be used once: links, and what a log-in under way waits for. `details` has nothing secret.
CREATE TABLE tickets (
    hash       TEXT PRIMARY KEY,
    kind       TEXT NOT NULL,
    person     TEXT REFERENCES people (id) ON DELETE CASCADE,
    details    TEXT NOT NULL DEFAULT '{}',
    expires_at BIGINT NOT NULL
);

CREATE INDEX tickets_old ON tickets (expires_at);

-- Failures to log in, by name and by address, counted by all replicas together.
CREATE TABLE login_failures (
    key           TEXT PRIMARY KEY,
    failures      INTEGER NOT NULL,
    counted_since BIGINT NOT NULL,
    refused_until BIGINT NOT NULL
);
