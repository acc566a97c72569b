-- What this database belongs to, where it was last used, and whether it may act.
CREATE TABLE installation (
    only_one   INTEGER PRIMARY KEY CHECK (only_one = 1),
    id         TEXT NOT NULL,
    -- The server and database, or the file, that it was in when it was last used. A copy is somewhere else.
    place      TEXT NOT NULL,
    mode       TEXT NOT NULL CHECK (mode IN ('normal', 'recovering', 'quarantine')),
    -- Grows each time that commits may have been lost; replicas whose witness knows a smaller one replay it.
    generation BIGINT NOT NULL,
    since      BIGINT NOT NULL,
    why        TEXT NOT NULL DEFAULT '',
    facts      TEXT NOT NULL DEFAULT '{}'
);

-- What each replica found again in its witness and its audit file, for each generation.
CREATE TABLE replays (
    generation   BIGINT NOT NULL,
    holder       TEXT NOT NULL,
    name         TEXT NOT NULL,
    at           BIGINT NOT NULL,
    certificates INTEGER NOT NULL,
    revocations  INTEGER NOT NULL,
    serials      INTEGER NOT NULL,
    damaged      INTEGER NOT NULL,
    PRIMARY KEY (generation, holder)
);

-- Certificates of our CAs of which only the serial number is known: an audit file tells of them, and nothing else does.
CREATE TABLE known_serials (
    ca         TEXT NOT NULL,
    serial     TEXT NOT NULL,
    found_at   BIGINT NOT NULL,
    source     TEXT NOT NULL,
    revoked_at BIGINT,
    reason     INTEGER,
    PRIMARY KEY (ca, serial)
);

-- Numbers of CRLs that were published, and are not in this database: a later one has a larger number.
CREATE TABLE crl_floors (
    ca     TEXT NOT NULL,
    shard  INTEGER NOT NULL,
    number BIGINT NOT NULL,
    PRIMARY KEY (ca, shard)
);
