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
    draining   BOOLEAN NOT NULL DEFAULT FALSE,
    -- When each loop of a replica ended last, as its heartbeat tells it.
    loops      TEXT NOT NULL DEFAULT '{}'
);

CREATE TABLE budgets (
    key              TEXT PRIMARY KEY,
    burst            INTEGER NOT NULL,
    every            BIGINT NOT NULL,
    reserve          DOUBLE PRECISION NOT NULL,
    tat              BIGINT NOT NULL,
    not_before       BIGINT,
    tail             BIGINT,
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

CREATE INDEX audit_of_subject ON audit (subject, seq);

CREATE INDEX audit_by_actor ON audit (actor, seq);

CREATE INDEX audit_by_action ON audit (action, seq);

CREATE INDEX audit_by_time ON audit (at, seq);

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

-- Our own CA: authorities, and the ACME accounts, orders, authorizations and challenges of their clients.

-- What an authority signs with is a sealed secret, or a key in a device (a PKCS#11 address); never both.
CREATE TABLE cas (
    id          TEXT PRIMARY KEY,
    state       TEXT NOT NULL CHECK (state IN ('active', 'closed')),
    certificate BYTEA NOT NULL,
    above       TEXT NOT NULL DEFAULT '',
    root        TEXT NOT NULL DEFAULT '',
    alternates  TEXT NOT NULL DEFAULT '[]',
    key_secret  TEXT REFERENCES secrets (id),
    key_device  TEXT,
    root_secret TEXT REFERENCES secrets (id),
    options     TEXT NOT NULL,
    version     INTEGER NOT NULL DEFAULT 1,
    created_at  BIGINT NOT NULL,
    CHECK ((key_secret IS NULL) <> (key_device IS NULL))
);

CREATE TABLE acme_accounts (
    id         TEXT PRIMARY KEY,
    ca         TEXT NOT NULL REFERENCES cas (id),
    thumbprint TEXT NOT NULL,
    jwk        TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('valid', 'deactivated', 'revoked')),
    contacts   TEXT NOT NULL DEFAULT '[]',
    eab_kid    TEXT,
    eab        TEXT,
    names      TEXT NOT NULL DEFAULT '[]',
    agreed     BOOLEAN NOT NULL DEFAULT FALSE,
    created_at BIGINT NOT NULL
);

-- One account for each key: a second newAccount finds the first.
CREATE UNIQUE INDEX acme_accounts_by_key ON acme_accounts (ca, thumbprint);

CREATE TABLE acme_eab_keys (
    kid        TEXT PRIMARY KEY,
    ca         TEXT NOT NULL REFERENCES cas (id),
    secret_id  TEXT NOT NULL REFERENCES secrets (id),
    names      TEXT NOT NULL DEFAULT '[]',
    note       TEXT NOT NULL DEFAULT '',
    account    TEXT REFERENCES acme_accounts (id),
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT
);

CREATE TABLE acme_orders (
    id          TEXT PRIMARY KEY,
    ca          TEXT NOT NULL,
    account     TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('pending', 'ready', 'processing', 'valid', 'invalid')),
    profile     TEXT NOT NULL,
    identifiers TEXT NOT NULL,
    authzs      TEXT NOT NULL,
    likeness    TEXT NOT NULL,
    not_before  BIGINT,
    not_after   BIGINT,
    replaces    TEXT,
    expires_at  BIGINT NOT NULL,
    csr         BYTEA,
    error       TEXT,
    certificate TEXT,
    created_at  BIGINT NOT NULL
);

-- Asking twice for the same gives the same order, as long as it can still be used.
CREATE UNIQUE INDEX acme_orders_alike ON acme_orders (account, likeness) WHERE state IN ('pending', 'ready');

CREATE INDEX acme_orders_of_account ON acme_orders (account, id);

CREATE INDEX acme_orders_open ON acme_orders (expires_at) WHERE state IN ('pending', 'ready');

CREATE INDEX acme_orders_processing ON acme_orders (id) WHERE state = 'processing';

-- Orders that came to nothing, by the time of their end. Those with a certificate are found by their age, which is in
-- their id.
CREATE INDEX acme_orders_refused ON acme_orders (expires_at) WHERE state = 'invalid';

