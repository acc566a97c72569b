-- Certificates that we keep: what their owners want, what we hold, each attempt to get one, and the CAs we ask.

-- CAs by the name that people give them. `credentials` maps a purpose to the id of a sealed secret.
CREATE TABLE issuers (
    name             TEXT PRIMARY KEY,
    kind             TEXT NOT NULL,
    settings         TEXT NOT NULL DEFAULT '{}',
    credentials      TEXT NOT NULL DEFAULT '{}',
    state            TEXT NOT NULL CHECK (state IN ('active', 'paused')),
    version          INTEGER NOT NULL DEFAULT 1,
    breaker_failures INTEGER NOT NULL DEFAULT 0,
    breaker_until    BIGINT,
    breaker_probe    TEXT,
    breaker_probe_until BIGINT,
    breaker_error    TEXT,
    breaker_limits   INTEGER NOT NULL DEFAULT 0,
    created_at       BIGINT NOT NULL
);

-- Accounts at those CAs, shared by all replicas: the key is made once, sealed, and kept before the CA hears of it.
CREATE TABLE issuer_accounts (
    id         TEXT PRIMARY KEY,
    issuer     TEXT NOT NULL REFERENCES issuers (name),
    directory  TEXT NOT NULL,
    url        TEXT,
    key_secret TEXT NOT NULL REFERENCES secrets (id),
    new_key_secret TEXT REFERENCES secrets (id),
    contacts   TEXT NOT NULL DEFAULT '[]',
    eab_kid    TEXT,
    state      TEXT NOT NULL CHECK (state IN ('creating', 'valid', 'deactivated', 'gone')),
    created_at BIGINT NOT NULL
);

-- Two replicas that begin together do not make two accounts.
CREATE UNIQUE INDEX issuer_accounts_one ON issuer_accounts (issuer, directory) WHERE state IN ('creating', 'valid');

CREATE TABLE certificates (
    id                TEXT PRIMARY KEY,
    name              TEXT NOT NULL,
    identifiers       TEXT NOT NULL,
    key_kind          TEXT NOT NULL,
    issuers           TEXT NOT NULL,
    profile           TEXT,
    preferred_chain   TEXT,
    lifetime          BIGINT,
    reuse_key         BOOLEAN NOT NULL DEFAULT FALSE,
    rule              TEXT NOT NULL DEFAULT '{}',
    windows           TEXT NOT NULL DEFAULT '[]',
    owner             TEXT NOT NULL DEFAULT '',
    labels            TEXT NOT NULL DEFAULT '{}',
    state             TEXT NOT NULL CHECK (state IN ('active', 'paused', 'archived')),
    generation        INTEGER NOT NULL DEFAULT 1,
    version           INTEGER NOT NULL DEFAULT 1,
    approval_required BOOLEAN NOT NULL DEFAULT FALSE,
    changed_by        TEXT NOT NULL,
    created_at        BIGINT NOT NULL,
    -- Present only while it is failing; any success clears all five.
    issuance_attempts INTEGER,
    first_failure_at  BIGINT,
    last_failure_at   BIGINT,
    last_error        TEXT,
    reason            TEXT,
    fingerprint       TEXT NOT NULL,
    -- NULL while an issuance is under way, and for those that are paused or archived.
    next_action_at    BIGINT,
    next_cause        TEXT,
    current_version   TEXT,
    ari_start         BIGINT,
    ari_end           BIGINT,
    ari_pick          BIGINT,
    ari_explanation   TEXT,
    ari_forced_at     BIGINT,
    ari_ask_at        BIGINT
);

CREATE UNIQUE INDEX certificates_by_name ON certificates (name) WHERE state <> 'archived';

-- Each scan has a partial index, so that its cost follows what is due and not what exists. The state comes first although it
-- is always the same: without statistics SQLite would prefer any other index that it can compare with "=".
CREATE INDEX certificates_due ON certificates (state, next_action_at) WHERE state = 'active' AND next_action_at IS NOT NULL;

CREATE INDEX certificates_not_due ON certificates (state, id) WHERE state = 'active' AND next_action_at IS NULL;

CREATE INDEX certificates_to_ask ON certificates (state, ari_ask_at) WHERE state = 'active' AND ari_ask_at IS NOT NULL;

CREATE INDEX certificates_failing ON certificates (last_failure_at) WHERE last_failure_at IS NOT NULL;

