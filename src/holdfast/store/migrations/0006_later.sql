-- CAs that issue later: what is kept of an order before the CA's answer, of doubts about it, and of giving it up.

-- When an order was begun at a CA where it is binding; committed before the call.
ALTER TABLE issuances ADD COLUMN asked_at BIGINT;

-- Since when nobody can tell whether the CA has the order, and whether it was ordered once more after that.
ALTER TABLE issuances ADD COLUMN uncertain_since BIGINT;

ALTER TABLE issuances ADD COLUMN maybe_twice BOOLEAN NOT NULL DEFAULT FALSE;

-- Telling the CA that an order is given up: NULL, owed, done, none (it has no such order) or refused.
ALTER TABLE issuances ADD COLUMN withdrawal TEXT;

CREATE INDEX issuances_to_withdraw ON issuances (id) WHERE withdrawal = 'owed';

-- Words of a CA that nobody here knew; each is told of once.
CREATE TABLE issuer_words (
    issuer  TEXT NOT NULL,
    word    TEXT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (issuer, word)
);
