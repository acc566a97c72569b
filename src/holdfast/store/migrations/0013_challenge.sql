-- By which challenge, and by which solver, the names of a certificate are proved.
ALTER TABLE certificates ADD COLUMN challenge TEXT NOT NULL DEFAULT 'any'
    CHECK (challenge IN ('any', 'http-01', 'dns-01', 'tls-alpn-01'));

ALTER TABLE certificates ADD COLUMN solver TEXT;
