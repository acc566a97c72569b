-- Targets, and deployments of certificate versions to them.

ALTER TABLE certificates ADD COLUMN targets TEXT NOT NULL DEFAULT '[]';

CREATE TABLE targets (
    name                TEXT PRIMARY KEY,
    kind                TEXT NOT NULL,
    settings            TEXT NOT NULL DEFAULT '{}',
    credentials         TEXT NOT NULL DEFAULT '{}',
    owner               TEXT NOT NULL DEFAULT '',
    labels              TEXT NOT NULL DEFAULT '{}',
    endpoints           TEXT NOT NULL DEFAULT '[]',
    windows             TEXT NOT NULL DEFAULT '[]',
    domain              TEXT NOT NULL DEFAULT '',
    host                TEXT NOT NULL DEFAULT '',
    rollout             TEXT NOT NULL DEFAULT '',
    state               TEXT NOT NULL CHECK (state IN ('active', 'paused')),
    version             INTEGER NOT NULL DEFAULT 1,
    breaker_failures    INTEGER NOT NULL DEFAULT 0,
    breaker_until       BIGINT,
    breaker_probe       TEXT,
    breaker_probe_until BIGINT,
    breaker_error       TEXT,
    breaker_limits      INTEGER NOT NULL DEFAULT 0,
    created_at          BIGINT NOT NULL
);

-- One version on one target. No reference to targets: what was deployed to one that was removed stays visible.
CREATE TABLE deployments (
    id                  TEXT PRIMARY KEY,
    certificate         TEXT NOT NULL REFERENCES certificates (id),
    certificate_version TEXT NOT NULL REFERENCES certificate_versions (id),
    target              TEXT NOT NULL,
    number              BIGINT NOT NULL,
    state               TEXT NOT NULL CHECK (state IN ('queued', 'writing', 'testing', 'reloading', 'verifying',
                                                       'rolling_back', 'served', 'installed', 'held', 'rolled_back',
                                                       'rollback_failed', 'failed', 'superseded')),
    version             INTEGER NOT NULL DEFAULT 1,
    cause               TEXT NOT NULL,
    requested_by        TEXT NOT NULL,
    previous            TEXT,
    failures            INTEGER NOT NULL DEFAULT 0,
    tries               INTEGER NOT NULL DEFAULT 0,
    looked_since        BIGINT,
    next_at             BIGINT,
    atomic              BOOLEAN,
    seen                TEXT NOT NULL DEFAULT '',
    error               TEXT,
    reason              TEXT,
    created_at          BIGINT NOT NULL,
    changed_at          BIGINT NOT NULL,
    served_at           BIGINT
);

-- At most one deployment of a certificate to a target is wanted, whoever asks; the one in place stays beside it.
CREATE UNIQUE INDEX deployments_one_wanted ON deployments (certificate, target)
 WHERE state NOT IN ('served', 'installed', 'superseded');

CREATE UNIQUE INDEX deployments_by_number ON deployments (certificate, target, number);

CREATE INDEX deployments_due ON deployments (next_at) WHERE next_at IS NOT NULL;

CREATE INDEX deployments_of_target ON deployments (target, state);

CREATE INDEX deployments_of_version ON deployments (certificate_version);
