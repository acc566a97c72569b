-- Whether the target of a deployment was taken out of its balancer, and must be put back before the deployment is over.
ALTER TABLE deployments ADD COLUMN drained BOOLEAN NOT NULL DEFAULT FALSE;