CREATE TABLE certificate_versions (
    id          TEXT PRIMARY KEY,
    certificate TEXT NOT NULL REFERENCES certificates (id),
    generation  INTEGER NOT NULL,
    issuance    TEXT,
    state       TEXT NOT NULL CHECK (state IN ('active', 'superseded', 'revoked', 'imported')),
    key_secret  TEXT NOT NULL REFERENCES secrets (id),
    chain_pem   TEXT NOT NULL,
    serial      TEXT NOT NULL,
    not_before  BIGINT NOT NULL,
    not_after   BIGINT NOT NULL,
    issuer      TEXT NOT NULL,
    account     TEXT,
    spki_sha256 TEXT NOT NULL,
    issued_at   BIGINT NOT NULL,
    revoke_reason INTEGER,
    revoke_asked_at BIGINT,
    revoked_at  BIGINT
);

-- One attempt gives one version, however often its result is written.
CREATE UNIQUE INDEX certificate_versions_one ON certificate_versions (issuance) WHERE issuance IS NOT NULL;

CREATE INDEX certificate_versions_by_key ON certificate_versions (key_secret);

CREATE INDEX certificate_versions_of ON certificate_versions (certificate, issued_at);

CREATE INDEX certificate_versions_expiring ON certificate_versions (not_after) WHERE state IN ('active', 'imported');

CREATE INDEX certificate_versions_to_revoke ON certificate_versions (id)
 WHERE revoke_asked_at IS NOT NULL AND revoked_at IS NULL;

CREATE TABLE issuances (
    id           TEXT PRIMARY KEY,
    certificate  TEXT NOT NULL REFERENCES certificates (id),
    generation   INTEGER NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('awaiting_approval', 'requested', 'key_stored', 'ordered', 'proving',
                                                'finalizing', 'waiting', 'issued', 'failed', 'cancelled')),
    version      INTEGER NOT NULL DEFAULT 1,
    issuer       TEXT NOT NULL,
    cause        TEXT NOT NULL,
    urgent       BOOLEAN NOT NULL DEFAULT FALSE,
    identifiers  TEXT NOT NULL,
    key_secret   TEXT REFERENCES secrets (id),
    csr          BYTEA,
    ref          TEXT,
    proofs       TEXT NOT NULL DEFAULT '[]',
    replaces     TEXT,
    failures     INTEGER NOT NULL DEFAULT 0,
    polls        INTEGER NOT NULL DEFAULT 0,
    polled_since BIGINT,
    requested_by TEXT NOT NULL,
    started_at   BIGINT NOT NULL,
    ended_at     BIGINT,
    error        TEXT,
    reason       TEXT
);

-- At most one attempt is under way for a certificate, whoever asks.
CREATE UNIQUE INDEX issuances_one_active ON issuances (certificate)
 WHERE state NOT IN ('issued', 'failed', 'cancelled');

CREATE INDEX issuances_under_way ON issuances (id) WHERE state NOT IN ('issued', 'failed', 'cancelled');

-- CAs give the same order to whoever asks twice for the same names; two attempts with two keys must not share it.
CREATE UNIQUE INDEX issuances_one_order ON issuances (issuer, ref)
 WHERE ref IS NOT NULL AND state NOT IN ('issued', 'failed', 'cancelled');

CREATE INDEX issuances_by_key ON issuances (key_secret) WHERE key_secret IS NOT NULL;

CREATE INDEX issuances_over ON issuances (ended_at) WHERE ended_at IS NOT NULL;

CREATE INDEX issuances_of ON issuances (certificate, started_at);

-- What a CA will look for, answered by any replica.
CREATE TABLE challenge_responses (
    type              TEXT NOT NULL,
    token             TEXT NOT NULL,
    identifier        TEXT NOT NULL,
    key_authorization TEXT NOT NULL,
    created_at        BIGINT NOT NULL,
    PRIMARY KEY (type, token)
);

CREATE INDEX challenge_responses_by_name ON challenge_responses (type, identifier);

CREATE INDEX challenge_responses_old ON challenge_responses (created_at);

CREATE TABLE approvals (
    id           TEXT PRIMARY KEY,
    issuance     TEXT NOT NULL REFERENCES issuances (id),
    certificate  TEXT NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('pending', 'approved', 'rejected', 'timed_out', 'withdrawn')),
    requested_by TEXT NOT NULL,
    asked_at     BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL,
    decided_by   TEXT,
    decided_at   BIGINT,
    note         TEXT NOT NULL DEFAULT ''
);

CREATE UNIQUE INDEX approvals_one ON approvals (issuance);

CREATE INDEX approvals_pending ON approvals (expires_at) WHERE state = 'pending';