CREATE TABLE acme_authzs (
    id         TEXT PRIMARY KEY,
    account    TEXT NOT NULL,
    type       TEXT NOT NULL CHECK (type IN ('dns', 'ip')),
    value      TEXT NOT NULL,
    wildcard   BOOLEAN NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('pending', 'valid', 'invalid', 'deactivated', 'expired', 'revoked')),
    expires_at BIGINT NOT NULL,
    proved_at  BIGINT NOT NULL DEFAULT 0
);

CREATE INDEX acme_authzs_to_reuse ON acme_authzs (account, value, type, wildcard) WHERE state = 'valid';

CREATE INDEX acme_authzs_open ON acme_authzs (expires_at) WHERE state IN ('pending', 'valid');

-- Authorizations that are over, by the time of their end: those that ended long ago are deleted with their challenges.
CREATE INDEX acme_authzs_ended ON acme_authzs (expires_at) WHERE state IN ('invalid', 'deactivated', 'expired', 'revoked');

CREATE TABLE acme_order_authzs (
    order_id TEXT NOT NULL,
    authz_id TEXT NOT NULL,
    PRIMARY KEY (order_id, authz_id)
);

CREATE INDEX acme_order_authzs_back ON acme_order_authzs (authz_id, order_id);

-- Three kinds of data, each in its own place: what we chose (token), what the client's answer fixed (thumbprint: a later
-- change of its key must not break it), and what we saw (error, tries).
CREATE TABLE acme_challenges (
    id          TEXT PRIMARY KEY,
    authz_id    TEXT NOT NULL REFERENCES acme_authzs (id),
    type        TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('pending', 'processing', 'valid', 'invalid')),
    token       TEXT NOT NULL,
    thumbprint  TEXT,
    error       TEXT,
    tries       TEXT NOT NULL DEFAULT '[]',
    next_try_at BIGINT,
    valid_at    BIGINT
);

CREATE INDEX acme_challenges_of_authz ON acme_challenges (authz_id);

CREATE INDEX acme_challenges_processing ON acme_challenges (id) WHERE state = 'processing';

-- What will be signed, written down before it is: a lost certificate can be made again, and can be revoked.
CREATE TABLE ca_issuances (
    order_id   TEXT PRIMARY KEY,
    ca         TEXT NOT NULL,
    serial     TEXT NOT NULL,
    intent     BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    -- What was seen at each try to sign that failed: JSON, as for challenges.
    tries      TEXT NOT NULL DEFAULT '[]'
);

CREATE UNIQUE INDEX ca_issuances_serial ON ca_issuances (ca, serial);

CREATE TABLE ca_certificates (
    id              TEXT PRIMARY KEY,
    ca              TEXT NOT NULL,
    serial          TEXT NOT NULL,
    order_id        TEXT NOT NULL UNIQUE,
    account         TEXT NOT NULL,
    profile         TEXT NOT NULL,
    identifiers     TEXT NOT NULL,
    der             BYTEA NOT NULL,
    spki_sha256     TEXT NOT NULL,
    not_before      BIGINT NOT NULL,
    not_after       BIGINT NOT NULL,
    shard           INTEGER,
    issued_at       BIGINT NOT NULL,
    revoked_at      BIGINT,
    reason          INTEGER CHECK (reason IN (0, 1, 3, 4, 5, 9)),
    listed_at       BIGINT,
    replaced_by     TEXT,
    delivery        TEXT NOT NULL DEFAULT 'offered'
                    CHECK (delivery IN ('offered', 'fetched', 'acknowledged', 'deployed')),
    fetched_at      BIGINT,
    acknowledged_at BIGINT,
    deployed_at     BIGINT,
    alerted_at      BIGINT
);

CREATE UNIQUE INDEX ca_certificates_serial ON ca_certificates (ca, serial);

CREATE INDEX ca_certificates_of_account ON ca_certificates (account, id);

CREATE INDEX ca_certificates_of_key ON ca_certificates (spki_sha256);

CREATE INDEX ca_certificates_revoked ON ca_certificates (ca, shard) WHERE revoked_at IS NOT NULL;

CREATE INDEX ca_certificates_offered ON ca_certificates (issued_at) WHERE delivery = 'offered' AND alerted_at IS NULL;

