-- Where the keys of a certificate are made: at the server, or at the agent of its targets.

ALTER TABLE certificates ADD COLUMN key_location TEXT NOT NULL DEFAULT 'server';
