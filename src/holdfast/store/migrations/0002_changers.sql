-- Who changed what is asked for, and in which generation they last did: none of them may approve it.

ALTER TABLE certificates ADD COLUMN changers TEXT NOT NULL DEFAULT '{}';

CREATE INDEX approvals_of_certificate ON approvals (certificate) WHERE state = 'approved';
