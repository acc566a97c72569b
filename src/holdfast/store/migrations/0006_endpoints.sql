-- Where certificates are seen served: what should be seen there, and what was seen last.
CREATE TABLE endpoints (
    id            TEXT PRIMARY KEY,
    name          TEXT NOT NULL UNIQUE,
    host          TEXT NOT NULL,
    port          INTEGER NOT NULL,
    protocol      TEXT NOT NULL,
    server_name   TEXT,
    addresses     TEXT NOT NULL DEFAULT '[]',
    samples       INTEGER NOT NULL DEFAULT 1,
    keys          TEXT NOT NULL DEFAULT '[]',
    certificate   TEXT REFERENCES certificates (id),
    twin          TEXT REFERENCES certificates (id),
    target        TEXT NOT NULL DEFAULT '',
    owner         TEXT NOT NULL DEFAULT '',
    labels        TEXT NOT NULL DEFAULT '{}',
    version       INTEGER NOT NULL DEFAULT 1,
    created_at    BIGINT NOT NULL,
    -- The last look; all of it is NULL before the first one.
    last_at       BIGINT,
    last_reason   TEXT,
    last_since    BIGINT,
    last_times    INTEGER,
    last_sentence TEXT,
    last_seen     TEXT
);

CREATE INDEX endpoints_by_certificate ON endpoints (certificate) WHERE certificate IS NOT NULL;

CREATE INDEX endpoints_by_twin ON endpoints (twin) WHERE twin IS NOT NULL;

CREATE INDEX endpoints_by_reason ON endpoints (last_reason, name);

CREATE INDEX endpoints_by_target ON endpoints (target, name) WHERE target <> '';
