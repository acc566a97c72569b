-- Which owners and tokens may have which names, from which issuers, with which keys, and for how long.
CREATE TABLE policies (
    name         TEXT PRIMARY KEY,
    names        TEXT NOT NULL,
    owners       TEXT NOT NULL,
    tokens       TEXT NOT NULL,
    issuers      TEXT NOT NULL,
    key_kinds    TEXT NOT NULL,
    max_lifetime BIGINT,
    version      INTEGER NOT NULL,
    created_at   BIGINT NOT NULL
);

-- Whose an ACME account is, by the EAB key that let it in.
ALTER TABLE acme_accounts ADD COLUMN owner TEXT NOT NULL DEFAULT '';

ALTER TABLE acme_eab_keys ADD COLUMN owner TEXT NOT NULL DEFAULT '';

-- Who holds a name already.
CREATE INDEX certificate_names_by_text ON certificate_names (text);
