-- 0010 Endpoints: where the effects of a downstream with many endpoints go, by name, and which of them are disabled.
--
-- Differs because SQLite has no functions: applications write the rows.

-- One row per endpoint that an application keeps, and one for the state of an endpoint of the configuration (url is null) that
-- failed or was disabled. `secrets` are references, one or two: a row never holds a secret.
CREATE TABLE aftercommit_endpoints (
    downstream      TEXT NOT NULL,
    name            TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 128 AND name NOT GLOB '*[^!-~]*'),
    url             TEXT CHECK ((url GLOB 'https://?*' OR url GLOB 'http://?*') AND length(url) <= 2008 AND url NOT GLOB '*[^!-~]*'),
    secrets         TEXT CHECK ((secrets GLOB 'env:?*' OR secrets GLOB 'file:/?*') AND secrets NOT GLOB '*[^ -~]*'),
    state           TEXT NOT NULL GENERATED ALWAYS AS (CASE WHEN disabled_at IS NULL THEN 'active' ELSE 'disabled' END) VIRTUAL,
    disabled_at     INTEGER,
    disabled_reason TEXT,
    failing_since   INTEGER,
    created_at      INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000),
    updated_at      INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000),
    PRIMARY KEY (downstream, name),
    CHECK ((url IS NULL) = (secrets IS NULL)),
    CHECK ((disabled_at IS NULL) = (disabled_reason IS NULL))
) STRICT, WITHOUT ROWID;

INSERT INTO aftercommit_schema_version (version, applied_at) VALUES (10, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000);
