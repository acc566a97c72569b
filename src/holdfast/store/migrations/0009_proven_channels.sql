-- Whether a channel has delivered something with the settings it has: one that worked is down, not misconfigured.
ALTER TABLE channels ADD COLUMN proven BIGINT NOT NULL DEFAULT 0;
