-- Up to where the audit log was archived: the number and the hash of the last archived entry. The chain begins after the newest.
CREATE TABLE audit_anchors (
    seq     BIGINT PRIMARY KEY,
    hash    TEXT NOT NULL,
    at      BIGINT NOT NULL,
    actor   TEXT NOT NULL,
    entries BIGINT NOT NULL
);

-- only: sqlite
CREATE TRIGGER audit_anchor_names_an_entry BEFORE INSERT ON audit_anchors
WHEN NOT EXISTS (SELECT 1 FROM audit WHERE seq = NEW.seq AND hash = NEW.hash)
BEGIN SELECT RAISE(ABORT, 'an audit anchor names an audit row and its hash'); END;

-- only: sqlite
CREATE TRIGGER audit_anchor_is_never_changed BEFORE UPDATE ON audit_anchors
BEGIN SELECT RAISE(ABORT, 'audit anchors are never changed'); END;

-- only: sqlite
CREATE TRIGGER audit_anchor_is_never_deleted BEFORE DELETE ON audit_anchors
BEGIN SELECT RAISE(ABORT, 'audit anchors are never deleted'); END;

-- only: sqlite
DROP TRIGGER audit_is_never_deleted;

-- only: sqlite
CREATE TRIGGER audit_is_never_deleted BEFORE DELETE ON audit
WHEN OLD.seq > (SELECT COALESCE(MAX(seq), 0) FROM audit_anchors)
BEGIN SELECT RAISE(ABORT, 'audit rows are never deleted before they are archived'); END;

-- only: postgresql
CREATE FUNCTION refuse_strange_anchor() RETURNS TRIGGER LANGUAGE plpgsql AS
$$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM audit WHERE seq = NEW.seq AND hash = NEW.hash) THEN
        RAISE EXCEPTION 'an audit anchor names an audit row and its hash';
    END IF;
    RETURN NEW;
END $$;

-- only: postgresql
CREATE TRIGGER audit_anchor_names_an_entry BEFORE INSERT ON audit_anchors
FOR EACH ROW EXECUTE FUNCTION refuse_strange_anchor();

-- only: postgresql
CREATE TRIGGER audit_anchor_is_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_anchors
FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change();

-- only: postgresql
DROP TRIGGER audit_is_never_changed ON audit;

-- only: postgresql
CREATE TRIGGER audit_is_never_changed BEFORE UPDATE OR TRUNCATE ON audit
FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change();

-- only: postgresql
CREATE FUNCTION refuse_audit_loss() RETURNS TRIGGER LANGUAGE plpgsql AS
$$ BEGIN
    IF OLD.seq > (SELECT COALESCE(MAX(seq), 0) FROM audit_anchors) THEN
        RAISE EXCEPTION 'audit rows are never deleted before they are archived';
    END IF;
    RETURN OLD;
END $$;

-- only: postgresql
CREATE TRIGGER audit_is_never_deleted BEFORE DELETE ON audit
FOR EACH ROW EXECUTE FUNCTION refuse_audit_loss();
