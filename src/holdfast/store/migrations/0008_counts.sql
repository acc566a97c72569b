-- What is counted and searched over the whole inventory, kept where an index alone has the answer.

-- When the version in use ends; NULL: there is none. Kept by the database, whoever writes.
ALTER TABLE certificates ADD COLUMN ends_at BIGINT;

UPDATE certificates
   SET ends_at = (SELECT held.not_after FROM certificate_versions AS held WHERE held.id = certificates.current_version)
 WHERE current_version IS NOT NULL;

CREATE INDEX certificates_ends ON certificates (ends_at, id, state) WHERE state <> 'archived';

DROP INDEX certificates_held;

DROP INDEX certificate_versions_ends;

-- only: sqlite
CREATE TRIGGER certificates_end_when_new AFTER INSERT ON certificates WHEN NEW.current_version IS NOT NULL
BEGIN
    UPDATE certificates SET ends_at = (SELECT not_after FROM certificate_versions WHERE id = NEW.current_version)
     WHERE id = NEW.id;
END;

-- only: sqlite
CREATE TRIGGER certificates_end AFTER UPDATE OF current_version ON certificates
WHEN NEW.current_version IS NOT OLD.current_version
BEGIN
    UPDATE certificates SET ends_at = (SELECT not_after FROM certificate_versions WHERE id = NEW.current_version)
     WHERE id = NEW.id;
END;

-- An adopted certificate names its version before that is there.
-- only: sqlite
CREATE TRIGGER certificates_end_with_version AFTER INSERT ON certificate_versions
BEGIN
    UPDATE certificates SET ends_at = NEW.not_after WHERE id = NEW.certificate AND current_version = NEW.id;
END;

-- only: sqlite
CREATE TRIGGER certificates_end_moved AFTER UPDATE OF not_after ON certificate_versions
BEGIN
    UPDATE certificates SET ends_at = NEW.not_after WHERE id = NEW.certificate AND current_version = NEW.id;
END;

-- only: postgresql
CREATE FUNCTION certificates_end() RETURNS TRIGGER LANGUAGE plpgsql AS
$$ BEGIN
    NEW.ends_at = (SELECT not_after FROM certificate_versions WHERE id = NEW.current_version);
    RETURN NEW;
END $$;

-- only: postgresql
CREATE TRIGGER certificates_end_when_new BEFORE INSERT ON certificates
FOR EACH ROW WHEN (NEW.current_version IS NOT NULL) EXECUTE FUNCTION certificates_end();

-- only: postgresql
CREATE TRIGGER certificates_end BEFORE UPDATE OF current_version ON certificates
FOR EACH ROW WHEN (NEW.current_version IS DISTINCT FROM OLD.current_version) EXECUTE FUNCTION certificates_end();

-- only: postgresql
CREATE FUNCTION certificates_end_with_version() RETURNS TRIGGER LANGUAGE plpgsql AS
$$ BEGIN
    UPDATE certificates SET ends_at = NEW.not_after WHERE id = NEW.certificate AND current_version = NEW.id;
    RETURN NULL;
END $$;

-- only: postgresql
CREATE TRIGGER certificates_end_with_version AFTER INSERT OR UPDATE OF not_after ON certificate_versions
FOR EACH ROW EXECUTE FUNCTION certificates_end_with_version();

-- What is searched, in lower case: a certificate's own name, and each name that it is for. Read in the order of the
-- certificates' names, a page is full as soon as enough were found.
CREATE TABLE certificate_names (
    name        TEXT NOT NULL,
    certificate TEXT NOT NULL,
    text        TEXT NOT NULL,
    PRIMARY KEY (name, certificate, text)
);

-- only: sqlite
INSERT INTO certificate_names (name, certificate, text)
SELECT name, id, LOWER(name) FROM certificates
 UNION SELECT certificates.name, certificates.id, LOWER(json_extract(each_one.value, '$[1]'))
         FROM certificates, json_each(certificates.identifiers) AS each_one;

-- only: postgresql
INSERT INTO certificate_names (name, certificate, text)
SELECT name, id, LOWER(name) FROM certificates
 UNION SELECT name, id, LOWER(each_one.value ->> 1)
         FROM certificates, jsonb_array_elements(identifiers::jsonb) AS each_one;

-- only: sqlite
CREATE TRIGGER certificate_names_when_new AFTER INSERT ON certificates
BEGIN
    INSERT INTO certificate_names (name, certificate, text)
    SELECT NEW.name, NEW.id, LOWER(NEW.name)
     UNION SELECT NEW.name, NEW.id, LOWER(json_extract(each_one.value, '$[1]'))
             FROM json_each(NEW.identifiers) AS each_one;
END;

-- only: sqlite
CREATE TRIGGER certificate_names_when_changed AFTER UPDATE OF name, identifiers ON certificates
WHEN NEW.name <> OLD.name OR NEW.identifiers <> OLD.identifiers
BEGIN
    DELETE FROM certificate_names WHERE name = OLD.name AND certificate = OLD.id;
    INSERT INTO certificate_names (name, certificate, text)
    SELECT NEW.name, NEW.id, LOWER(NEW.name)
     UNION SELECT NEW.name, NEW.id, LOWER(json_extract(each_one.value, '$[1]'))
             FROM json_each(NEW.identifiers) AS each_one;
END;

-- only: postgresql
CREATE FUNCTION certificate_names_follow() RETURNS TRIGGER LANGUAGE plpgsql AS
$$ BEGIN
    IF TG_OP = 'UPDATE' THEN
        DELETE FROM certificate_names WHERE name = OLD.name AND certificate = OLD.id;
    END IF;
    INSERT INTO certificate_names (name, certificate, text)
    SELECT NEW.name, NEW.id, LOWER(NEW.name)
     UNION SELECT NEW.name, NEW.id, LOWER(each_one.value ->> 1)
             FROM jsonb_array_elements(NEW.identifiers::jsonb) AS each_one;
    RETURN NULL;
END $$;

-- only: postgresql
CREATE TRIGGER certificate_names_when_new AFTER INSERT ON certificates
FOR EACH ROW EXECUTE FUNCTION certificate_names_follow();

-- only: postgresql
CREATE TRIGGER certificate_names_when_changed AFTER UPDATE OF name, identifiers ON certificates
FOR EACH ROW WHEN (NEW.name <> OLD.name OR NEW.identifiers <> OLD.identifiers)
EXECUTE FUNCTION certificate_names_follow();

-- Attempts that are over, by how they ended and why; and what each CA issued, with how long that took.
CREATE INDEX issuances_ended ON issuances (state, ended_at, reason) WHERE ended_at IS NOT NULL;

CREATE INDEX issuances_issued ON issuances (issuer, ended_at, started_at, state) WHERE state = 'issued';

-- For /metrics: what those wait for that are not simply well.
CREATE INDEX certificates_waiting ON certificates (next_cause, state)
 WHERE next_cause IN ('BACKOFF', 'CANCELLED', 'ISSUER_PAUSED', 'REVOKED', 'STAGGERED', 'UNKNOWN_ISSUER', 'WINDOW');
