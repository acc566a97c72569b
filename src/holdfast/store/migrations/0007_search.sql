-- What the faces search and count.

CREATE INDEX audit_by_actor ON audit (actor, seq);

CREATE INDEX audit_by_action ON audit (action, seq);

CREATE INDEX audit_by_time ON audit (at, seq);

CREATE INDEX approvals_decided ON approvals (state, decided_at) WHERE decided_at IS NOT NULL;

-- Counting what ends when looks at no table: two indexes have all that is asked.
CREATE INDEX certificate_versions_ends ON certificate_versions (not_after, certificate, id) WHERE state <> 'superseded';

DROP INDEX certificate_versions_by_end;

CREATE INDEX certificates_held ON certificates (id, current_version, state);

-- When each loop of a replica ended last, as its heartbeat tells it.
ALTER TABLE replicas ADD COLUMN loops TEXT NOT NULL DEFAULT '{}';
