-- What one person keeps for themselves: things put off until a time, and views of the list of certificates.

CREATE TABLE snoozes (
    actor    TEXT NOT NULL,
    what     TEXT NOT NULL,
    name     TEXT NOT NULL,
    -- How it stood when it was put off: in another standing, or when there are more of them, it is shown again.
    standing TEXT NOT NULL,
    number   BIGINT NOT NULL,
    why      TEXT NOT NULL,
    at       BIGINT NOT NULL,
    until    BIGINT NOT NULL,
    PRIMARY KEY (actor, what, name)
);

CREATE INDEX snoozes_old ON snoozes (until);

CREATE TABLE saved_views (
    actor TEXT NOT NULL,
    name  TEXT NOT NULL,
    query TEXT NOT NULL,
    at    BIGINT NOT NULL,
    PRIMARY KEY (actor, name)
);
