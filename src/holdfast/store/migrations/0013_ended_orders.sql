-- Orders that came to nothing, by the time of their end. Those with a certificate are found by their age, which is in their id.
CREATE INDEX acme_orders_refused ON acme_orders (expires_at) WHERE state = 'invalid';
