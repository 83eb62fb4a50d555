-- 0011 Kept disabled: what a person disabled stays so, although an application drops the endpoint and puts it again.
--
-- Differs because SQLite has no functions: applications write the rows, and triggers see to it.

-- The row stays, without URL and secrets: who puts it again finds it as it was left.
CREATE TRIGGER aftercommit_endpoints_kept BEFORE DELETE ON aftercommit_endpoints
WHEN OLD.disabled_at IS NOT NULL AND NOT OLD.disabled_itself
BEGIN
    UPDATE aftercommit_endpoints
    SET url = NULL, secrets = NULL, failing_since = NULL,
        updated_at = CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000
    WHERE downstream = OLD.downstream AND name = OLD.name;
    SELECT RAISE(IGNORE);
END;

-- INSERT OR REPLACE fires no trigger of a DELETE: such a row is moved instead, whatever the conflict clause.
CREATE TRIGGER aftercommit_endpoints_put BEFORE INSERT ON aftercommit_endpoints
WHEN NEW.url IS NOT NULL AND EXISTS (
    SELECT 1 FROM aftercommit_endpoints AS e
    WHERE e.downstream = NEW.downstream AND e.name = NEW.name AND e.disabled_at IS NOT NULL AND NOT e.disabled_itself
)
BEGIN
    UPDATE aftercommit_endpoints
    SET url = NEW.url, secrets = NEW.secrets,
        updated_at = CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000
    WHERE downstream = NEW.downstream AND name = NEW.name;
    SELECT RAISE(IGNORE);
END;

INSERT INTO aftercommit_schema_version (version, applied_at) VALUES (11, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000);
