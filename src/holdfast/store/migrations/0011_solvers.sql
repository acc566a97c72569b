-- Solvers that were added by a command or over the API; those of the file keeping.solvers_file come after them.
CREATE TABLE solvers (
    name                TEXT PRIMARY KEY,
    kind                TEXT NOT NULL,
    names               TEXT NOT NULL,
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
