-- Where the lists of our CAs were ever to be found, the lists of roots whose keys are kept here, tries to sign.

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

-- What was seen at each try to sign that failed: JSON, as for challenges.
ALTER TABLE ca_issuances ADD COLUMN tries TEXT NOT NULL DEFAULT '[]';
