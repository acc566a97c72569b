-- From where an authorization was asked for (of IPv6 the /64), and how many of each account and address are not proved.

ALTER TABLE acme_authzs ADD COLUMN address TEXT NOT NULL DEFAULT '';

CREATE INDEX acme_authzs_pending ON acme_authzs (account) WHERE state = 'pending';

CREATE INDEX acme_authzs_pending_from ON acme_authzs (address) WHERE state = 'pending' AND address <> '';
