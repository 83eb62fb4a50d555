-- 0010 Endpoints: where the effects of a downstream with many endpoints go, by name, and which of them are disabled.
--
-- Differs because SQLite has no functions: applications write the rows.

-- One row per endpoint that an application keeps, and one for the state of an endpoint of the configuration (url is null) that
-- failed or was disabled. `disabled_itself`: what its URL showed disabled it, so another URL enables it again. `secrets` are references, one or two: a row never holds a secret.
CREATE TABLE aftercommit_endpoints (
    downstream      TEXT NOT NULL,
    name            TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 128 AND name NOT GLOB '*[^!-~]*'),
    url             TEXT CHECK ((url GLOB 'https://?*' OR url GLOB 'http://?*') AND length(url) <= 2008 AND url NOT GLOB '*[^!-~]*'),
    secrets         TEXT CHECK ((secrets GLOB 'env:?*' OR secrets GLOB 'file:/?*') AND secrets NOT GLOB '*[^ -~]*'),
    state           TEXT NOT NULL GENERATED ALWAYS AS (CASE WHEN disabled_at IS NULL THEN 'active' ELSE 'disabled' END) VIRTUAL,
    disabled_at     INTEGER,
    disabled_reason TEXT,
    disabled_itself INTEGER NOT NULL DEFAULT 0 CHECK (disabled_itself IN (0, 1)),
    failing_since   INTEGER,
    created_at      INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000),
    updated_at      INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000),
    PRIMARY KEY (downstream, name),
    CHECK ((url IS NULL) = (secrets IS NULL)),
    CHECK ((disabled_at IS NULL) = (disabled_reason IS NULL))
) STRICT, WITHOUT ROWID;

-- Another URL or other secrets forget what the ones before showed. What a person disabled stays so.
CREATE TRIGGER aftercommit_endpoints_moved AFTER UPDATE OF url, secrets ON aftercommit_endpoints
WHEN OLD.url IS NOT NULL AND (OLD.url IS NOT NEW.url OR OLD.secrets IS NOT NEW.secrets)
BEGIN
    UPDATE aftercommit_endpoints
    SET failing_since = NULL,
        disabled_at = iif(OLD.disabled_itself, NULL, NEW.disabled_at),
        disabled_reason = iif(OLD.disabled_itself, NULL, NEW.disabled_reason),
        disabled_itself = iif(OLD.disabled_itself, 0, NEW.disabled_itself),
        updated_at = CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000
    WHERE downstream = NEW.downstream AND name = NEW.name;
END;

INSERT INTO aftercommit_schema_version (version, applied_at) VALUES (10, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000);
