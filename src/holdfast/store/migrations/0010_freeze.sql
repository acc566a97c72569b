-- A change freeze: while its row is there, deployments are held until that time, as long as that is safe.
CREATE TABLE deployment_freeze (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    until    BIGINT NOT NULL
);
