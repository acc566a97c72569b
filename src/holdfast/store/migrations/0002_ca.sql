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
    agreed_at  BIGINT,
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

CREATE TABLE acme_order_authzs (
    order_id TEXT NOT NULL,
    authz_id TEXT NOT NULL,
    PRIMARY KEY (order_id, authz_id)
);

CREATE INDEX acme_order_authzs_back ON acme_order_authzs (authz_id, order_id);

-- Three kinds of data, each in its own place: what we chose (token), what the client's answer fixed (thumbprint: a later
-- change of its key must not break it), and what we saw (error, tries).
CREATE TABLE acme_challenges (
    id         TEXT PRIMARY KEY,
    authz_id   TEXT NOT NULL REFERENCES acme_authzs (id),
    type       TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('pending', 'processing', 'valid', 'invalid')),
    token      TEXT NOT NULL,
    thumbprint TEXT,
    error      TEXT,
    tries      TEXT NOT NULL DEFAULT '[]',
    next_try_at BIGINT,
    valid_at   BIGINT
);

CREATE INDEX acme_challenges_of_authz ON acme_challenges (authz_id);

CREATE INDEX acme_challenges_processing ON acme_challenges (id) WHERE state = 'processing';

-- What will be signed, written down before it is: a lost certificate can be made again, and can be revoked.
CREATE TABLE ca_issuances (
    order_id   TEXT PRIMARY KEY,
    ca         TEXT NOT NULL,
    serial     TEXT NOT NULL,
    intent     BYTEA NOT NULL,
    created_at BIGINT NOT NULL
);

CREATE UNIQUE INDEX ca_issuances_serial ON ca_issuances (ca, serial);

CREATE TABLE ca_certificates (
    id         TEXT PRIMARY KEY,
    ca         TEXT NOT NULL,
    serial     TEXT NOT NULL,
    order_id   TEXT NOT NULL UNIQUE,
    account    TEXT NOT NULL,
    profile    TEXT NOT NULL,
    identifiers TEXT NOT NULL,
    der        BYTEA NOT NULL,
    spki_sha256 TEXT NOT NULL,
    not_before BIGINT NOT NULL,
    not_after  BIGINT NOT NULL,
    shard      INTEGER,
    issued_at  BIGINT NOT NULL,
    revoked_at BIGINT,
    reason     INTEGER,
    listed_at  BIGINT,
    replaced_by TEXT,
    delivery   TEXT NOT NULL DEFAULT 'offered'
               CHECK (delivery IN ('offered', 'fetched', 'acknowledged', 'deployed')),
    fetched_at BIGINT,
    acknowledged_at BIGINT,
    deployed_at BIGINT,
    alerted_at BIGINT
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
    id     BIGINT PRIMARY KEY,
    secret BYTEA NOT NULL,
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