-- The newest list of each shard; its number only grows.
CREATE TABLE crls (
    ca          TEXT NOT NULL REFERENCES cas (id),
    shard       INTEGER NOT NULL,
    number      BIGINT NOT NULL,
    this_update BIGINT NOT NULL,
    next_update BIGINT NOT NULL,
    der         BYTEA NOT NULL,
    PRIMARY KEY (ca, shard)
);

CREATE TABLE blocked_keys (
    spki_sha256 TEXT PRIMARY KEY,
    why         TEXT NOT NULL,
    at          BIGINT NOT NULL
);

-- Failures in a row for one name of one account; paused_at: no more orders until somebody looked.
CREATE TABLE acme_failures (
    account   TEXT NOT NULL,
    name      TEXT NOT NULL,
    failures  INTEGER NOT NULL,
    last_at   BIGINT NOT NULL,
    paused_at BIGINT,
    PRIMARY KEY (account, name)
);

-- Requests counted against a limit: the time at which the bucket is empty again (GCRA).
CREATE TABLE acme_limits (
    key  TEXT PRIMARY KEY,
    tat  BIGINT NOT NULL,
    room BIGINT NOT NULL
);

CREATE INDEX acme_limits_by_time ON acme_limits (tat);

-- Nonces are not worth a durable commit. The key that makes them is kept beside the redeemed ones, in tables that
-- PostgreSQL empties after a crash: whoever loses the memory of what was redeemed, loses the key to it as well.
-- only: postgresql
CREATE UNLOGGED TABLE acme_nonce_keys (
    id      BIGINT PRIMARY KEY,
    secret  BYTEA NOT NULL,
    made_at BIGINT NOT NULL
);

-- only: postgresql
CREATE UNLOGGED TABLE acme_nonces (
    raw BYTEA PRIMARY KEY,
    at  BIGINT NOT NULL
);

-- The certificates of our own listener: an order like any other, whose key we keep.
CREATE TABLE listener_certificates (
    order_id   TEXT PRIMARY KEY,
    host       TEXT NOT NULL,
    key_secret TEXT NOT NULL REFERENCES secrets (id),
    created_at BIGINT NOT NULL
);

-- Certificates that we keep: what their owners want, what we hold, each attempt to get one, and the CAs we ask.

