-- Bundles that targets fetch by themselves. Keys are not here: they are read where they are kept, at each fetch.

-- One version of each certificate for a target that asks again and again, until a newer one takes its place.
CREATE TABLE offers (
    target              TEXT NOT NULL,
    certificate         TEXT NOT NULL REFERENCES certificates (id),
    certificate_version TEXT NOT NULL REFERENCES certificate_versions (id),
    number              BIGINT NOT NULL,
    content_id          TEXT NOT NULL,
    offered_at          BIGINT NOT NULL,
    fetched_at          BIGINT,
    PRIMARY KEY (target, certificate)
);

-- One version that is handed over once. Of its token, only the digest is kept.
CREATE TABLE handovers (
    digest              TEXT PRIMARY KEY,
    target              TEXT NOT NULL,
    certificate         TEXT NOT NULL REFERENCES certificates (id),
    certificate_version TEXT NOT NULL REFERENCES certificate_versions (id),
    number              BIGINT NOT NULL,
    expires_at          BIGINT NOT NULL,
    fetched_at          BIGINT
);

CREATE INDEX handovers_by_expiry ON handovers (expires_at);
