-- Certificates that were seen somewhere, and what people decided about them.
CREATE TABLE finds (
    id            TEXT PRIMARY KEY,
    key           TEXT NOT NULL UNIQUE,
    fingerprint   TEXT NOT NULL,
    serial        TEXT NOT NULL,
    serial_key    TEXT NOT NULL,
    issuer        TEXT NOT NULL,
    names         TEXT NOT NULL,
    not_before    BIGINT NOT NULL,
    not_after     BIGINT NOT NULL,
    spki_sha256   TEXT NOT NULL,
    self_signed   BOOLEAN NOT NULL,
    authority     BOOLEAN NOT NULL,
    chain         TEXT NOT NULL,
    gap           TEXT NOT NULL,
    manager       TEXT NOT NULL,
    certificate   TEXT REFERENCES certificates (id),
    state         TEXT NOT NULL CHECK (state IN ('new', 'adopted', 'ignored', 'gone')),
    why           TEXT NOT NULL,
    decided_by    TEXT NOT NULL,
    decided_at    BIGINT,
    served        BOOLEAN NOT NULL,
    places        INTEGER NOT NULL,
    told_days     INTEGER,
    first_seen_at BIGINT NOT NULL,
    last_seen_at  BIGINT NOT NULL,
    version       INTEGER NOT NULL
);

CREATE INDEX finds_by_end ON finds (state, not_after, id);

CREATE INDEX finds_by_serial ON finds (serial);

CREATE INDEX finds_by_serial_key ON finds (serial_key);

-- Where each is seen. What is not seen there any more has gone_at.
CREATE TABLE find_places (
    find          TEXT NOT NULL REFERENCES finds (id),
    source        TEXT NOT NULL CHECK (source IN ('network', 'host', 'ca', 'ct')),
    place         TEXT NOT NULL,
    discovery     TEXT NOT NULL,
    served        BOOLEAN NOT NULL,
    program       TEXT NOT NULL,
    notes         TEXT NOT NULL,
    first_seen_at BIGINT NOT NULL,
    last_seen_at  BIGINT NOT NULL,
    gone_at       BIGINT,
    PRIMARY KEY (find, source, place)
);

CREATE INDEX find_places_of_discovery ON find_places (discovery, last_seen_at) WHERE gone_at IS NULL;

CREATE INDEX certificate_versions_by_serial ON certificate_versions (serial);

CREATE INDEX ca_certificates_by_serial ON ca_certificates (serial);

-- Where certificates are looked for: what is asked, how far it is, and what came of it.
CREATE TABLE discoveries (
    id          TEXT PRIMARY KEY,
    source      TEXT NOT NULL CHECK (source IN ('network', 'host', 'ca', 'ct')),
    settings    TEXT NOT NULL,
    every       BIGINT,
    state       TEXT NOT NULL CHECK (state IN ('running', 'resting', 'done', 'stopped', 'failed')),
    position    TEXT NOT NULL,
    total       BIGINT,
    counts      TEXT NOT NULL,
    problem     TEXT NOT NULL,
    created_by  TEXT NOT NULL,
    created_at  BIGINT NOT NULL,
    begun_at    BIGINT NOT NULL,
    finished_at BIGINT,
    version     INTEGER NOT NULL
);