-- CAs by the name that people give them. `credentials` maps a purpose to the id of a sealed secret.
CREATE TABLE issuers (
    name                TEXT PRIMARY KEY,
    kind                TEXT NOT NULL,
    settings            TEXT NOT NULL DEFAULT '{}',
    credentials         TEXT NOT NULL DEFAULT '{}',
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

-- Accounts at those CAs, shared by all replicas: the key is made once, sealed, and kept before the CA hears of it.
CREATE TABLE issuer_accounts (
    id             TEXT PRIMARY KEY,
    issuer         TEXT NOT NULL REFERENCES issuers (name),
    directory      TEXT NOT NULL,
    url            TEXT,
    key_secret     TEXT NOT NULL REFERENCES secrets (id),
    new_key_secret TEXT REFERENCES secrets (id),
    contacts       TEXT NOT NULL DEFAULT '[]',
    eab_kid        TEXT,
    state          TEXT NOT NULL CHECK (state IN ('creating', 'valid', 'deactivated', 'gone')),
    created_at     BIGINT NOT NULL
);

-- Two replicas that begin together do not make two accounts.
CREATE UNIQUE INDEX issuer_accounts_one ON issuer_accounts (issuer, directory) WHERE state IN ('creating', 'valid');

CREATE TABLE certificates (
    id                TEXT PRIMARY KEY,
    name              TEXT NOT NULL,
    identifiers       TEXT NOT NULL,
    key_kind          TEXT NOT NULL CHECK (key_kind IN ('ec-p256', 'ec-p384', 'rsa-2048', 'rsa-3072', 'rsa-4096',
                                                       'ed25519')),
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
    ari_ask_at        BIGINT,
    -- When the version in use ends; NULL: there is none. Kept by the database, whoever writes.
    ends_at           BIGINT
);

CREATE UNIQUE INDEX certificates_by_name ON certificates (name) WHERE state <> 'archived';

-- Each scan has a partial index, so that its cost follows what is due and not what exists. The state comes first although it
-- is always the same: without statistics SQLite would prefer any other index that it can compare with "=".
CREATE INDEX certificates_due ON certificates (state, next_action_at) WHERE state = 'active' AND next_action_at IS NOT NULL;

CREATE INDEX certificates_not_due ON certificates (state, id) WHERE state = 'active' AND next_action_at IS NULL;

CREATE INDEX certificates_to_ask ON certificates (state, ari_ask_at) WHERE state = 'active' AND ari_ask_at IS NOT NULL;

CREATE INDEX certificates_failing ON certificates (last_failure_at) WHERE last_failure_at IS NOT NULL;

-- Lists by what people look for.
CREATE INDEX certificates_by_owner ON certificates (owner, name);

CREATE INDEX certificates_by_state ON certificates (state);

CREATE INDEX certificates_never_issued ON certificates (id) WHERE current_version IS NULL;

CREATE INDEX certificates_ends ON certificates (ends_at, id, state) WHERE state <> 'archived';

-- only: sqlite
CREATE TRIGGER certificates_end_when_new AFTER INSERT ON certificates WHEN NEW.current_version IS NOT NULL
BEGIN
    UPDATE certificates SET ends_at = (SELECT not_after FROM certificate_versions WHERE id = NEW.current_version)
     WHERE id = NEW.id;
END;

-- only: sqlite
CREATE TRIGGER certificates_end AFTER UPDATE OF current_version ON certificates
WHEN NEW.current_version IS NOT OLD.current_version
BEGIN
    UPDATE certificates SET ends_at = (SELECT not_after FROM certificate_versions WHERE id = NEW.current_version)
     WHERE id = NEW.id;
END;

-- only: postgresql
CREATE FUNCTION certificates_end() RETURNS TRIGGER LANGUAGE plpgsql AS
$$ BEGIN
    NEW.ends_at = (SELECT not_after FROM certificate_versions WHERE id = NEW.current_version);
    RETURN NEW;
END $$;

-- only: postgresql
CREATE TRIGGER certificates_end_when_new BEFORE INSERT ON certificates
FOR EACH ROW WHEN (NEW.current_version IS NOT NULL) EXECUTE FUNCTION certificates_end();

-- only: postgresql
CREATE TRIGGER certificates_end BEFORE UPDATE OF current_version ON certificates
FOR EACH ROW WHEN (NEW.current_version IS DISTINCT FROM OLD.current_version) EXECUTE FUNCTION certificates_end();

-- only: sqlite
CREATE TRIGGER certificate_names_when_new AFTER INSERT ON certificates
BEGIN
    INSERT INTO certificate_names (name, certificate, text)
    SELECT NEW.name, NEW.id, LOWER(NEW.name)
     UNION SELECT NEW.name, NEW.id, LOWER(json_extract(each_one.value, '$[1]'))
             FROM json_each(NEW.identifiers) AS each_one;
END;

-- only: sqlite
CREATE TRIGGER certificate_names_when_changed AFTER UPDATE OF name, identifiers ON certificates
WHEN NEW.name <> OLD.name OR NEW.identifiers <> OLD.identifiers
BEGIN
    DELETE FROM certificate_names WHERE name = OLD.name AND certificate = OLD.id;
    INSERT INTO certificate_names (name, certificate, text)
    SELECT NEW.name, NEW.id, LOWER(NEW.name)
     UNION SELECT NEW.name, NEW.id, LOWER(json_extract(each_one.value, '$[1]'))
             FROM json_each(NEW.identifiers) AS each_one;
END;

-- only: postgresql
CREATE FUNCTION certificate_names_follow() RETURNS TRIGGER LANGUAGE plpgsql AS
$$ BEGIN
    IF TG_OP = 'UPDATE' THEN
        DELETE FROM certificate_names WHERE name = OLD.name AND certificate = OLD.id;
    END IF;
    INSERT INTO certificate_names (name, certificate, text)
    SELECT NEW.name, NEW.id, LOWER(NEW.name)
     UNION SELECT NEW.name, NEW.id, LOWER(each_one.value ->> 1)
             FROM jsonb_array_elements(NEW.identifiers::jsonb) AS each_one;
    RETURN NULL;
END $$;

-- only: postgresql
CREATE TRIGGER certificate_names_when_new AFTER INSERT ON certificates
FOR EACH ROW EXECUTE FUNCTION certificate_names_follow();

-- only: postgresql
CREATE TRIGGER certificate_names_when_changed AFTER UPDATE OF name, identifiers ON certificates
FOR EACH ROW WHEN (NEW.name <> OLD.name OR NEW.identifiers <> OLD.identifiers)
EXECUTE FUNCTION certificate_names_follow();

-- For /metrics: what those wait for that are not simply well.
CREATE INDEX certificates_waiting ON certificates (next_cause, state)
 WHERE next_cause IN ('BACKOFF', 'CANCELLED', 'ISSUER_PAUSED', 'REVOKED', 'STAGGERED', 'UNKNOWN_ISSUER', 'WINDOW');

-- Those that a second person must approve: whoever asks for their names in another certificate needs that word, too.
CREATE INDEX certificates_guarded ON certificates (id) WHERE approval_required AND state <> 'archived';

CREATE TABLE certificate_versions (
    id              TEXT PRIMARY KEY,
    certificate     TEXT NOT NULL REFERENCES certificates (id),
    generation      INTEGER NOT NULL,
    issuance        TEXT,
    state           TEXT NOT NULL CHECK (state IN ('active', 'superseded', 'revoked', 'imported')),
    key_secret      TEXT NOT NULL REFERENCES secrets (id),
    chain_pem       TEXT NOT NULL,
    serial          TEXT NOT NULL,
    not_before      BIGINT NOT NULL,
    not_after       BIGINT NOT NULL,
    issuer          TEXT NOT NULL,
    account         TEXT,
    spki_sha256     TEXT NOT NULL,
    issued_at       BIGINT NOT NULL,
    revoke_reason   INTEGER CHECK (revoke_reason IN (0, 1, 3, 4, 5, 9)),
    revoke_asked_at BIGINT,
    revoked_at      BIGINT,
    -- When to look at its end again; whatever is new is looked at once.
    look_at         BIGINT NOT NULL DEFAULT 0
);

-- One attempt gives one version, however often its result is written.
CREATE UNIQUE INDEX certificate_versions_one ON certificate_versions (issuance) WHERE issuance IS NOT NULL;

CREATE INDEX certificate_versions_by_key ON certificate_versions (key_secret);

CREATE INDEX certificate_versions_of ON certificate_versions (certificate, issued_at);

CREATE INDEX certificate_versions_expiring ON certificate_versions (not_after) WHERE state IN ('active', 'imported');

CREATE INDEX certificate_versions_to_revoke ON certificate_versions (id)
 WHERE revoke_asked_at IS NOT NULL AND revoked_at IS NULL;

CREATE INDEX certificate_versions_to_look ON certificate_versions (look_at) WHERE state IN ('active', 'imported');

-- An adopted certificate names its version before that is there.
-- only: sqlite
CREATE TRIGGER certificates_end_with_version AFTER INSERT ON certificate_versions
BEGIN
    UPDATE certificates SET ends_at = NEW.not_after WHERE id = NEW.certificate AND current_version = NEW.id;
END;

-- only: sqlite
CREATE TRIGGER certificates_end_moved AFTER UPDATE OF not_after ON certificate_versions
BEGIN
    UPDATE certificates SET ends_at = NEW.not_after WHERE id = NEW.certificate AND current_version = NEW.id;
END;

-- only: postgresql
CREATE FUNCTION certificates_end_with_version() RETURNS TRIGGER LANGUAGE plpgsql AS
$$ BEGIN
    UPDATE certificates SET ends_at = NEW.not_after WHERE id = NEW.certificate AND current_version = NEW.id;
    RETURN NULL;
END $$;

-- only: postgresql
CREATE TRIGGER certificates_end_with_version AFTER INSERT OR UPDATE OF not_after ON certificate_versions
FOR EACH ROW EXECUTE FUNCTION certificates_end_with_version();

CREATE TABLE issuances (
    id              TEXT PRIMARY KEY,
    certificate     TEXT NOT NULL REFERENCES certificates (id),
    generation      INTEGER NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('awaiting_approval', 'requested', 'key_stored', 'ordered', 'proving',
                                                   'finalizing', 'waiting', 'issued', 'failed', 'cancelled')),
    version         INTEGER NOT NULL DEFAULT 1,
    issuer          TEXT NOT NULL,
    cause           TEXT NOT NULL,
    urgent          BOOLEAN NOT NULL DEFAULT FALSE,
    identifiers     TEXT NOT NULL,
    key_secret      TEXT REFERENCES secrets (id),
    csr             BYTEA,
    ref             TEXT,
    proofs          TEXT NOT NULL DEFAULT '[]',
    replaces        TEXT,
    failures        INTEGER NOT NULL DEFAULT 0,
    polls           INTEGER NOT NULL DEFAULT 0,
    polled_since    BIGINT,
    requested_by    TEXT NOT NULL,
    started_at      BIGINT NOT NULL,
    ended_at        BIGINT,
    error           TEXT,
    reason          TEXT,
    -- When an order was begun at a CA where it is binding; committed before the call.
    asked_at        BIGINT,
    -- Since when nobody can tell whether the CA has the order, and whether it was ordered once more after that.
    uncertain_since BIGINT,
    maybe_twice     BOOLEAN NOT NULL DEFAULT FALSE,
    -- Telling the CA that an order is given up: NULL, owed, done, none (it has no such order) or refused.
    withdrawal      TEXT CHECK (withdrawal IN ('owed', 'done', 'none', 'refused'))
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

CREATE INDEX issuances_by_start ON issuances (started_at, id);

CREATE INDEX issuances_to_withdraw ON issuances (id) WHERE withdrawal = 'owed';

-- Attempts that are over, by how they ended and why; and what each CA issued, with how long that took.
CREATE INDEX issuances_ended ON issuances (state, ended_at, reason) WHERE ended_at IS NOT NULL;

CREATE INDEX issuances_issued ON issuances (issuer, ended_at, started_at, state) WHERE state = 'issued';

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

CREATE INDEX approvals_decided ON approvals (state, decided_at) WHERE decided_at IS NOT NULL;

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

-- Notifications: what people are told, through which channels, and what of it is still owed.

-- Channels by the name that people give them. `credentials` maps a purpose to the id of a sealed secret.
CREATE TABLE channels (
    name                TEXT PRIMARY KEY,
    kind                TEXT NOT NULL,
    settings            TEXT NOT NULL DEFAULT '{}',
    credentials         TEXT NOT NULL DEFAULT '{}',
    severities          TEXT NOT NULL,
    owners              TEXT NOT NULL DEFAULT '[]',
    labels              TEXT NOT NULL DEFAULT '{}',
    fallback            TEXT,
    digest_every        BIGINT,
    heartbeat_every     BIGINT,
    heartbeat_at        BIGINT,
    rate_burst          INTEGER NOT NULL,
    rate_every          BIGINT NOT NULL,
    state               TEXT NOT NULL CHECK (state IN ('active', 'paused')),
    version             INTEGER NOT NULL DEFAULT 1,
    breaker_failures    INTEGER NOT NULL DEFAULT 0,
    breaker_until       BIGINT,
    breaker_probe       TEXT,
    breaker_probe_until BIGINT,
    breaker_error       TEXT,
    breaker_limits      INTEGER NOT NULL DEFAULT 0,
    down_since          BIGINT,
    created_at          BIGINT NOT NULL,
    -- Whether a channel has delivered something with the settings it has: one that worked is down, not misconfigured.
    proven              BOOLEAN NOT NULL DEFAULT FALSE
);

-- One message owed to one channel, whose name is empty where nobody wanted to hear of it. No reference to channels:
-- what was owed to one that was deleted stays visible.
CREATE TABLE notifications (
    id            TEXT PRIMARY KEY,
    message       TEXT NOT NULL,
    channel       TEXT NOT NULL,
    event         TEXT NOT NULL,
    severity      TEXT NOT NULL CHECK (severity IN ('info', 'warning', 'critical')),
    subject       TEXT NOT NULL,
    name          TEXT NOT NULL,
    owner         TEXT NOT NULL DEFAULT '',
    labels        TEXT NOT NULL DEFAULT '{}',
    title         TEXT NOT NULL,
    body          TEXT NOT NULL,
    facts         TEXT NOT NULL DEFAULT '{}',
    reason        TEXT NOT NULL DEFAULT '',
    next          TEXT NOT NULL DEFAULT '',
    outage        TEXT NOT NULL,
    clears        BOOLEAN NOT NULL DEFAULT FALSE,
    state         TEXT NOT NULL CHECK (state IN ('pending', 'sent', 'failed', 'dead', 'resolved')),
    retry_count   INTEGER NOT NULL DEFAULT 0,
    next_retry_at BIGINT,
    last_error    TEXT,
    why           TEXT,
    begun         INTEGER NOT NULL DEFAULT 0,
    digest_at     BIGINT,
    digest        TEXT,
    passed_on_at  BIGINT,
    waiting_since BIGINT NOT NULL,
    tried_at      BIGINT,
    sent_at       BIGINT,
    note          TEXT,
    settled_by    TEXT,
    created_at    BIGINT NOT NULL,
    -- JSON: those behind the channel who have not got it yet, while others have.
    missed        TEXT NOT NULL DEFAULT '[]',
    -- Attempts of its digest, or for those it missed: they say nothing against the notification, and are not in retry_count.
    tries         INTEGER NOT NULL DEFAULT 0
);

-- A message goes to a channel once, whether it was routed there or came as to a fallback.
CREATE UNIQUE INDEX notifications_one ON notifications (message, channel);

-- Each scan has a partial index: sent, dead and resolved rows leave all that the engine looks at.
CREATE INDEX notifications_retry ON notifications (channel, next_retry_at)
 WHERE state = 'failed' AND next_retry_at IS NOT NULL;

CREATE INDEX notifications_pending ON notifications (channel, id) WHERE state = 'pending';

CREATE INDEX notifications_in_digest ON notifications (channel, digest_at)
 WHERE state IN ('pending', 'failed') AND digest_at IS NOT NULL;

CREATE INDEX notifications_waiting ON notifications (channel, outage) WHERE state IN ('pending', 'failed');

CREATE INDEX notifications_dead ON notifications (channel, id) WHERE state = 'dead';

CREATE INDEX notifications_counted ON notifications (channel, state);

CREATE INDEX notifications_of_subject ON notifications (subject, id);

-- Whoever was told of an outage hears of its end.
CREATE INDEX notifications_of_outage ON notifications (outage, id);

-- What is wrong now: while its row is here, it was told, and it is not told again for each that suffers from it.
CREATE TABLE outages (
    key       TEXT PRIMARY KEY,
    event     TEXT NOT NULL,
    severity  TEXT NOT NULL CHECK (severity IN ('info', 'warning', 'critical')),
    subject   TEXT NOT NULL,
    name      TEXT NOT NULL,
    repeats   INTEGER NOT NULL DEFAULT 0,
    opened_at BIGINT NOT NULL,
    seen_at   BIGINT NOT NULL
);

-- The thresholds before its end that people were told of a version.
CREATE TABLE crossings (
    version   TEXT NOT NULL,
    threshold INTEGER NOT NULL,
    told_at   BIGINT NOT NULL,
    PRIMARY KEY (version, threshold)
);

-- Words of a CA that nobody here knew; each is told of once.
CREATE TABLE issuer_words (
    issuer  TEXT NOT NULL,
    word    TEXT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (issuer, word)
);

-- What is searched, in lower case: a certificate's own name, and each name that it is for. Read in the order of the
-- certificates' names, a page is full as soon as enough were found.
CREATE TABLE certificate_names (
    name        TEXT NOT NULL,
    certificate TEXT NOT NULL,
    text        TEXT NOT NULL,
    PRIMARY KEY (name, certificate, text)
);

-- Every address that certificates of a CA name, with "{shard}" in it: a list of a shard must name them all.
CREATE TABLE ca_addresses (
    ca       TEXT NOT NULL REFERENCES cas (id),
    url      TEXT NOT NULL,
    since_at BIGINT NOT NULL,
    PRIMARY KEY (ca, url)
);

-- The newest list of each root; several CAs may stand under one. What is on a list is on the next one, too.
CREATE TABLE root_crls (
    root        TEXT PRIMARY KEY,
    number      BIGINT NOT NULL,
    this_update BIGINT NOT NULL,
    next_update BIGINT NOT NULL,
    der         BYTEA NOT NULL
);
