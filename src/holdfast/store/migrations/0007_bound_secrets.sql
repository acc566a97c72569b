-- What the data key of a secret says about the row that refers to it. NULL: it was sealed by an earlier version.

ALTER TABLE secrets ADD COLUMN binding BYTEA;
