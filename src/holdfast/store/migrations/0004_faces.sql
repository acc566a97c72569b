-- Who may ask through the faces: tokens, of which only a hash is kept.

CREATE TABLE tokens (
    id           TEXT PRIMARY KEY,
    hash         TEXT NOT NULL,
    name         TEXT NOT NULL,
    kind         TEXT NOT NULL CHECK (kind IN ('human', 'robot', 'agent')),
    role         TEXT NOT NULL CHECK (role IN ('admin', 'operator', 'viewer', 'auditor', 'agent', 'first')),
    rights       TEXT NOT NULL DEFAULT '[]',
    -- Only certificates of these owners and with these labels; empty: all of them.
    owners       TEXT NOT NULL DEFAULT '[]',
    labels       TEXT NOT NULL DEFAULT '{}',
    created_by   TEXT NOT NULL,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT,
    last_used_at BIGINT,
    revoked_at   BIGINT
);

-- Two replicas that start on an empty database do not both make a first token.
CREATE UNIQUE INDEX tokens_one_first ON tokens (role) WHERE role = 'first' AND revoked_at IS NULL;

-- Lists by what people look for.
CREATE INDEX certificates_by_owner ON certificates (owner, name);

CREATE INDEX certificates_by_state ON certificates (state);

CREATE INDEX certificates_never_issued ON certificates (id) WHERE current_version IS NULL;

-- By their ends, without those that were replaced long ago.
CREATE INDEX certificate_versions_by_end ON certificate_versions (not_after, certificate) WHERE state <> 'superseded';

CREATE INDEX issuances_by_start ON issuances (started_at, id);

CREATE INDEX audit_of_subject ON audit (subject, seq);
