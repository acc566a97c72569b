-- A certificate ends when the first of its versions does that is in use: here, or at a target that serves an earlier one.

-- only: sqlite
DROP TRIGGER certificates_end;

-- only: sqlite
CREATE TRIGGER certificates_end AFTER UPDATE OF current_version ON certificates
WHEN NEW.current_version IS NOT OLD.current_version
BEGIN
    UPDATE certificates SET ends_at = (
        SELECT MIN(not_after) FROM certificate_versions WHERE id = NEW.current_version OR id IN (
            SELECT certificate_version FROM deployments
             WHERE certificate = NEW.id AND state IN ('served', 'installed')))
     WHERE id = NEW.id;
END;

-- only: sqlite
DROP TRIGGER certificates_end_moved;

-- only: sqlite
CREATE TRIGGER certificates_end_moved AFTER UPDATE OF not_after ON certificate_versions
BEGIN
    UPDATE certificates SET ends_at = (
        SELECT MIN(not_after) FROM certificate_versions WHERE id = certificates.current_version OR id IN (
            SELECT certificate_version FROM deployments
             WHERE certificate = NEW.certificate AND state IN ('served', 'installed')))
     WHERE id = NEW.certificate;
END;

-- only: sqlite
CREATE TRIGGER certificates_end_as_served AFTER UPDATE OF state ON deployments
WHEN NEW.state IN ('served', 'installed') OR OLD.state IN ('served', 'installed')
BEGIN
    UPDATE certificates SET ends_at = (
        SELECT MIN(not_after) FROM certificate_versions WHERE id = certificates.current_version OR id IN (
            SELECT certificate_version FROM deployments
             WHERE certificate = NEW.certificate AND state IN ('served', 'installed')))
     WHERE id = NEW.certificate;
END;

-- only: postgresql
CREATE OR REPLACE FUNCTION certificates_end() RETURNS TRIGGER LANGUAGE plpgsql AS
$$ BEGIN
    NEW.ends_at = (
        SELECT MIN(not_after) FROM certificate_versions WHERE id = NEW.current_version OR id IN (
            SELECT certificate_version FROM deployments
             WHERE certificate = NEW.id AND state IN ('served', 'installed')));
    RETURN NEW;
END $$;

-- only: postgresql
CREATE OR REPLACE FUNCTION certificates_end_with_version() RETURNS TRIGGER LANGUAGE plpgsql AS
$$ BEGIN
    UPDATE certificates SET ends_at = (
        SELECT MIN(not_after) FROM certificate_versions WHERE id = certificates.current_version OR id IN (
            SELECT certificate_version FROM deployments
             WHERE certificate = NEW.certificate AND state IN ('served', 'installed')))
     WHERE id = NEW.certificate AND (current_version = NEW.id OR TG_OP = 'UPDATE');
    RETURN NULL;
END $$;

-- only: postgresql
CREATE FUNCTION certificates_end_as_served() RETURNS TRIGGER LANGUAGE plpgsql AS
$$ BEGIN
    UPDATE certificates SET ends_at = (
        SELECT MIN(not_after) FROM certificate_versions WHERE id = certificates.current_version OR id IN (
            SELECT certificate_version FROM deployments
             WHERE certificate = NEW.certificate AND state IN ('served', 'installed')))
     WHERE id = NEW.certificate;
    RETURN NULL;
END $$;

-- only: postgresql
CREATE TRIGGER certificates_end_as_served AFTER UPDATE OF state ON deployments
FOR EACH ROW WHEN (NEW.state IN ('served', 'installed') OR OLD.state IN ('served', 'installed'))
EXECUTE FUNCTION certificates_end_as_served();

UPDATE certificates SET ends_at = (
    SELECT MIN(not_after) FROM certificate_versions WHERE id = certificates.current_version OR id IN (
        SELECT certificate_version FROM deployments
         WHERE deployments.certificate = certificates.id AND state IN ('served', 'installed')))
 WHERE id IN (SELECT certificate FROM deployments WHERE state IN ('served', 'installed'));
