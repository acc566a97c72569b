-- Authorizations that are over, by the time of their end: those that ended long ago are deleted with their challenges.
CREATE INDEX acme_authzs_ended ON acme_authzs (expires_at) WHERE state IN ('invalid', 'deactivated', 'expired', 'revoked');
