-- Notices: what people are told, through which channels, and what of it is still owed.

-- Channels by the name that people give them. `credentials` maps a purpose to the id of a sealed secret.
CREATE TABLE channels (
    name             TEXT PRIMARY KEY,
    kind             TEXT NOT NULL,
    settings         TEXT NOT NULL DEFAULT '{}',
    credentials      TEXT NOT NULL DEFAULT '{}',
    severities       TEXT NOT NULL,
    owners           TEXT NOT NULL DEFAULT '[]',
    labels           TEXT NOT NULL DEFAULT '{}',
    fallback         TEXT,
    digest_every     BIGINT,
    heartbeat_every  BIGINT,
    heartbeat_at     BIGINT,
    rate_burst       INTEGER NOT NULL,
    rate_every       BIGINT NOT NULL,
    state            TEXT NOT NULL CHECK (state IN ('active', 'paused')),
    version          INTEGER NOT NULL DEFAULT 1,
    breaker_failures INTEGER NOT NULL DEFAULT 0,
    breaker_until    BIGINT,
    breaker_probe    TEXT,
    breaker_probe_until BIGINT,
    breaker_error    TEXT,
    breaker_limits   INTEGER NOT NULL DEFAULT 0,
    down_since       BIGINT,
    created_at       BIGINT NOT NULL
);

-- One message owed to one channel, whose name is empty where nobody wanted to hear of it. No reference to channels:
-- what was owed to one that was deleted stays visible.
CREATE TABLE notices (
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
    created_at    BIGINT NOT NULL
);

-- A message goes to a channel once, whether it was routed there or came as to a fallback.
CREATE UNIQUE INDEX notices_one ON notices (message, channel);

-- Each scan has a partial index: sent, dead and resolved rows leave all that the engine looks at.
CREATE INDEX notices_retry ON notices (channel, next_retry_at) WHERE state = 'failed' AND next_retry_at IS NOT NULL;

CREATE INDEX notices_pending ON notices (channel, id) WHERE state = 'pending';

CREATE INDEX notices_in_digest ON notices (channel, digest_at) WHERE state IN ('pending', 'failed') AND digest_at IS NOT NULL;

CREATE INDEX notices_waiting ON notices (channel, outage) WHERE state IN ('pending', 'failed');

CREATE INDEX notices_dead ON notices (channel, id) WHERE state = 'dead';

CREATE INDEX notices_counted ON notices (channel, state);

CREATE INDEX notices_of_subject ON notices (subject, id);

-- What is wrong now: while its row is here, it was told, and it is not told again for each that suffers from it.
CREATE TABLE outages (
    key       TEXT PRIMARY KEY,
    event     TEXT NOT NULL,
    severity  TEXT NOT NULL,
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

-- When to look at its end again; whatever is new is looked at once.
ALTER TABLE certificate_versions ADD COLUMN look_at BIGINT NOT NULL DEFAULT 0;

CREATE INDEX certificate_versions_to_look ON certificate_versions (look_at) WHERE state IN ('active', 'imported');
