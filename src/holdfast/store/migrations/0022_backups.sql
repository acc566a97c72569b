-- Backups that were made; the files may have been moved or removed since.
CREATE TABLE backups (
    id      TEXT PRIMARY KEY,
    at      BIGINT NOT NULL,
    path    TEXT NOT NULL,
    size    BIGINT NOT NULL,
    rows    BIGINT NOT NULL,
    took_s  DOUBLE PRECISION NOT NULL
);
