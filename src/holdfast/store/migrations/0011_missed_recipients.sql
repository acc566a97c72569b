-- Notices that went to some of those behind a channel only, or in a digest that did not go; and who was told of what.

-- JSON: those behind the channel who have not got it yet, while others have.
ALTER TABLE notices ADD COLUMN missed TEXT;

-- Attempts of its digest, or for those it missed: they say nothing against the notice, and are not in retry_count.
ALTER TABLE notices ADD COLUMN tries INTEGER NOT NULL DEFAULT 0;

-- Whoever was told of an outage hears of its end.
CREATE INDEX notices_of_outage ON notices (outage, id);
