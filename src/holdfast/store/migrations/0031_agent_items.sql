-- Work for agents: what a deployment, or an issuance, asks of a host.

CREATE TABLE agent_items (
    id         TEXT PRIMARY KEY,
    agent      TEXT NOT NULL,
    target     TEXT NOT NULL,
    call       TEXT NOT NULL,
    fence      BIGINT NOT NULL,
    body       TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('waiting', 'done', 'over')),
    result     TEXT,
    created_at BIGINT NOT NULL,
    deadline   BIGINT NOT NULL,
    done_at    BIGINT
);

CREATE INDEX agent_items_waiting ON agent_items (agent) WHERE state = 'waiting';

CREATE INDEX agent_items_of_target ON agent_items (agent, target, fence);

CREATE INDEX agent_items_by_age ON agent_items (created_at);
