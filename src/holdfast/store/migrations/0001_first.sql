-- Statements are separated by an empty line. "-- only: ENGINE" keeps a statement to one engine.
-- Instants are BIGINT microseconds since 1970, read from the database's clock by now_us()
-- (on SQLite the product registers that function on each connection).

-- only: postgresql
CREATE FUNCTION now_us() RETURNS BIGINT LANGUAGE SQL VOLATILE AS
$$ SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT $$;

CREATE TABLE jobs (
    id           TEXT PRIMARY KEY,
    kind         TEXT NOT NULL,
    subject      TEXT NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('ready', 'running', 'failed', 'dead')),
    priority     SMALLINT NOT NULL CHECK (priority BETWEEN 0 AND 2),
    due_at       BIGINT NOT NULL,
    attempts     INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL,
    crashes      INTEGER NOT NULL DEFAULT 0,
    fence        BIGINT NOT NULL DEFAULT 0,
    holder       TEXT,
    lease_until  BIGINT,
    recheck      BOOLEAN NOT NULL DEFAULT FALSE,
    budgets      TEXT NOT NULL DEFAULT '',
    payload      TEXT NOT NULL DEFAULT '{}',
    reason       TEXT,
    last_error   TEXT,
    created_at   BIGINT NOT NULL,
    started_at   BIGINT,
    expires_at   BIGINT
);

-- A live job blocks a second one for the same work; a dead one does not.
CREATE UNIQUE INDEX jobs_one_live ON jobs (kind, subject) WHERE state <> 'dead';

-- Each scan has a partial index, so that its cost follows what is due and not what exists.
CREATE INDEX jobs_ready ON jobs (kind, priority, due_at) WHERE state = 'ready';

CREATE INDEX jobs_running ON jobs (lease_until) WHERE state = 'running';

CREATE INDEX jobs_failed ON jobs (due_at) WHERE state = 'failed';

CREATE INDEX jobs_expiring ON jobs (expires_at) WHERE expires_at IS NOT NULL AND state IN ('ready', 'failed');

CREATE INDEX jobs_dead ON jobs (kind, subject) WHERE state = 'dead';

CREATE TABLE job_history (
    id          TEXT PRIMARY KEY,
    kind        TEXT NOT NULL,
    subject     TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('done', 'cancelled')),
    attempts    INTEGER NOT NULL,
    fence       BIGINT NOT NULL,
    holder      TEXT,
    created_at  BIGINT NOT NULL,
    started_at  BIGINT,
    finished_at BIGINT NOT NULL
);

CREATE TABLE leases (
    name        TEXT PRIMARY KEY,
    holder      TEXT NOT NULL,
    fence       BIGINT NOT NULL,
    until       BIGINT NOT NULL,
    acquired_at BIGINT NOT NULL
);

CREATE TABLE replicas (
    holder     TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    version    TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    seen_at    BIGINT NOT NULL,
    draining   BOOLEAN NOT NULL DEFAULT FALSE
);

CREATE TABLE budgets (
    key        TEXT PRIMARY KEY,
    burst      INTEGER NOT NULL,
    every      BIGINT NOT NULL,
    reserve    DOUBLE PRECISION NOT NULL,
    tat        BIGINT NOT NULL,
    not_before BIGINT,
    tail       BIGINT,
    urgent_tail      BIGINT,
    lost_tail        BIGINT,
    urgent_lost_tail BIGINT
);

CREATE TABLE journal_head (
    only_one   INTEGER PRIMARY KEY CHECK (only_one = 1),
    audit_seq  BIGINT NOT NULL,
    audit_hash TEXT NOT NULL,
    event_id   BIGINT NOT NULL
);

INSERT INTO journal_head (only_one, audit_seq, audit_hash, event_id) VALUES (1, 0, '', 0);

CREATE TABLE audit (
    seq     BIGINT PRIMARY KEY,
    at      BIGINT NOT NULL,
    actor   TEXT NOT NULL,
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,
    details TEXT NOT NULL,
    hash    TEXT NOT NULL
);

CREATE TABLE events (
    id      BIGINT PRIMARY KEY,
    at      BIGINT NOT NULL,
    name    TEXT NOT NULL,
    subject TEXT NOT NULL,
    job     TEXT NOT NULL,
    details TEXT NOT NULL
);

CREATE INDEX events_of_subject ON events (subject, id);

CREATE TABLE event_cursors (
    consumer TEXT PRIMARY KEY,
    event_id BIGINT NOT NULL
);

-- only: sqlite
CREATE TRIGGER audit_is_never_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'audit rows are never changed'); END;

-- only: sqlite
CREATE TRIGGER audit_is_never_deleted BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'audit rows are never deleted'); END;

-- only: postgresql
CREATE FUNCTION refuse_audit_change() RETURNS TRIGGER LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'audit rows are never changed or deleted'; END $$;

-- only: postgresql
CREATE TRIGGER audit_is_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change();

CREATE TABLE write_keys (
    key    TEXT PRIMARY KEY,
    result TEXT NOT NULL,
    at     BIGINT NOT NULL
);

-- The keys that encrypt keys: never the keys themselves, only what tells the right one from a wrong one.
CREATE TABLE key_checks (
    kek_id     TEXT PRIMARY KEY,
    is_current BOOLEAN NOT NULL,
    salt       BYTEA,
    check_box  BYTEA NOT NULL,
    created_at BIGINT NOT NULL
);

-- Two replicas that start on an empty database cannot both bring a key.
CREATE UNIQUE INDEX key_checks_one_current ON key_checks (is_current) WHERE is_current;

-- The reference makes it impossible to drop a key that a row still needs.
CREATE TABLE secrets (
    id         TEXT PRIMARY KEY,
    kek_id     TEXT NOT NULL REFERENCES key_checks (kek_id),
    wrapped    BYTEA NOT NULL,
    box        BYTEA NOT NULL,
    created_at BIGINT NOT NULL
);

CREATE INDEX secrets_by_kek ON secrets (kek_id, id);

CREATE TABLE store_epoch (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    epoch    BIGINT NOT NULL
);

INSERT INTO store_epoch (only_one, epoch) VALUES (1, 0);

CREATE TABLE self_checks (
    name       TEXT PRIMARY KEY,
    checked_at BIGINT NOT NULL,
    ok         BOOLEAN NOT NULL,
    details    TEXT NOT NULL
);
