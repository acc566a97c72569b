-- A certificate for the key of a given CSR, in PEM: the key itself is never here.
ALTER TABLE certificates ADD COLUMN csr TEXT;
